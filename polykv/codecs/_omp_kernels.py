"""Compiled inner loops of orthogonal matching pursuit (numba, one thread, sums in a fixed order).

Kept apart so that numba is imported only by code that pursues. The kernels check nothing:
`polykv.codecs.omp` hands them finite, contiguous arrays.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# The sign bit of a float32 cleared leaves an integer that orders as the absolute value does.
MAGNITUDE = 0x7FFFFFFF
LOW_WORD = 0xFFFFFFFF


@njit(cache=True)
def _argmax_abs(bits):  # pragma: no cover - compiled
    """Index of the float32 of largest magnitude, the lowest on ties; bits [n] int32, the floats' own bits.

    Magnitude and index travel in one int64 (index reversed, so that the lowest wins), because
    an integer maximum becomes vector instructions and a float argmax does not: seven times faster.
    """
    best = np.int64(-1)
    for i in range(bits.shape[0]):
        packed = ((np.int64(bits[i]) & MAGNITUDE) << 32) | (LOW_WORD - i)
        best = packed if packed > best else best
    return LOW_WORD - (best & LOW_WORD)


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
    bits = projections.view(np.int32)
    for row in range(n):
        left = energies[row]
        floor = tolerance * np.sqrt(left)
        alpha = projections[row]
        picked = 0
        for step in range(sparsity):
            atom = _argmax_abs(bits[row])
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
            current, source = directions[step], gram[atom]
            inverse, amount = np.float32(1.0 / pivot), np.float32(along[step])
            if step == 0:
                for i in range(n_atoms):
                    current[i] = source[i] * inverse
                    alpha[i] -= amount * current[i]
                continue
            weight, earlier = np.float32(triangle[step, 0]), directions[0]
            for i in range(n_atoms):
                current[i] = source[i] - weight * earlier[i]
            for j in range(1, step):
                weight, earlier = np.float32(triangle[step, j]), directions[j]
                for i in range(n_atoms):
                    current[i] -= weight * earlier[i]
            for i in range(n_atoms):
                current[i] *= inverse
                alpha[i] -= amount * current[i]
        for j in range(picked - 1, -1, -1):
            total = along[j]
            for later in range(j + 1, picked):
                total -= triangle[later, j] * coefficients[row, later]
            coefficients[row, j] = total / triangle[j, j]
        residuals[row] = max(left, 0.0)
