"""Gates and verdicts: a limit is met or not, and NaN never meets one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polykv.replay.config import Gate
from polykv.replay.statistics import MIN_PASSAGES, Interval

NON_FINITE = "non_finite"
TOO_FEW_PASSAGES = "too_few_passages"


def blockers(gates: Sequence[Gate], figures: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """The gates whose figure does not meet its limit, in gate order.

    A figure that is absent, null or not finite blocks with value null and the gate's name
    prefixed by "non_finite: ".
    """
    found = []
    for gate in gates:
        value = figures.get(gate.metric)
        if value is None or not np.isfinite(value):
            found.append({"gate": f"{NON_FINITE}: {gate.metric}", "value": None, "limit": gate.limit})
        elif not gate.meets(value):
            found.append({"gate": gate.metric, "value": float(value), "limit": gate.limit})
    return found


def gate_verdict(gate: Gate, interval: Interval) -> str:
    """ "pass" when the whole interval meets the limit, "fail" when none of it does, else "inconclusive"."""
    ends = (interval.low, interval.high)
    if not all(np.isfinite(end) for end in ends):
        return "fail" if not np.isfinite(interval.mean) else "inconclusive"
    met = [gate.meets(end) for end in ends]
    if all(met):
        return "pass"
    return "inconclusive" if any(met) else "fail"


def cell_verdict(gates: Sequence[Gate], intervals: Mapping[str, Interval], n_passages: int) -> tuple[str, str | None]:
    """(verdict, reason) of one cell: fail if any gate fails, pass if all pass, else inconclusive.

    `intervals` by metric name. Fewer than 6 passages are inconclusive whatever they say,
    except for a figure that is not finite, which fails.
    """
    missing = [
        gate.metric for gate in gates if gate.metric not in intervals or not np.isfinite(intervals[gate.metric].mean)
    ]
    if missing:
        return "fail", f"{NON_FINITE}: {', '.join(missing)}"
    if n_passages < MIN_PASSAGES:
        return "inconclusive", f"{TOO_FEW_PASSAGES}: {n_passages} of at least {MIN_PASSAGES}"
    verdicts = [gate_verdict(gate, intervals[gate.metric]) for gate in gates]
    if "fail" in verdicts:
        return "fail", None
    return ("pass", None) if all(v == "pass" for v in verdicts) else ("inconclusive", None)
