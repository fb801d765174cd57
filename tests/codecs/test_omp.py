"""Batch-OMP against the textbook pursuit, one vector at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.codecs.omp import batch_omp
from polykv.errors import DimensionMismatch, InputError


def unit_atoms(rng, n_atoms, head_dim):
    atoms = rng.normal(size=(n_atoms, head_dim))
    return (atoms / np.linalg.norm(atoms, axis=1, keepdims=True)).astype(np.float32)


def textbook_omp(row, atoms, sparsity):
    """(picks, coefficients, residual²) by refitting all picks with least squares after every pick."""
    atoms, row, picks = atoms.astype(np.float64), row.astype(np.float64), []
    left = row
    for _ in range(sparsity):
        picks.append(int(np.argmax(np.abs(atoms @ left))))
        coefficients = np.linalg.lstsq(atoms[picks].T, row, rcond=None)[0]
        left = row - coefficients @ atoms[picks]
    return picks, coefficients, left @ left


@pytest.mark.parametrize(("n_atoms", "head_dim", "sparsity"), [(256, 64, 4), (33, 12, 5), (7, 16, 7), (70, 8, 1)])
def test_it_is_the_textbook_pursuit(n_atoms, head_dim, sparsity):
    rng = np.random.default_rng(3)
    atoms, rows = unit_atoms(rng, n_atoms, head_dim), rng.normal(size=(60, head_dim)).astype(np.float32)
    found = batch_omp(rows, atoms, sparsity)
    for i, row in enumerate(rows):
        picks, coefficients, residual = textbook_omp(row, atoms, sparsity)
        assert found.indices[i].tolist() == picks
        np.testing.assert_allclose(found.coefficients[i], coefficients, rtol=2e-4, atol=2e-5)
        assert found.residuals[i] == pytest.approx(residual, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 9), st.integers(0, 30), st.floats(1e-3, 1e6))
def test_residuals_are_those_of_the_codes(seed, n_atoms, head_dim, n, scale):
    """Any size, one dimension and no rows included; scale stays where float32 squares are normal numbers."""
    rng = np.random.default_rng(seed)
    atoms, rows = unit_atoms(rng, n_atoms, head_dim), (scale * rng.normal(size=(n, head_dim))).astype(np.float32)
    sparsity = 1 + seed % n_atoms
    found = batch_omp(rows, atoms, sparsity)
    rebuilt = np.einsum("ns,nsd->nd", found.coefficients.astype(np.float64), atoms[found.indices].astype(np.float64))
    energy = np.square(rows.astype(np.float64)).sum(axis=1)
    wrong = np.square(rebuilt - rows).sum(axis=1)
    assert np.all(np.abs(wrong - found.residuals) <= 1e-4 * energy + 1e-30)
    assert np.all(found.residuals <= energy)


def test_a_row_does_not_depend_on_its_batch():
    rng = np.random.default_rng(0)
    atoms, rows = unit_atoms(rng, 100, 24), rng.normal(size=(1500, 24)).astype(np.float32)
    whole = batch_omp(rows, atoms, 4)
    for part in (slice(0, 1), slice(7, 30), slice(1000, 1100)):
        alone = batch_omp(rows[part], atoms, 4)
        assert np.array_equal(alone.coefficients, whole.coefficients[part])
        assert np.array_equal(alone.indices, whole.indices[part])


def test_what_is_coded_exactly_stops_early():
    atoms = np.eye(4, dtype=np.float32)
    found = batch_omp(np.array([[0, 0, 0, 0], [0, -3, 0, 0], [1, 0, 2, 0]], np.float32), atoms, 3)
    assert found.indices.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert found.coefficients.tolist() == [[0, 0, 0], [-3, 0, 0], [2, 1, 0]]
    assert found.residuals.tolist() == [0, 0, 0]


def test_repeated_and_zero_atoms_are_not_picked_twice():
    atoms = np.array([[1, 0], [1, 0], [0, 0], [0.6, 0.8]], np.float32)
    found = batch_omp(np.array([[2.0, 1.0]], np.float32), atoms, 4)
    assert np.count_nonzero(found.coefficients) == 2
    assert found.residuals[0] == pytest.approx(0, abs=1e-6)


def test_ties_go_to_the_lowest_atom():
    assert batch_omp(np.array([[1.0, -1.0]], np.float32), np.eye(2, dtype=np.float32), 1).indices.tolist() == [[0]]


def test_refusals_carry_both_numbers():
    rows, atoms = np.zeros((2, 3), np.float32), np.eye(3, dtype=np.float32)
    with pytest.raises(InputError, match=r"sparsity 4 is outside 1 … 3"):
        batch_omp(rows, atoms, 4)
    with pytest.raises(DimensionMismatch, match="rows have 3 dimensions, atoms 5"):
        batch_omp(rows, np.eye(5, dtype=np.float32), 1)
