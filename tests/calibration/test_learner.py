"""Learning dictionaries: recovery, determinism, edge sizes, and both update rules."""

import numpy as np
import pytest
from gonogo_samples import gaussian, sparse_mixture, subspaces

from polykv.calibration import LearnerConfig, learn_dictionary
from polykv.calibration.learner import reseed, update_ksvd, update_mod
from polykv.codecs.omp import batch_omp, row_energies
from polykv.errors import DimensionMismatch, InputError, NonFiniteError
from polykv.npz import npz_bytes
from polykv.receipts import parse_json


def held_out(learned, rows):
    residuals = batch_omp(rows - learned.mean, learned.atoms, learned.config.sparsity).residuals
    return np.sqrt(residuals.sum() / row_energies(rows).sum())


@pytest.mark.parametrize("method", ["mod", "ksvd"])
def test_generating_atoms_are_recovered(method):
    """64 atoms, 3 a row, 4,096 rows: mean best-match correlation, five seeds."""
    found = []
    for seed in range(5):
        rows, atoms = sparse_mixture(seed)
        learned = learn_dictionary(rows, LearnerConfig(64, 3, method=method))
        found.append(np.abs(atoms @ learned.atoms.T).max(axis=1).mean())
    assert max(found) > 0.98
    assert np.mean(found) > 0.95


def test_a_union_of_subspaces_is_learned_and_noise_is_not():
    train, other = subspaces(0, (2048, 1024))
    assert held_out(learn_dictionary(train), other) < 0.01
    noise = learn_dictionary(gaussian(0))
    assert noise.train_relative_error < 0.63
    assert held_out(noise, gaussian(1)) > 0.74


@pytest.mark.parametrize("method", ["mod", "ksvd"])
def test_the_same_rows_give_the_same_bytes(method):
    rows, config = gaussian(0, 600, 16), LearnerConfig(64, 3, 5, method, center=True)
    first, second = (npz_bytes(learn_dictionary(rows, config).artifact()) for _ in range(2))
    assert first == second
    assert first != npz_bytes(learn_dictionary(rows[::-1], config).artifact())


def test_learning_lowers_the_error_and_atoms_have_unit_norm():
    learned = learn_dictionary(gaussian(2, 900, 24), LearnerConfig(64, 4, 8))
    history = [*learned.error_history, learned.train_relative_error]
    assert len(history) == 9
    assert history[-1] < 0.9 * history[0]
    np.testing.assert_allclose(np.linalg.norm(learned.atoms, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("update", [update_mod, update_ksvd])
def test_an_update_lowers_the_error_of_its_codes(update):
    """With the codes' support kept, least squares on the new atoms is never worse than on the old."""
    rows, _ = sparse_mixture(1, 500, 32, 2, 16)
    start = np.ascontiguousarray(rows[:32] / np.linalg.norm(rows[:32], axis=1, keepdims=True))
    codes = batch_omp(rows, start, 2)
    atoms, used = update(rows, codes, start, 0.0)
    assert used.sum() == np.count_nonzero(codes.coefficients)
    refitted = 0.0
    for row, picks, weights in zip(rows, codes.indices, codes.coefficients, strict=True):
        taken = atoms[picks[weights != 0]].T
        refitted += np.square(row - taken @ np.linalg.lstsq(taken, row, rcond=None)[0]).sum()
    assert refitted < codes.residuals.sum()


def test_mod_is_the_least_squares_dictionary():
    rows, _ = sparse_mixture(2, 400, 20, 3, 10)
    start = np.ascontiguousarray(rows[:20] / np.linalg.norm(rows[:20], axis=1, keepdims=True))
    codes = batch_omp(rows, start, 3)
    dense = np.zeros((400, 20))
    np.add.at(dense, (np.arange(400)[:, None], codes.indices), codes.coefficients)  # unused slots add 0 to atom 0
    expected = np.linalg.lstsq(dense, rows.astype(np.float64), rcond=None)[0]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(update_mod(rows, codes, start, 0.0)[0], expected, atol=1e-4)


def test_the_ridge_helps_where_rows_are_few():
    """128 atoms from 700 rows: the least-squares dictionary of each step chases single rows. Mean of three samples."""
    ratios = []
    for seed in range(3):
        train, other = subspaces(seed, (700, 700), 8, 6, 16)
        plain, ridged = (learn_dictionary(train, LearnerConfig(128, 4, 10, ridge=r)) for r in (0.0, 0.1))
        ratios.append(held_out(ridged, other) / held_out(plain, other))
    assert np.mean(ratios) < 1


def test_dead_and_repeated_atoms_become_the_worst_rows():
    atoms = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0]], np.float32)
    rows = np.array([[3, 0, 0], [0, 0, 5], [0, 0.5, 2]], np.float32)
    codes = batch_omp(rows, atoms, 1)
    fresh, gram = reseed(rows, codes, atoms, np.array([1, 0, 1]))
    assert fresh[0].tolist() == [1, 0, 0]
    assert fresh[1].tolist() == [0, 0, 1]  # unused: the worst row
    np.testing.assert_allclose(fresh[2], rows[2] / np.linalg.norm(rows[2]), rtol=1e-6)  # repeated: the next
    np.testing.assert_allclose(gram, fresh @ fresh.T)
    same, _ = reseed(rows, codes, np.eye(3, dtype=np.float32), np.ones(3))
    assert np.array_equal(same, np.eye(3))


