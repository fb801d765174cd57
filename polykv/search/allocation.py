"""Sharing bytes out over units: a Lagrangian over each unit's options, with a floor.

Costs of units add up (one-layer KLs do, and squared relative errors stand in for them), so the
best sharing at one price λ is each unit's own minimum of cost + λ · bytes, and one knob moves all
(Shoham & Gersho 1988). Rules that may leave a unit next to nothing ruin a model: `floor_bytes`
takes such options away beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.errors import DimensionMismatch, InputError


@dataclass(frozen=True, eq=False)
class Allocation:
    """options [unit] int64: the option of each unit; price: cost per byte at which it was struck
    (inf: everything at its cheapest); total_bytes and total_cost are sums over units."""

    options: np.ndarray
    price: float
    total_bytes: float
    total_cost: float


def allocations(costs: np.ndarray, sizes: np.ndarray, floor_bytes: float = 0.0) -> list[Allocation]:
    """Every sharing that some price strikes, from the fewest bytes to the most.

    costs, sizes [unit, option]: costs finite and ≥ 0, sizes > 0. Each is the cheapest of all
    sharings of its total bytes or fewer. Options below floor_bytes are not used. Raises InputError naming a unit
    with no option left.
    """
    costs, sizes = _checked(costs, sizes)
    hulls = [_hull(unit, costs[unit], sizes[unit], floor_bytes) for unit in range(len(costs))]
    # a step is (price, unit, place in the unit's hull); prices fall along a hull, so sorting keeps its order
    steps = sorted(
        (-_price(costs[unit], sizes[unit], hull[i], hull[i + 1]), unit, i + 1)
        for unit, hull in enumerate(hulls)
        for i in range(len(hull) - 1)
    )
    chosen = np.array([hull[0] for hull in hulls])
    found = [_allocation(chosen, np.inf, costs, sizes)]
    for price, unit, place in steps:
        chosen = chosen.copy()
        chosen[unit] = hulls[unit][place]
        found.append(_allocation(chosen, -price, costs, sizes))
    return found


def _checked(costs: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    costs, sizes = np.asarray(costs, np.float64), np.asarray(sizes, np.float64)
    if costs.shape != sizes.shape or costs.ndim != 2 or 0 in costs.shape:
        raise DimensionMismatch(f"costs {costs.shape} and sizes {sizes.shape} must both be [unit, option]")
    wrong = ~(np.isfinite(costs) & (costs >= 0) & np.isfinite(sizes) & (sizes > 0))
    if wrong.any():
        unit, option = np.argwhere(wrong)[0]
        raise InputError(
            f"unit {unit}, option {option}: cost {costs[unit, option]} must be finite and ≥ 0, size "
            f"{sizes[unit, option]} finite and > 0"
        )
    return costs, sizes


def _hull(unit: int, costs: np.ndarray, sizes: np.ndarray, floor_bytes: float) -> list[int]:
    """Options on the lower convex hull of cost over bytes, fewest bytes first, costs strictly falling."""
    able = np.flatnonzero(sizes >= floor_bytes)
    if len(able) == 0:
        raise InputError(
            f"unit {unit} has no option of {floor_bytes:g} bytes or more; its largest takes {sizes.max():g}"
        )
    hull: list[int] = []
    for option in able[np.lexsort((costs[able], sizes[able]))].tolist():
        if hull and costs[option] >= costs[hull[-1]]:
            continue
        while len(hull) > 1 and _price(costs, sizes, hull[-2], hull[-1]) <= _price(costs, sizes, hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull


def _price(costs: np.ndarray, sizes: np.ndarray, cheap: int, dear: int) -> float:
    """Cost saved per byte on the way from one option to the next."""
    return float((costs[cheap] - costs[dear]) / (sizes[dear] - sizes[cheap]))


def _allocation(chosen: np.ndarray, price: float, costs: np.ndarray, sizes: np.ndarray) -> Allocation:
    units = np.arange(len(chosen))
    return Allocation(chosen, price, float(sizes[units, chosen].sum()), float(costs[units, chosen].sum()))
