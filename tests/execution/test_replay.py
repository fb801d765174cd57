"""A replay end to end, serially: every row there, once, whatever was cut, lost or damaged."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import subprocess

import numpy as np
import pytest
import standins
from replay_world import CONFIG, N_CONTROLS, N_PARTS, N_RESULTS, POLICIES
from standins import CELLS, STEPS, StandInConfig, StandInPolicy

from polykv.errors import InputError, StorageFullError
from polykv.execution.engines import Engine
from polykv.execution.plan import plan_replay, replay_config
from polykv.schemas import CONTROLS, RESULTS, SELECTION
from polykv.storage import CaptureStore
from polykv.storage.parts import write_part
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory


def test_every_row_is_there_once_and_right(replay, store_path):
    done = replay()
    rows = read_rows(done.path / "results.parquet", RESULTS)
    identities = [(r["layer"], r["kv_head"], r["split"], r["policy"], r["row_kind"], r["candidate_k"]) for r in rows]
    budgets = [("window_only", 0), ("candidate", 2), ("candidate", 8), ("candidate", 16)]
    wanted = [
        (*cell, split, policy.name, *budget)
        for cell in CELLS
        for split in ("select", "confirm")
        for policy in POLICIES
        for budget in budgets
    ]
    assert sorted(identities) == sorted(wanted)
    store = CaptureStore.open(str(store_path))
    for policy in POLICIES:
        mean = standins.key_mean(store.cell(4, 1, "calibrate"), 2) if policy.name == "centred" else None
        expected = standins.sweep_cell(store.cell(4, 1, "confirm"), policy, CONFIG, mean)
        for row in expected:
            key = {name: row[name] for name in (*RESULTS.key, "output_cosine_mean")}
            assert any(key.items() <= found.items() for found in rows)
    assert len(read_rows(done.path / "controls.parquet", CONTROLS)) == N_CONTROLS
    assert len(read_rows(done.path / "selection.parquet", SELECTION)) == len(CELLS) * len(POLICIES)
    summary = done.summary
    assert (summary.rows_computed, summary.rows_reused, summary.rows_failed) == (N_RESULTS + N_CONTROLS, 0, 0)
    state = RunDirectory.open(done.path).state
    assert state["status"] == "complete"
    assert set(state["outputs"]) == {"results.parquet", "controls.parquet", "selection.parquet"}
    assert {row["run_id"] for row in rows} == {state["run_id"]}


@pytest.mark.parametrize("ks_per_job", [1, 2, 99])
def test_the_tables_are_the_same_bytes_whatever_the_cut(replay, plan, whole, ks_per_job):
    cut = replay("cut", ks_per_job=ks_per_job)
    assert cut.tables == whole.tables
    assert len(plan.calls("sweep")) == 12 * -(-3 // ks_per_job)


def test_a_rerun_computes_nothing_and_starts_no_cluster(replay, plan):
    first = replay()
    plan.forget()
    again = replay(engine=Engine("address", address="tcp://127.0.0.1:9"))
    assert plan.calls() == []
    assert again.tables == first.tables
    assert (again.summary.rows_reused, again.summary.jobs_run) == (N_RESULTS + N_CONTROLS, 0)


def test_another_cut_reuses_the_parts_that_are_left(replay, plan):
    first = replay(ks_per_job=1)
    gone = sorted((first.path / "parts").glob("results-*"))[::3]
    for path in gone:
        path.unlink()
    plan.forget()
    again = replay(ks_per_job=None)
    assert again.tables == first.tables
    asked = sum(len(call.split(",k")[1].strip(",").split(",")) for call in plan.calls("sweep"))
    assert asked == len(gone)
    assert plan.calls("control") == []


def test_a_lost_window_only_row_alone_is_replayed(replay, plan):
    first = replay(ks_per_job=1)
    parts = list((first.path / "parts").glob("results-L001-H00-select-plain-*"))
    holder = [p for p in parts if any(r["row_kind"] == "window_only" for r in read_rows(p, RESULTS))]
    assert len(holder) == 1
    kept = [r for r in read_rows(holder[0], RESULTS) if r["row_kind"] == "candidate"]
    holder[0].unlink()

    write_part(first.path / "parts", "rest", RESULTS, kept)
    plan.forget()
    again = replay()
    assert again.summary.rows_computed == 1
    assert again.tables == first.tables


def test_a_failed_cell_is_rows_with_a_reason_and_the_next_run_repairs_it(replay, plan, whole):
    plan.set(sweep_1_0_confirm_centred=("raise", None), control_4_0_select=("raise", None))
    hurt = replay("hurt")
    rows = read_rows(hurt.path / "results.parquet", RESULTS)
    failed = [r for r in rows if r["status"] == "failed"]
    assert len(rows) == N_RESULTS
    assert {(r["layer"], r["kv_head"], r["split"], r["policy"]) for r in failed} == {(1, 0, "confirm", "centred")}
    assert [r["candidate_k"] for r in failed] == [2, 8, 16, 0]
    assert all(r["reason"].startswith("ValueError: planned failure of sweep,1,0,confirm,centred") for r in failed)
    assert all(r["output_cosine_mean"] is None and r["verdict"] is None for r in failed)
    assert [r["is_full"] for r in failed] == [False, False, True, False]
    controls = [r for r in read_rows(hurt.path / "controls.parquet", CONTROLS) if r["status"] == "failed"]
    assert [(r["control"], r["expected"]) for r in controls] == sorted(standins.CONTROLS_EXPECTED.items())
    assert hurt.summary.rows_failed == 8
    assert sum(hurt.summary.failures.values()) == 8
    assert RunDirectory.open(hurt.path).status == "failed"
    whole_rows = read_rows(whole.path / "results.parquet", RESULTS)
    assert [r["row_digest"] for r in rows] == [r["row_digest"] for r in whole_rows]

    plan.set()
    plan.forget()
    mended = replay("hurt")
    assert mended.tables == whole.tables
    assert len(plan.calls()) == 2
    assert RunDirectory.open(hurt.path).status == "complete"


def test_a_budget_that_fails_alone_is_one_failed_row(replay, plan, whole):
    plan.set(sweep_1_0_select_plain_k8_=("raise", None))
    hurt = replay(ks_per_job=1)
    failed = [r for r in read_rows(hurt.path / "results.parquet", RESULTS) if r["status"] == "failed"]
    assert [(r["layer"], r["split"], r["policy"], r["candidate_k"]) for r in failed] == [(1, "select", "plain", 8)]
    plan.set()
    assert replay().tables == whole.tables


def test_a_mean_that_cannot_be_fitted_fails_its_cell_and_policy_alone(replay, plan, whole):
    plan.set(mean_4_0=("raise", None))
    hurt = replay("hurt")
    failed = [r for r in read_rows(hurt.path / "results.parquet", RESULTS) if r["status"] == "failed"]
    assert {(r["layer"], r["kv_head"], r["policy"]) for r in failed} == {(4, 0, "centred")}
    assert len(failed) == 8
    assert failed[0]["reason"].startswith("the keys' mean could not be fitted: ValueError: planned failure of mean,4,0")
    plan.set()
    assert replay("hurt").tables == whole.tables


def test_means_are_fitted_once_a_cell_and_a_damaged_one_again(replay, plan):
    first = replay()
    assert len(plan.calls("mean")) == len(CELLS)
    for part in (first.path / "parts").glob("results-*centred*"):
        part.unlink()
    damaged = sorted((first.path / "artifacts").glob("*.npz"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-7])
    plan.forget()
    assert replay().tables == first.tables
    assert len(plan.calls("mean")) == 1


def test_without_calibrate_passages_keys_are_not_centred_and_the_run_says_so(replay, tmp_path, plan):
    standins.write_store(tmp_path / "bare", splits=("confirm", "confirm"))
    done = replay(store=tmp_path / "bare")
    assert plan.calls("mean") == []
    assert done.summary.notes == (
        "the store has no passage in split select: no rows for it",
        "the store has no passage in split calibrate: keys are not centred in centred",
    )
    assert RunDirectory.open(done.path).state["sessions"][0]["replay"]["notes"] == list(done.summary.notes)


def test_centring_is_the_cells_own(replay, plan):
    policy = StandInPolicy("mixed", center_keys="calibrate_mean", off_in=((4, 0),))
    mixed = replay(policies=[policy])
    assert plan.calls("mean") == ["mean,1,0,calibrate,", "mean,4,1,calibrate,"]
    assert mixed.summary.rows_failed == 0


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_damaged_parts_are_set_aside_and_computed_again(replay, plan, damage):
    first = replay()
    part = sorted((first.path / "parts").glob("results-L004-H01-confirm-plain-*"))[0]
    if damage == "delete":
        part.unlink()
    elif damage == "truncate":
        os.truncate(part, 100)
    else:
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(bytes(data))
    plan.forget()
    again = replay()
    assert again.tables == first.tables
    assert plan.calls() == ["sweep,4,1,confirm,plain,k2,8,16,"]
    assert again.summary.parts_set_aside == (() if damage == "delete" else (part.name + ".damaged",))


def test_a_damaged_slab_is_a_failed_row_that_names_it(replay, store_path, tmp_path):
    shutil.copytree(store_path, tmp_path / "copy")
    (chunk,) = (tmp_path / "copy" / "layers" / "004" / "k").glob("*2.1.0.0")  # passage 2, KV head 1
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(bytes(data))
    done = replay(store=tmp_path / "copy")
    failed = [r for r in read_rows(done.path / "results.parquet", RESULTS) if r["status"] == "failed"]
    assert {(r["layer"], r["kv_head"], r["split"]) for r in failed} == {(4, 1, "confirm")}
    assert "DamagedStoreError" in failed[0]["reason"]
    assert "layer 4" in failed[0]["reason"]


def test_an_interrupt_keeps_what_is_done(replay, plan, whole, tmp_path):
    plan.set(sweep_4_0_select=("interrupt", None))
    with pytest.raises(KeyboardInterrupt):
        replay()
    assert RunDirectory.open(tmp_path / "run").status == "interrupted"
    kept = len(list((tmp_path / "run" / "parts").iterdir()))
    assert kept > 0
    plan.set()
    plan.forget()
    done = replay()
    assert len(plan.calls("sweep")) + len(plan.calls("control")) == N_PARTS - kept
    assert done.tables == whole.tables


def test_a_full_disk_in_a_job_stops_the_run_and_keeps_its_parts(replay, plan, tmp_path):
    plan.set(sweep_4_0_select=("full", None))
    with pytest.raises(StorageFullError, match="planned: no space"):
        replay()
    assert RunDirectory.open(tmp_path / "run").status == "failed"
    assert not (tmp_path / "run" / "results.parquet").exists()
    kept = len(list((tmp_path / "run" / "parts").iterdir()))
    plan.set()
    plan.forget()
    replay()
    assert len(plan.calls("sweep")) + len(plan.calls("control")) == N_PARTS - kept


def test_a_disk_that_really_runs_full_loses_nothing(replay, plan, whole, tmp_path):
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.decode().strip()}")
    try:
        with pytest.raises(StorageFullError, match="free space, then run the same command again"):
            replay("small/run")
        kept = len(list((place / "run" / "parts").glob("*.parquet")))
        assert kept > 0
        subprocess.run(["mount", "-o", "remount,size=8m", str(place)], check=True)
        plan.forget()
        done = replay("small/run")
        assert len(plan.calls("sweep")) + len(plan.calls("control")) == N_PARTS - kept
        assert done.summary.parts_set_aside == ()
        assert done.tables == whole.tables
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"policies": ()}, "no policy to replay"),
        ({"policies": (StandInPolicy("x"), StandInPolicy("x", 2.0))}, "two policies are named 'x'"),
        ({"config": StandInConfig(())}, "candidate_ks is empty"),
        ({"ks_per_job": 0}, "ks_per_job is 0"),
        ({"cells": [(9, 0)]}, "cell 9/0 is not in the capture.*3 cells, 1/0 to 4/1"),
        ({"cells": []}, "no cell to replay"),
    ],
)
def test_what_cannot_be_planned_is_refused_before_any_work(replay, plan, options, text):
    with pytest.raises(InputError, match=text):
        replay(**options)
    assert plan.calls() == []


def test_chosen_cells_alone_are_replayed(replay):
    done = replay(cells=[(4, 1), (1, 0), (4, 1)])
    cells = {(r["layer"], r["kv_head"]) for r in read_rows(done.path / "results.parquet", RESULTS)}
    assert cells == {(1, 0), (4, 1)}


def test_progress_counts_jobs_and_ends_at_the_total(replay, plan):
    plan.set(mean_4_0=("raise", None), control_1_0=("raise", None))
    seen: list[tuple[int, int, int]] = []
    done = replay(on_progress=lambda *counts: seen.append(counts))
    total = 3 + 6 + 12  # means, controls, sweeps
    assert [counts[0] for counts in seen] == list(range(total + 1))
    assert seen[-1] == (total, 1 + 2 + 2, total)
    assert (done.summary.jobs_run, done.summary.jobs_failed) == (total, 5)


def test_jobs_are_small_and_picklable(tmp_path, store_path):
    store = CaptureStore.open(str(store_path))
    with RunDirectory.create_or_resume(tmp_path / "run", replay_config(store, POLICIES, CONFIG)) as run:
        plan = plan_replay(store, POLICIES, CONFIG, run, steps=STEPS)
    for job in (*plan.jobs, *plan.means):
        data = pickle.dumps(job)
        assert pickle.loads(data) == job
        assert len(data) < 4000


def digests(store, tmp_path, policies=POLICIES[:1], config=CONFIG, ks_per_job=None) -> dict:
    """(layer, kv_head, split, row_kind, candidate_k) → row digest of a plan."""
    with RunDirectory.create_or_resume(tmp_path / os.urandom(4).hex(), {"any": 1}) as run:
        plan = plan_replay(store, policies, config, run, ks_per_job, steps=STEPS)
    return {
        (job.place.layer, job.place.kv_head, job.place.split, *row[:-1]): row[-1]
        for job in plan.jobs
        for row in job.rows
    }


def test_row_digests_differ_row_by_row_and_never_with_the_cut(store_path, tmp_path):
    store = CaptureStore.open(str(store_path))
    base = digests(store, tmp_path)
    assert len(set(base.values())) == len(base) == 3 * 2 * (4 + 4)
    assert digests(store, tmp_path, ks_per_job=1) == base
    fewer = digests(store, tmp_path, config=dataclasses.replace(CONFIG, candidate_ks=(8,)))
    assert fewer.items() < base.items()


@pytest.mark.parametrize("change", [{"seed": 1}, {"limit": 0.6}, {"shared_tokens": 4}])
def test_every_setting_of_the_sweep_is_in_every_row_digest(store_path, tmp_path, change):
    store = CaptureStore.open(str(store_path))
    changed = digests(store, tmp_path, config=dataclasses.replace(CONFIG, **change))
    assert not set(changed.values()) & set(digests(store, tmp_path).values())


def test_policy_numerics_version_and_data_are_in_the_row_digest(store_path, tmp_path, monkeypatch):
    store = CaptureStore.open(str(store_path))
    base = digests(store, tmp_path)
    louder = digests(store, tmp_path, policies=[StandInPolicy("plain", scale=2.0)])
    assert {k for k in base if base[k] == louder[k]} == {k for k in base if k[3] in standins.CONTROLS_EXPECTED}
    standins.write_store(tmp_path / "other", splits=("calibrate", "select", "select", "confirm"))
    assert not set(digests(CaptureStore.open(str(tmp_path / "other")), tmp_path).values()) & set(base.values())
    monkeypatch.setattr("polykv.execution.digests.NUMERICS_VERSION", 2)
    assert not set(digests(store, tmp_path).values()) & set(base.values())


def test_centred_rows_depend_on_the_calibrate_slabs(tmp_path, store_path):
    store = CaptureStore.open(str(store_path))
    before = digests(store, tmp_path, policies=POLICIES[1:])
    real = store.cell_digests

    def moved(layer: int, kv_head: int, split: str) -> dict[str, str]:
        return real(layer, kv_head, split) | ({"layers/x": "changed"} if split == "calibrate" else {})

    store.cell_digests = moved
    after = digests(store, tmp_path, policies=POLICIES[1:])
    assert {k[3] for k in before if before[k] != after[k]} == {"window_only", "candidate"}
    assert digests(store, tmp_path) == digests(CaptureStore.open(str(store_path)), tmp_path)


def test_a_sweep_that_forgets_a_row_is_a_failed_job(replay, monkeypatch):
    real = standins.sweep_cell
    monkeypatch.setattr(standins, "sweep_cell", lambda *args: real(*args)[1:])
    done = replay()
    rows = read_rows(done.path / "results.parquet", RESULTS)
    assert {r["status"] for r in rows} == {"failed"}
    assert "gave no row for ('candidate', 2)" in rows[0]["reason"]


def test_a_figure_that_is_not_finite_never_reaches_a_table(replay, monkeypatch):
    real = standins.sweep_cell
    monkeypatch.setattr(
        standins, "sweep_cell", lambda *args: [row | {"decode_reduction": np.nan} for row in real(*args)]
    )
    done = replay()
    reasons = {r["reason"] for r in read_rows(done.path / "results.parquet", RESULTS)}
    assert len(reasons) == 1
    assert "column 'decode_reduction' is nan" in reasons.pop()
