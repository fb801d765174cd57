"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  const theme = document.getElementById("theme");

  // Without this script the page is light, and cells speak through their titles.
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const paint = (isDark) => {
    root.dataset.theme = isDark ? "dark" : "light";
    theme.textContent = isDark ? "Light colours" : "Dark colours";
  };
  paint(dark.matches);
  dark.addEventListener("change", (event) => paint(event.matches));
  theme.hidden = false;
  theme.addEventListener("click", () => paint(root.dataset.theme !== "dark"));

  for (const cell of document.querySelectorAll(".map td[title]")) {
    cell.setAttribute("aria-label", cell.title);
    cell.removeAttribute("title");
  }

  const show = (cell) => {
    tip.textContent = cell.getAttribute("aria-label").split("; ").join("\n");
    tip.hidden = false;
    const at = cell.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left), root.clientWidth - tip.offsetWidth - 8);
    const below = at.bottom + 6 + tip.offsetHeight < innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - 6 - tip.offsetHeight)}px`;
  };
  const hide = () => { tip.hidden = true; };
  const cellOf = (event) => event.target.closest(".map td[aria-label]");
  const showAt = (event) => { const cell = cellOf(event); if (cell) show(cell); else hide(); };
  document.addEventListener("mouseover", showAt);
  document.addEventListener("focusin", showAt);
  document.addEventListener("scroll", hide, true);

  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const next = (cell, key) => {
    const row = cell.parentElement;
    if (key === "Home" || key === "End") return [...row.querySelectorAll("td[aria-label]")].at(key === "Home" ? 0 : -1);
    const line = row.parentElement.rows[row.sectionRowIndex + steps[key][1]];
    return line && line.cells[cell.cellIndex + steps[key][0]];
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const cell = cellOf(event);
    if (!cell || !(event.key in steps || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    const target = next(cell, event.key);
    if (!target || !target.hasAttribute("aria-label")) return;
    cell.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  });
})();
