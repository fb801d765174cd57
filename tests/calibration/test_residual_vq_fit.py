"""Fitting residual VQ: it wins where data has structure, follows its seed, and touches calibrate alone."""

from dataclasses import replace

import numpy as np
import pytest
from gonogo_samples import cell

from polykv.calibration.residual_vq import (
    WEIGHT_FLOOR,
    ResidualVqSettings,
    fit_residual_vq,
    key_weights,
    residual_vq_policy,
)
from polykv.calibration.sample import sample_of_cells
from polykv.codecs.residual_vq import residual_vq_codec
from polykv.codecs.trained import from_integers
from polykv.codecs.uniform import UniformCodec
from polykv.errors import InputError, PolicyError
from polykv.npz import npz_bytes
from polykv.policy_files import load_policy, write_policy

SMALL = ResidualVqSettings(stages=3, bits=5, iterations=4, beam=2)


def correlated(seed, n, head_dim=16, rank=4):
    """Rows near a space of `rank` dimensions, as keys of real heads are; the space is the same for every seed."""
    mixing = np.random.default_rng(99).normal(size=(rank, head_dim))
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, rank)) @ mixing + 0.1 * rng.normal(size=(n, head_dim)) + 1.5).astype(np.float32)


def relative_mse(codec, rows):
    return float(np.square(codec.decode(codec.encode(rows)) - rows).sum() / np.square(rows - rows.mean(axis=0)).sum())


def test_correlated_data_costs_a_fraction_of_the_error_of_uniform_levels():
    fitted, held_out = correlated(1, 3000), correlated(2, 500)
    uniform = UniformCodec(16, bits=2, mode="asymmetric")
    budget = uniform.nbytes(uniform.encode(held_out))
    codec = residual_vq_codec(fit_residual_vq(fitted, ResidualVqSettings(stages=8, bits=8, iterations=4)), beam=4)
    codes = codec.encode(held_out)
    assert codec.nbytes(codes) <= budget == 500 * 8
    assert relative_mse(codec, held_out) < 0.2 * relative_mse(uniform, held_out)


def test_no_structure_no_miracle():
    """White noise at half a bit a number: the error stays above the rate-distortion bound 2^(−2R)."""
    rows = [np.random.default_rng(s).normal(size=(2000, 16)).astype(np.float32) for s in (1, 2)]
    codec = residual_vq_codec(fit_residual_vq(rows[0], ResidualVqSettings(stages=1, bits=8)))
    assert 0.5 < relative_mse(codec, rows[1]) < 1.0


