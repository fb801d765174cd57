"""Compiled inner loops of dictionary learning (numba, one thread, sums in row order)."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def accumulate(rows, indices, coefficients, n_atoms):  # pragma: no cover - compiled
    """(moments [atom, atom], cross [atom, head_dim], used [atom]) of sparse codes C: CᵀC, CᵀX and how often.

    rows [n, head_dim] float32; indices, coefficients [n, sparsity]. float64 sums, in row order.
    """
    n, head_dim = rows.shape
    sparsity = indices.shape[1]
    moments = np.zeros((n_atoms, n_atoms), np.float64)
    cross = np.zeros((n_atoms, head_dim), np.float64)
    used = np.zeros(n_atoms, np.int64)
    for row in range(n):
        for slot in range(sparsity):
            weight = np.float64(coefficients[row, slot])
            if weight == 0.0:
                continue
            atom = indices[row, slot]
            used[atom] += 1
            target = cross[atom]
            source = rows[row]
            for i in range(head_dim):
                target[i] += weight * source[i]
            for other in range(sparsity):
                moments[atom, indices[row, other]] += weight * coefficients[row, other]
    return moments, cross, used


@njit(cache=True)
def ksvd_sweep(residual, starts, members, slots, coefficients, atoms):  # pragma: no cover - compiled
    """One approximate K-SVD pass, atoms in order; updates residual, coefficients and atoms in place.

    residual [n, head_dim] float64 = rows − codes · atoms. The uses of atom a are rows
    members[starts[a]:starts[a+1]], in slots of the same positions. Each atom moves to its
    users' weighted residual, then its coefficients follow (one power iteration of the SVD).
    """
    n_atoms, head_dim = atoms.shape
    for atom in range(n_atoms):
        first, last = starts[atom], starts[atom + 1]
        if first == last:
            continue
        direction = np.zeros(head_dim, np.float64)
        for use in range(first, last):
            row, weight = members[use], coefficients[members[use], slots[use]]
            for i in range(head_dim):
                residual[row, i] += weight * atoms[atom, i]
                direction[i] += weight * residual[row, i]
        norm = np.sqrt(np.sum(direction * direction))
        if norm > 0.0:
            for i in range(head_dim):
                atoms[atom, i] = direction[i] / norm
        for use in range(first, last):
            row = members[use]
            weight = 0.0
            for i in range(head_dim):
                weight += residual[row, i] * atoms[atom, i]
            coefficients[row, slots[use]] = weight
            for i in range(head_dim):
                residual[row, i] -= weight * atoms[atom, i]
