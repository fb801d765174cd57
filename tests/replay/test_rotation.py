"""RoPE as numbers: what a rotation must keep, what it does to codes, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.errors import DimensionMismatch, InputError, PolicyError
from polykv.policy import CompressionPolicy
from polykv.pool import SharedKVPool
from polykv.replay.config import SweepConfig
from polykv.replay.means import key_mean
from polykv.replay.passage import encode_tiers
from polykv.replay.sweep import cell_codecs, sweep_cell
from polykv.rotation import Rotation, rotation_from_arrays, rotation_to_arrays
from polykv.shape import KvTensorShape
from tests.replay.cells import make_cell

DIGEST = "ab" * 32
LLAMA = Rotation(10000.0 ** (-2 * np.arange(4) / 8))
KS = SweepConfig((4, 24))


def rotations(interleaved, n_pairs=3):
    return Rotation(np.array([1.0, 0.1, 0.013])[:n_pairs], interleaved)


def artifacts(of=None):
    arrays = rotation_to_arrays(of or {3: LLAMA})
    return {DIGEST: arrays}.__getitem__


def policy(codec, **changes):
    tier = {"key": codec, "value": codec}
    return CompressionPolicy("before_rope", pool=tier, shell=tier, **{"key_rotation": DIGEST, **changes})


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(0, 5000), st.integers(1, 3))
def test_undo_takes_back_what_apply_did_and_norms_stay(seed, interleaved, start, n_pairs):
    vectors = np.random.default_rng(seed).standard_normal((7, 8)).astype(np.float32)
    rotation, positions = rotations(interleaved, n_pairs), start + np.arange(7)
    turned = rotation.apply(vectors, positions)
    np.testing.assert_allclose(rotation.undo(turned, positions), vectors, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(vectors, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(turned[:, 2 * n_pairs :], vectors[:, 2 * n_pairs :])
    assert turned.dtype == np.float32


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(0, 300), st.integers(0, 3000))
def test_dot_products_know_only_the_distance(seed, interleaved, distance, start):
    q, k = np.random.default_rng(seed).standard_normal((2, 1, 8)).astype(np.float32)
    rotation = rotations(interleaved)

    def dot(at):
        return float((rotation.apply(q, [at + distance]) @ rotation.apply(k, [at]).T)[0, 0])

    assert dot(start) == pytest.approx(dot(0), abs=1e-5)


def test_pairs_are_halves_or_neighbours_and_turn_forward():
    vectors = np.array([[1, 2, 3, 4, 5]], np.float32)
    quarter = np.full(2, np.pi / 2)
    np.testing.assert_allclose(Rotation(quarter).apply(vectors, [1]), [[-3, -4, 1, 2, 5]], atol=1e-6)
    np.testing.assert_allclose(Rotation(quarter, True).apply(vectors, [1]), [[-2, 1, -4, 3, 5]], atol=1e-6)
    np.testing.assert_array_equal(Rotation(np.zeros(2)).apply(vectors, [9]), vectors)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotations_survive_their_arrays(interleaved):
    kept = {2: rotations(interleaved), 10: rotations(interleaved, 2)}
    arrays = rotation_to_arrays(kept)
    assert {name: (a.dtype.str, a.shape) for name, a in arrays.items()} == {
        "frequencies_2": ("<f8", (3,)), "frequencies_10": ("<f8", (2,)), "interleaved": ("|u1", (1,)),
    }  # fmt: skip
    found = rotation_from_arrays(arrays)
    assert found.keys() == kept.keys()
    for layer, rotation in found.items():
        assert rotation.interleaved is interleaved
        np.testing.assert_array_equal(rotation.frequencies, kept[layer].frequencies)


BROKEN = {
    "no flag": {"frequencies_0": np.ones(2)},
    "no layer": {"interleaved": np.zeros(1, np.uint8)},
    "another array": {**rotation_to_arrays({0: LLAMA}), "key_mean_0_0": np.ones(2)},
    "a flag of two": {"frequencies_0": np.ones(2), "interleaved": np.array([2], np.uint8)},
    "no number": {"frequencies_0": np.array([1.0, np.nan]), "interleaved": np.zeros(1, np.uint8)},
}


@pytest.mark.parametrize("kind", BROKEN)
def test_arrays_that_are_no_rotation_are_refused(kind):
    with pytest.raises(InputError, match="rotation"):
        rotation_from_arrays(BROKEN[kind])


def test_wrong_shapes_and_mixed_pairings_are_refused():
    with pytest.raises(InputError, match="one pairing"):
        rotation_to_arrays({0: rotations(True), 1: rotations(False)})
    with pytest.raises(DimensionMismatch, match=r"6 dimensions.*\(2, 5\)"):
        rotations(True).apply(np.ones((2, 5), np.float32), [0, 1])
    with pytest.raises(DimensionMismatch, match=r"2 vectors.*\(3,\)"):
        rotations(True).apply(np.ones((2, 6), np.float32), [0, 1, 2])


@pytest.mark.parametrize("centred", [False, True])
def test_scores_are_those_of_the_decoded_keys_turned_to_their_positions(centred):
    cell = make_cell()
    keys, values = cell.keys[0], cell.values[0]
    mean = np.arange(8, dtype=np.float32) if centred else None
    codecs = cell_codecs(policy({"id": "uniform", "bits": 4, "mode": "asymmetric", "axis": "vector"}), cell)
    encoded = encode_tiers(keys, values, codecs, 10, mean, LLAMA)
    for t in (0, 9, 10, 23):
        plain = LLAMA.undo(keys[t : t + 1], [t]) - (0 if mean is None else mean)
        codec = codecs.pool_key if t < 10 else codecs.shell_key
        again = codec.decode(codec.encode(plain)) + (0 if mean is None else mean)
        expected = cell.queries[0, 0] @ LLAMA.apply(again, [t])[0]
        np.testing.assert_allclose(encoded.scores(cell.queries[0, 0])[:, t], expected, atol=1e-5)


@pytest.mark.parametrize("centred", [False, True])
def test_exact_codes_before_rope_change_nothing(centred):
    cell = make_cell(logits=True, sliding_window=9)
    mean = key_mean(make_cell(seed=5, split="calibrate"), 0, LLAMA) if centred else None
    # exact tokens beside coded ones: a constant that only the coded ones got would show
    window = {"sink_tokens": 2, "recent_window": 4, "center_keys": "calibrate_mean" if centred else "off"}
    chosen = policy({"id": "exact_f32_fallback"}, **window)
    rows = [row for row in sweep_cell(cell, chosen, KS, mean, artifacts()) if row["is_full"]]
    assert [row["output_cosine_mean"] > 1 - 1e-10 for row in rows] == [True]
    assert rows[0]["attention_kl_mean"] < 1e-10


def test_a_cell_made_by_rope_is_coded_better_before_it():
    """Keys that stand still before RoPE: a mean takes nearly all of them, and after RoPE hardly any."""
    cell, fitted = (make_cell(seed=s, n_tokens=64, head_dim=8, group=1) for s in (1, 2))
    for data in (cell, fitted):
        for keys in data.keys:
            still = np.full((64, 8), 6.0) + 0.3 * np.random.default_rng(3).standard_normal((64, 8))
            keys[:] = LLAMA.apply(still.astype(np.float32), np.arange(64))
    codec = {"id": "uniform", "bits": 4, "mode": "symmetric", "axis": "vector"}
    errors = {}
    for rotation in ("keep", DIGEST):
        chosen = policy(codec, key_rotation=rotation, center_keys="calibrate_mean")
        turned = LLAMA if rotation == DIGEST else None
        codecs, mean = cell_codecs(chosen, cell), key_mean(fitted, 0, turned)
        encoded = encode_tiers(cell.keys[0], cell.values[0], codecs, 32, mean, turned)
        queries = cell.queries[0, 0]
        offset = 0 if turned is not None else (queries @ mean)[:, None]
        errors[rotation] = np.abs(encoded.scores(queries) + offset - queries @ cell.keys[0].T).mean()
    assert errors[DIGEST] < errors["keep"] / 4


def test_the_mean_is_that_of_unrotated_keys():
    data = make_cell(lengths=[24, 7], n_passages=2)
    turned = [LLAMA.undo(data.keys[p, :n], np.arange(n))[4:] for p, n in enumerate((24, 7))]
    np.testing.assert_allclose(key_mean(data, 4, LLAMA), np.concatenate(turned).mean(axis=0), rtol=1e-5)


INT8 = {"id": "uniform", "bits": 8, "mode": "symmetric", "axis": "vector"}
REFUSED = {
    "no loader": (INT8, None, "no artifact loader"),
    "another model's layers": (INT8, artifacts({0: LLAMA}), r"no layer 3; it has \[0\]"),
    "wider than a key": (INT8, artifacts({3: Rotation(np.ones(5))}), "turns 10 numbers of a key in layer 3, which has 8"),
    "another artifact": (INT8, {DIGEST: {"key_mean_3_0": np.ones(8)}}.__getitem__, "holds frequencies_LAYER"),
    "a query that is quantised": ({"id": "fib_k4_n32", "query_mode": "gram"}, artifacts(), "query_mode 'gram'"),
    "a sketch for scores": ({"id": "turbo_8bit", "qjl": "unit_norm"}, artifacts(), "qjl 'unit_norm'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_a_rotation_that_cannot_be_honoured_is_refused(kind):
    codec, loader, words = REFUSED[kind]
    with pytest.raises(PolicyError, match=words):
        sweep_cell(make_cell(), policy(codec), KS, None, loader)


def test_a_pool_refuses_for_it_knows_no_positions():
    shape = KvTensorShape("gqa", 2, 4, 2, 8, 32)
    rows = [("t0", np.ones(shape.row_length, np.float32))]
    with pytest.raises(PolicyError, match=r"cell 0/0 before RoPE.*key_rotation \"keep\""):
        SharedKVPool.build(rows, shape, 1, policy(INT8))


def test_one_cell_can_keep_its_keys_as_they_are():
    chosen = policy(INT8, cells={"3/0": {"key_rotation": "keep"}})
    kept = sweep_cell(make_cell(), chosen, KS, None, None)
    plain = sweep_cell(make_cell(), CompressionPolicy("before_rope", pool=chosen.pool, shell=chosen.shell), KS)
    different = {name for a, b in zip(kept, plain, strict=True) for name in a if a[name] != b[name]}
    assert different == {"policy_digest"}