def test_the_same_rows_and_seed_give_the_same_bytes():
    rows = correlated(1, 200)
    made = [npz_bytes(fit_residual_vq(rows, replace(SMALL, seed=seed))) for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
    assert fit_residual_vq(rows, SMALL)["codebooks"].shape == (3, 32, 16)


def test_a_codeword_takes_a_byte_a_number_and_that_does_not_show():
    rows = correlated(1, 2000)
    arrays = fit_residual_vq(rows, replace(SMALL, stages=20))
    assert residual_vq_codec(arrays, stages=2).side_nbytes() == 2 * (32 * 16 + 4 * 16) + 4 * 16
    step = float(arrays["codebooks_scale"][0].max())
    assert step == pytest.approx(np.abs(from_integers(arrays, "codebooks")[0]).max() / 127)
    codec = residual_vq_codec(arrays, beam=4)
    left = rows - codec.decode(codec.encode(rows))
    assert np.sqrt(np.square(left).mean()) < 0.25 * step  # one rounding that nothing takes back leaves 0.29


def test_weights_shape_the_cells_and_not_the_codewords():
    rows = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    weights = np.repeat([0.1, 10.0], 8)
    even, uneven = (residual_vq_codec(fit_residual_vq(rows, SMALL, w)) for w in (None, weights))
    lost = [np.square(c.decode(c.encode(rows)) - rows).mean(axis=0) for c in (even, uneven)]
    assert lost[1] @ weights < 0.8 * (lost[0] @ weights)
    assert (lost[1] < 1.2).all()


def test_more_stages_and_a_gain_lower_the_error():
    rows = correlated(1, 600) * np.exp(np.random.default_rng(0).normal(size=(600, 1))).astype(np.float32)
    errors = [relative_mse(residual_vq_codec(fit_residual_vq(rows, replace(SMALL, stages=s))), rows) for s in (1, 2, 4)]
    assert errors[0] > errors[1] > errors[2]
    with_gain = residual_vq_codec(fit_residual_vq(rows, replace(SMALL, stages=1, gain=True)))
    assert with_gain.has_gain
    assert relative_mse(with_gain, rows) < errors[0]


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(InputError, match="31 calibration vectors cannot fit 32 codewords"):
        fit_residual_vq(correlated(1, 31), SMALL)
    with pytest.raises(InputError, match="16 positive numbers"):
        fit_residual_vq(correlated(1, 40), SMALL, np.zeros(16))
    for wrong in ({"bits": 4}, {"bits": 9}, {"stages": 0}, {"metric": "trace"}, {"seed": True}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} is"):
            replace(SMALL, **wrong)


def test_weights_are_what_a_key_error_does_to_the_output():
    """A small error in one dimension of all coded keys, by finite differences."""
    sample = sample_of_cells([cell("calibrate", range(3), n_tokens=40)], "key", 4, 4)
    weights = key_weights(sample)
    rng = np.random.default_rng(0)
    signs = 1e-4 * rng.choice([-1, 1], size=(200, len(sample.rows)))

    def moved(dimension):
        total = 0.0
        for sign in signs:
            coded = sample.rows.astype(np.float64)
            coded[:, dimension] += sign
            total += sum(np.square(probe.errors(coded)[0]).sum() for probe in sample.probes)
        return total

    measured = np.array([moved(d) for d in range(8)])
    np.testing.assert_allclose(weights, measured / measured.mean(), rtol=0.25)
    assert weights.min() >= WEIGHT_FLOOR


def test_weights_count_coded_pairs_only_by_their_squared_attention():
    """The formula pair by pair; a head that reads exact tokens alone has no say."""
    sample = sample_of_cells([cell("calibrate", range(2), n_tokens=40)], "key", 4, 4)
    first, *others = sample.probes
    first = replace(first, queries=1e3 * np.eye(8)[:1].repeat(len(first.queries), 0), exact=np.ones_like(first.exact))
    sample = replace(sample, probes=(first, *others))
    wanted = np.zeros(8)
    for probe in others:
        for i, q in enumerate(probe.queries):
            o = probe.outputs[i]
            for j in np.flatnonzero(~probe.exact[i] & probe.mask[i]):
                wanted += (
                    np.exp(probe.log_weights[i, j]) ** 2
                    * ((probe.values[j] - o) @ (probe.values[j] - o))
                    * q**2
                    / (o @ o)
                )
    np.testing.assert_allclose(key_weights(sample), np.maximum(wanted / wanted.mean(), WEIGHT_FLOOR), rtol=1e-9)
    with pytest.raises(InputError, match="nothing to weigh"):
        key_weights(replace(sample, probes=(first,)))


def test_a_policy_has_codebooks_for_every_cell_and_survives_its_files(tmp_path):
    cells = [cell("calibrate", range(2), kv_head=head, n_tokens=50) for head in (0, 1)]
    policy, artifacts = residual_vq_policy(cells, SMALL)
    assert sorted(policy.cells) == ["7/0", "7/1"]
    assert len(artifacts) == 4
    path = write_policy(tmp_path, policy, artifacts)
    assert path.name == "residual_vq.policy.json"
    again, load = load_policy(str(path))
    assert again.digest() == policy.digest()
    codec = again.codec("pool", "key", 7, 1, 8, load)
    rows = cells[1].keys[0, 4:50]
    direct = policy.codec("shell", "key", 7, 1, 8, artifacts.__getitem__)
    np.testing.assert_array_equal(codec.decode(codec.encode(rows)), direct.decode(direct.encode(rows)))
    assert not np.allclose(codec.arrays["weights"], 1)
    assert (again.codec("pool", "value", 7, 1, 8, load).arrays["weights"] == 1).all()


def test_only_calibrate_is_fitted_on(tmp_path):
    with pytest.raises(InputError, match="split calibrate alone, got 'confirm' of cell 7/0"):
        residual_vq_policy([cell("confirm", range(2))], SMALL)
    with pytest.raises(InputError, match="nothing to fit"):
        residual_vq_policy([], SMALL)
    policy, artifacts = residual_vq_policy([cell("calibrate", range(2))], replace(SMALL, metric="plain"))
    with pytest.raises(PolicyError, match="not given"):
        write_policy(tmp_path, policy, {})
    first, second = artifacts
    with pytest.raises(PolicyError, match="have the digest"):
        write_policy(tmp_path, policy, {first: artifacts[second], second: artifacts[first]})
