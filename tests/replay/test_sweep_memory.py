"""A worker's peak memory: a few times the slabs of its job, whatever the budgets."""

import tracemalloc

import pytest

from polykv.policy import Policy
from polykv.replay.config import SweepConfig
from polykv.replay.sweep import sweep_cell
from tests.replay.cells import make_cell

TIMES_ITS_SLABS = 4


def slab_bytes(cell):
    arrays = (cell.keys, cell.values, cell.queries, cell.outputs)
    logits = () if cell.logits is None else (cell.logits.w_o, cell.logits.wlm_gamma, cell.logits.full)
    return sum(array.nbytes for array in (*arrays, *logits))


@pytest.mark.parametrize("policy", ["two_tier", "reference"])
@pytest.mark.parametrize("n_budgets", [1, 16])
def test_a_sweep_needs_a_few_times_its_slabs(policy, n_budgets):
    cell = make_cell(n_passages=12, n_tokens=512, n_queries=8, group=3, head_dim=64, value_dim=64, logits=True)
    config = SweepConfig(tuple(range(512 // n_budgets, 513, 512 // n_budgets)))
    tracemalloc.start()
    try:
        sweep_cell(cell, Policy.named(policy), config)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < TIMES_ITS_SLABS * slab_bytes(cell), f"{peak} bytes for slabs of {slab_bytes(cell)}"
