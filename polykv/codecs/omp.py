"""Orthogonal matching pursuit of many vectors at once (Batch-OMP with a precomputed Gram matrix).

Source: Rubinstein, Zibulevsky and Elad, "Efficient implementation of the K-SVD algorithm
using batch orthogonal matching pursuit" (2008); the progressive orthogonalisation is kept
per atom instead of per vector, so that a pick reads one row of the Gram matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polykv.codecs.arrays import rows_times
from polykv.errors import DimensionMismatch, InputError

# Rows per matrix product: bounds memory (4,096 atoms × 1,024 rows is 16 MB of float32).
CHUNK_ROWS = 1024

# What is left of a row, relative to its norm, that float32 projections can no longer tell from zero.
TOLERANCE = 1e-6


class SparseRows(NamedTuple):
    """Rows as few atoms: indices [n, sparsity] int32, coefficients [n, sparsity] float32, residuals [n] float64.

    `residuals` is ‖row − coefficients · atoms‖² as the pursuit saw it; an unused slot is atom 0 with coefficient 0.
    """

    indices: np.ndarray
    coefficients: np.ndarray
    residuals: np.ndarray


def batch_omp(rows: np.ndarray, atoms: np.ndarray, sparsity: int, gram: np.ndarray | None = None) -> SparseRows:
    """The best `sparsity` atoms of each row, greedily, with least-squares coefficients.

    rows [n, head_dim] and atoms [atom, head_dim] float32, finite, atoms of unit norm; gram
    [atom, atom] float32 = atoms · atomsᵀ when the caller has it. Deterministic; ties go to the
    lowest atom, and a row's result does not depend on the other rows. Raises InputError for a
    sparsity outside 1 … atoms, DimensionMismatch for widths.
    """
    from polykv.codecs._omp_kernels import pursue

    rows = np.ascontiguousarray(rows, np.float32)
    atoms = np.ascontiguousarray(atoms, np.float32)
    if rows.shape[1] != atoms.shape[1]:
        raise DimensionMismatch(f"rows have {rows.shape[1]} dimensions, atoms {atoms.shape[1]}")
    if not 1 <= sparsity <= len(atoms):
        raise InputError(f"sparsity {sparsity} is outside 1 … {len(atoms)} (the number of atoms)")
    if gram is None:
        gram = atoms @ atoms.T
    n = len(rows)
    found = SparseRows(np.zeros((n, sparsity), np.int32), np.zeros((n, sparsity), np.float32), np.zeros(n, np.float64))
    transposed = np.ascontiguousarray(atoms.T)
    energies = row_energies(rows)
    for start in range(0, n, CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        pursue(rows_times(rows[part], transposed), gram, energies[part], TOLERANCE, *(array[part] for array in found))
    return found


def row_energies(rows: np.ndarray) -> np.ndarray:
    """[n] float64: ‖row‖² of rows [n, head_dim]."""
    wide = np.asarray(rows, np.float64)
    return np.einsum("nd,nd->n", wide, wide)
