"""A policy of entropy-coded keys and values in a sweep: the budgets agree, and no query is told of later tokens."""

import numpy as np
import pytest

from polykv.calibration.sample import sample_of_cells
from polykv.calibration.transform import fit_basis, key_metric, value_metric
from polykv.calibration.transform_ecsq import fit_transform_ecsq, step_for_bits
from polykv.codecs.transform_ecsq import transform_ecsq_codec
from polykv.policy import CompressionPolicy
from polykv.replay.config import SweepConfig
from polykv.replay.sweep import sweep_cell
from tests.replay.cells import make_cell

SHAPE = {"n_passages": 6, "n_tokens": 40}


@pytest.fixture(scope="module")
def coded():
    """(policy with 40 bits a vector of 8, its artifacts)."""
    artifacts, tier = {}, {}
    for stream, metric in (("key", key_metric), ("value", value_metric)):
        sample = sample_of_cells([make_cell(seed=5, split="calibrate", **SHAPE)], stream, 2, 4)
        basis = fit_basis(sample.rows, metric(sample))
        arrays = fit_transform_ecsq(basis, sample.rows, step_for_bits(basis, 40))
        codec = transform_ecsq_codec(arrays)
        artifacts[codec.artifact] = arrays
        tier[stream] = {"id": codec.codec_id, "artifact": codec.artifact, "block_tokens": 8}
    return CompressionPolicy("coded", sink_tokens=2, recent_window=4, pool=tier, shell=tier), artifacts.__getitem__


def test_a_sweep_is_close_to_exact_and_counts_real_bytes(coded):
    policy, artifacts = coded
    rows = sweep_cell(make_cell(**SHAPE), policy, SweepConfig((4, 40)), artifacts=artifacts)
    full = next(row for row in rows if row["candidate_k"] == 40)
    assert full["output_cosine_mean"] > 0.995
    # 5 bytes a vector, two vectors a token, and at most 10 bytes a block of 8 for its end and its offset
    assert 2 * 4.5 < full["bytes_per_token"] < 2 * (6.5 + 10 / 8)
    alone = sweep_cell(make_cell(**SHAPE), policy, SweepConfig((4,)), artifacts=artifacts)
    assert alone[0] == rows[0]


def test_later_tokens_change_nothing_that_a_query_sees(coded):
    policy, artifacts = coded
    cell = make_cell(**SHAPE)
    config = SweepConfig((40,))
    before = sweep_cell(cell, policy, config, artifacts=artifacts)[0]
    last = int(cell.query_position.max())
    cell.keys[:, last + 1 :] = 9.0
    cell.values[:, last + 1 :] = -9.0
    after = sweep_cell(cell, policy, config, artifacts=artifacts)[0]
    assert after["bytes_per_token"] != before["bytes_per_token"]
    seen = [name for name in before if "cosine" in name or "relative_error" in name or "kl" in name]
    assert seen
    for name in seen:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