def test_centring_is_part_of_the_dictionary():
    rows = gaussian(0, 500, 8) + 50
    raw, centred = (learn_dictionary(rows, LearnerConfig(16, 2, 5, center=c)) for c in (False, True))
    assert not raw.mean.any()
    np.testing.assert_allclose(centred.mean, rows.mean(axis=0), rtol=1e-5)
    assert centred.train_relative_error == pytest.approx(held_out(centred, rows), rel=1e-3)
    assert parse_json(bytes(centred.artifact()["learned"]))["learner"]["center"] is True


def test_one_vector_one_atom_one_dimension():
    one = learn_dictionary(np.array([[3.0, 4.0]]), LearnerConfig(1, 1))
    np.testing.assert_allclose(one.atoms, [[0.6, 0.8]], rtol=1e-6)
    assert one.train_relative_error < 1e-3
    line = learn_dictionary(gaussian(0, 300, 1))
    assert set(np.round(line.atoms.ravel(), 6)) <= {-1.0, 1.0}
    assert line.train_relative_error < 1e-3


def test_zero_vectors_teach_nothing():
    rows = gaussian(0, 400, 8)
    padded = np.concatenate([np.zeros((30, 8), np.float32), rows, np.zeros((5, 8), np.float32)])
    config = LearnerConfig(32, 2, 4)
    assert np.array_equal(learn_dictionary(padded, config).atoms, learn_dictionary(rows, config).atoms)


@pytest.mark.parametrize(
    ("rows", "config", "error", "text"),
    [
        (gaussian(0, 100, 8), {}, InputError, "256 atoms asked for, but only 100 of 100 rows"),
        (np.zeros((300, 8)), {}, InputError, "256 atoms asked for, but only 0 of 300 rows"),
        (np.full((300, 8), np.nan), {}, NonFiniteError, r"rows\[0, 0\] is nan"),
        (np.zeros(8), {}, DimensionMismatch, "1 axes"),
        (gaussian(0, 9, 8), {"n_atoms": 0}, InputError, "n_atoms is 0, must be at least 1"),
        (gaussian(0, 9, 8), {"n_atoms": 3}, InputError, "sparsity 4 > n_atoms 3"),
        (gaussian(0, 9, 8), {"ridge": -0.1}, InputError, "ridge is -0.1, must be finite and at least 0"),
        (gaussian(0, 9, 8), {"method": "sgd"}, InputError, "unknown learning method 'sgd'; known: mod, ksvd"),
    ],
)
def test_refusals(rows, config, error, text):
    with pytest.raises(error, match=text):
        learn_dictionary(rows, LearnerConfig(**config))
