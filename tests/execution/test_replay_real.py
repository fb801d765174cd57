"""The real replay through the engines: figures do not depend on the cut, the engine or the workers."""

from __future__ import annotations

import pytest
import standins
from replay_world import run_once

from polykv.execution.engines import Engine
from polykv.execution.steps import STEPS
from polykv.policy import CompressionPolicy
from polykv.replay.config import SweepConfig
from polykv.schemas import CONTROLS, RESULTS
from polykv.storage.results import read_rows

POLICIES = tuple(CompressionPolicy.named(name) for name in ("two_tier", "int8", "exact"))
CONFIG = SweepConfig((4, 16, 96))
SPLITS = ("calibrate",) * 2 + ("select",) * 6 + ("confirm",) * 6


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """real(name, …): a replay with the real functions; `real.whole` is the serial one in one cut."""
    folder = tmp_path_factory.mktemp("real")
    standins.write_store(folder / "store", SPLITS, n_tokens=96, positions=(82, 88, 94))

    def run(name: str, **options):
        options["cells"] = [(1, 0), (4, 1)]
        return run_once(folder / name, folder / "store", policies=POLICIES, config=CONFIG, steps=STEPS, **options)

    run.whole = run("whole")
    return run


def test_every_row_of_the_real_replay_is_sound(real):
    rows = read_rows(real.whole.path / "results.parquet", RESULTS)
    assert len(rows) == 2 * 2 * 3 * 4
    assert {(row["status"], row["reason"]) for row in rows} == {("ok", None)}
    exact = [r for r in rows if r["policy"] == "exact" and r["is_full"] and r["row_kind"] == "candidate"]
    assert len(exact) == 4
    assert all(r["verdict"] == "pass" and r["output_cosine_mean"] > 0.999999 for r in exact)
    controls = read_rows(real.whole.path / "controls.parquet", CONTROLS)
    assert all(row["as_expected"] for row in controls)


def test_one_budget_a_job_gives_the_same_bytes(real):
    assert real("cut", ks_per_job=1).tables == real.whole.tables


@pytest.mark.slow
@pytest.mark.parametrize("ks_per_job", [None, 2])
def test_two_workers_give_the_same_bytes(real, ks_per_job):
    assert (
        real(f"two-{ks_per_job}", ks_per_job=ks_per_job, engine=Engine("local", n_workers=2)).tables
        == real.whole.tables
    )
