"""Two runs side by side: which cells moved beyond their interval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Movement:
    """One cell whose confirm cosine left the baseline's 95 % interval; `better` says which way."""

    policy: str
    layer: int
    kv_head: int
    baseline: float
    low: float
    high: float
    now: float | None

    @property
    def better(self) -> bool:
        return self.now is not None and self.now > self.high

    def __str__(self) -> str:
        now = "no figure" if self.now is None else f"{self.now:.4f}"
        way = "better" if self.better else "worse"
        return (
            f"{self.policy}, layer {self.layer}, head {self.kv_head}: output cosine {now}, baseline {self.baseline:.4f} "
            f"[{self.low:.4f}, {self.high:.4f}]: {way}"
        )


def movements(baseline: Iterable[dict[str, Any]], now: Iterable[dict[str, Any]]) -> list[Movement]:
    """Cells of selection `now` outside the interval of the same cell in `baseline`, worse ones first.

    Cells that only one run has, and baseline cells without an interval, are left out.
    """
    known = {_cell(row): row for row in baseline}
    moved = []
    for row in now:
        old = known.get(_cell(row))
        if old is None or old["confirm_output_cosine_low"] is None or old["confirm_output_cosine_high"] is None:
            continue
        found = Movement(
            row["policy"],
            row["layer"],
            row["kv_head"],
            old["confirm_output_cosine_mean"],
            old["confirm_output_cosine_low"],
            old["confirm_output_cosine_high"],
            row["confirm_output_cosine_mean"],
        )
        if found.now is None or not found.low <= found.now <= found.high:
            moved.append(found)
    return sorted(moved, key=lambda m: (m.better, m.policy, m.layer, m.kv_head))


def _cell(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["policy"], row["layer"], row["kv_head"]
