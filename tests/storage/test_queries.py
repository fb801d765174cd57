"""Named views and SQL over a run's tables: what they answer is what plain Python finds."""

import builtins
import csv
import io
import statistics

import pyarrow.parquet as pq
import pytest

from polykv.errors import DamagedStoreError, InputError, MissingExtraError, StoreError
from polykv.report.compare import movements
from polykv.report.frontier import points
from polykv.schemas import RESULTS, SELECTION, TABLES
from polykv.storage.queries import ask, ask_view, named_view
from polykv.storage.results import read_rows
from polykv.storage.views import VIEWS
from tests.report.run_samples import KS, LIMIT, write_run

CELLS = [(layer, head) for layer in (0, 3, 7) for head in (0, 1)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "asked", fail=[(3, 1, "rough")])


@pytest.fixture(scope="module")
def selection(run):
    return read_rows(run / "selection.parquet", SELECTION)


@pytest.fixture(scope="module")
def results(run):
    return read_rows(run / "results.parquet", RESULTS)


def test_policies_counts_verdicts(run, selection):
    found = {row["policy"]: row for row in ask_view(run, "policies").to_dicts()}
    assert list(found) == ["rough", "int8", "exact"]
    for policy, row in found.items():
        mine = [r for r in selection if r["policy"] == policy]
        assert row["cells"] == len(mine) == 6
        assert row["pass"] == sum(r["verdict"] == "pass" for r in mine)
        assert row["fail"] == sum(r["verdict"] in ("fail", "failed") for r in mine)
    assert found["rough"]["median_candidate_k"] is None
    assert found["int8"]["median_output_cosine"] == pytest.approx(
        statistics.median(r["confirm_output_cosine_mean"] for r in selection if r["policy"] == "int8")
    )


def test_worst_cells_come_worst_first(run, selection):
    found = [row for row in ask_view(run, "worst-cells").to_dicts() if row["policy"] == "rough"]
    assert (found[0]["layer"], found[0]["kv_head"], found[0]["verdict"]) == (3, 1, "failed")
    errors = [row["relative_error"] for row in found[1:]]
    assert errors == sorted(errors, reverse=True)
    assert len(errors) == 5


def test_worst_cells_are_ten_a_policy(tmp_path):
    wide = write_run(tmp_path / "wide", layers=range(8), policies=("int8",))
    assert ask_view(wide, "worst_cells").table.num_rows == 10


def test_cheapest_k_is_the_largest_of_a_layers_heads(run, selection):
    for row in ask_view(run, "cheapest_k").to_dicts():
        mine = [r for r in selection if (r["layer"], r["policy"]) == (row["layer"], row["policy"])]
        held = all(r["verdict"] == "pass" for r in mine)
        assert row["candidate_k"] == (max(r["candidate_k"] for r in mine) if held else None)
    first = {row["layer"]: row["policy"] for row in reversed(ask_view(run, "cheapest_k").to_dicts())}
    assert set(first.values()) == {"int8"}  # rough is smaller, but holds no layer


def test_pareto_is_what_nothing_beats(run, results):
    found = {(row["policy"], row["candidate_k"]) for row in ask_view(run, "pareto").to_dicts()}

    def costs(p):
        return (p.error, p.bytes_per_token, -p.decode_reduction)

    def beaten(p):
        return any(all(x <= y for x, y in zip(costs(q), costs(p), strict=True)) and costs(q) != costs(p) for q in all_points)  # fmt: skip

    all_points = points(results)
    assert found == {(p.policy, p.candidate_k) for p in all_points if not beaten(p)}
    assert ("exact", 64) in found


def test_blockers_are_counted_by_gate(run, selection):
    found = {(row["policy"], row["gate"]): row for row in ask_view(run, "blockers").to_dicts()}
    row = found["rough", "output_relative_error_mean"]
    values = [b["value"] for r in selection for b in r["blockers"] or () if b["gate"] == row["gate"]]
    assert (row["cells"], row["limit"], row["not_finite"]) == (5, LIMIT, 0)
    assert (row["smallest_value"], row["largest_value"]) == (min(values), max(values))
    assert "exact" not in {policy for policy, _ in found}


