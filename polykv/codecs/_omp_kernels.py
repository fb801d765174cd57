"""Compiled inner loops of orthogonal matching pursuit (numba, one thread, no reassociated sums).

Kept apart so that numba is imported only by code that pursues. The kernels check nothing:
`polykv.codecs.omp` hands them finite, contiguous arrays.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Atoms are searched in blocks: the maximum of a block is a vector instruction, and only
# the winning block is scanned for the index. "nnan" and "nsz" allow that maximum (inputs
# are finite) without letting the compiler reorder sums.
BLOCK = 32


@njit(cache=True, fastmath={"nnan", "nsz"})
def _argmax_abs(values):  # pragma: no cover - compiled
    n = values.shape[0]
    best, best_start = np.float32(-1.0), 0
    for start in range(0, n, BLOCK):
        top = np.float32(0.0)
        for i in range(start, min(start + BLOCK, n)):
            size = abs(values[i])
            top = size if size > top else top
        if top > best:
            best, best_start = top, start
    for i in range(best_start, min(best_start + BLOCK, n)):
        if abs(values[i]) == best:
            return i
    return best_start


@njit(cache=True)
def pursue(projections, gram, energies, tolerance, indices, coefficients, residuals):  # pragma: no cover - compiled
    """Batch-OMP of every row; writes indices, coefficients [n, sparsity] and residuals [n].

    projections [n, atom] float32 = rows · atoms (overwritten); gram [atom, atom] float32;
    energies [n] float64 = ‖row‖². `directions[j]` holds the inner products of all atoms with
    the j-th orthonormalised pick, so one pick costs j + 1 passes over the atoms and one row
    of the Gram matrix. A row stops early when what is left is below tolerance · ‖row‖, or the
    best atom depends on those picked; unused slots stay (atom 0, coefficient 0).
    """
    n, n_atoms = projections.shape
    sparsity = indices.shape[1]
    directions = np.empty((sparsity, n_atoms), np.float32)
    triangle = np.zeros((sparsity, sparsity), np.float64)
    along = np.empty(sparsity, np.float64)
    for row in range(n):
        left = energies[row]
        floor = tolerance * np.sqrt(left)
        alpha = projections[row]
        picked = 0
        for step in range(sparsity):
            atom = _argmax_abs(alpha)
            if not abs(alpha[atom]) > floor:
                break
            pivot = np.float64(gram[atom, atom])
            for j in range(step):
                triangle[step, j] = directions[j, atom]
                pivot -= triangle[step, j] * triangle[step, j]
            if pivot <= 1e-6:
                break
            pivot = np.sqrt(pivot)
            triangle[step, step] = pivot
            along[step] = alpha[atom] / pivot
            left -= along[step] * along[step]
            indices[row, step] = atom
            picked = step + 1
            if picked == sparsity:
                break
            current = directions[step]
            source = gram[atom]
            for i in range(n_atoms):
                current[i] = source[i]
            for j in range(step):
                weight = np.float32(triangle[step, j])
                earlier = directions[j]
                for i in range(n_atoms):
                    current[i] -= weight * earlier[i]
            inverse, amount = np.float32(1.0 / pivot), np.float32(along[step])
            for i in range(n_atoms):
                current[i] *= inverse
                alpha[i] -= amount * current[i]
        for j in range(picked - 1, -1, -1):
            total = along[j]
            for later in range(j + 1, picked):
                total -= triangle[later, j] * coefficients[row, later]
            coefficients[row, j] = total / triangle[j, j]
        residuals[row] = max(left, 0.0)
