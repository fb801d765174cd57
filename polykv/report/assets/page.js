"use strict";
(() => {
  const tip = document.getElementById("tip");
  const theme = document.getElementById("theme");
  const root = document.documentElement;

  theme.hidden = false;
  theme.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  const show = (cell) => {
    tip.textContent = cell.getAttribute("aria-label").split("; ").join("\n");
    tip.hidden = false;
    const box = cell.getBoundingClientRect();
    const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const below = box.bottom + 6 + tip.offsetHeight < window.innerHeight;
    const top = below ? box.bottom + 6 : box.top - tip.offsetHeight - 6;
    tip.style.left = `${Math.max(8, left) + window.scrollX}px`;
    tip.style.top = `${top + window.scrollY}px`;
  };
  const hide = () => { tip.hidden = true; };
  const cellOf = (event) => event.target.closest(".map td[aria-label]");

  document.addEventListener("mouseover", (event) => { const cell = cellOf(event); if (cell) show(cell); else hide(); });
  document.addEventListener("focusin", (event) => { const cell = cellOf(event); if (cell) show(cell); else hide(); });
  document.addEventListener("focusout", hide);

  const MOVES = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const edge = (row, last) => { const cells = [...row.querySelectorAll("td[aria-label]")]; return last ? cells.at(-1) : cells[0]; };
  const next = (cell, key) => {
    if (key === "Home" || key === "End") return edge(cell.parentElement, key === "End");
    const [down, right] = MOVES[key];
    const body = cell.closest("tbody");
    let row = cell.parentElement.rowIndex - body.rows[0].rowIndex;
    let column = cell.cellIndex;
    do {
      row += down; column += right;
      const found = body.rows[row] && body.rows[row].cells[column];
      if (!found || found.tagName !== "TD") return null;
      if (found.hasAttribute("aria-label")) return found;
    } while (true);
  };
  document.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    if (!cell) return;
    if (event.key === "Escape") { hide(); return; }
    if (!(event.key in MOVES) && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    const target = next(cell, event.key);
    if (!target) return;
    cell.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  });
})();