def test_failures_are_told_by_reason(run):
    assert ask_view(run, "failures").to_dicts() == [
        {"policy": "rough", "reason": "the worker ran out of memory", "rows": 2 * len(KS), "cells": 1, "first_cells": ["3/1"]}
    ]  # fmt: skip


def test_controls_are_counted(run):
    found = ask_view(run, "controls").to_dicts()
    assert {(row["control"], row["split"], row["cells"], row["as_expected"]) for row in found} == {
        (control, split, 6, 6)
        for control in ("exact", "zero_keys", "shuffled_keys", "zero_values")
        for split in ("select", "confirm")
    }


def test_run_diff_agrees_with_the_comparison(run, selection, tmp_path):
    other = write_run(tmp_path / "other", layers=(0, 3), policies=("int8", "rough"), change={"output_cosine_mean": 0.5})
    found = ask_view(other, "run_diff", run).to_dicts()
    moved = {
        (m.policy, m.layer, m.kv_head) for m in movements(selection, read_rows(other / "selection.parquet", SELECTION))
    }
    assert {(r["policy"], r["layer"], r["kv_head"]) for r in found if r["moved"] == "worse"} == moved
    assert {r["policy"] for r in found if r["moved"] == "only in the baseline"} == {"int8", "rough", "exact"}
    assert found[0]["moved"] == "worse"
    assert ask_view(run, "run_diff", run).table.num_rows == 0


def test_run_diff_needs_a_baseline(run):
    with pytest.raises(InputError, match="--against"):
        ask_view(run, "run_diff")


def test_views_and_tables_can_be_asked_together(run):
    sql = "select count(*) as n from worst_cells join selection using (policy, layer, kv_head) where policy = 'int8'"
    assert ask(run, sql).to_dicts() == [{"n": 6}]


def test_decimals_and_dates_come_as_plain_values(run):
    row = ask(run, "select sum(candidate_k)::hugeint as n, 1.25 as x, date '2020-01-02' as d, [1.5] as l from selection").rows[0]  # fmt: skip
    assert row[1:] == (1.25, "2020-01-02", [1.5])
    assert type(row[0]) in (int, float)


REFUSED = {
    "no table of that name": ("select * from resuls", "resuls does not exist"),
    "no SQL": ("selec 1", "syntax error"),
    "nothing": (" ", "is empty"),
    "no question": ("create table x (i int)", "CREATE, not a question"),
    "a copy": ("copy selection to 'x.csv'", "COPY, not a question"),
    "two questions": ("select 1; select 2", "2 statements"),
    "a column that is not there": ("select colour from selection", "colour"),
    "a division of texts": ("select policy / 2 from selection", "No function matches"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_sql_that_cannot_work_is_refused_in_one_line(run, kind):
    sql, words = REFUSED[kind]
    with pytest.raises(InputError, match=words) as caught:
        ask(run, sql)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"), [("worst_cels", "worst_cells"), ("paretto", "pareto"), ("run-dif", "run_diff")]
)
def test_an_unknown_view_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(InputError, match=f"did you mean '{nearest}'"):
        named_view(name)


def test_a_table_the_run_lacks_is_named(run):
    with pytest.raises(StoreError, match=r"no table 'gonogo'; it has controls, results, selection"):
        ask_view(run, "gonogo")


def test_a_damaged_table_is_named(run, tmp_path):
    broken = write_run(tmp_path / "broken", layers=(0,))
    data = bytearray((broken / "selection.parquet").read_bytes())
    data[len(data) // 3] ^= 0x40
    (broken / "selection.parquet").write_bytes(bytes(data))
    with pytest.raises(DamagedStoreError, match=r"selection\.parquet"):
        ask_view(broken, "policies")


def test_duckdb_missing_says_how_to_get_it(run, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"polykv\[analysis\]"):
        ask(run, "select 1")


def test_csv_and_parquet_hold_the_same_rows(run, tmp_path):
    answer = ask_view(run, "failures")
    read = list(csv.reader(io.StringIO(answer.to_csv())))
    assert read[0] == list(answer.columns)
    assert read[1][-1] == '["3/1"]'
    assert pq.read_table(answer.write_parquet(tmp_path / "f.parquet")).to_pylist() == answer.table.to_pylist()


def test_views_read_only_declared_tables():
    assert {name for view in VIEWS.values() for name in view.tables} <= {*TABLES, "baseline_selection"}
