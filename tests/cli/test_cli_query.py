"""`polykv query`: what it prints and writes, and what a mistake gets."""

import csv
import io
import json

import duckdb
import pytest

from polykv.cli import main
from polykv.storage.views import VIEWS
from tests.report.run_samples import write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return str(write_run(tmp_path_factory.mktemp("runs") / "made"))


def run(capsys, *argv):
    code = main(list(argv))
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out, said.err


def test_without_a_name_the_queries_are_listed(capsys, made):
    code, out, _ = run(capsys, "query", made)
    assert code == 0
    assert all(view.name in out and view.answers in out for view in VIEWS.values())


@pytest.mark.parametrize(
    "name", ["policies", "worst_cells", "cheapest_k", "pareto", "blockers", "failures", "controls"]
)
def test_every_query_prints_its_rows(capsys, made, name):
    code, out, _ = run(capsys, "query", made, name)
    assert code == 0
    assert "rough" in out or name in ("failures", "controls")
    assert "…" not in out


def test_two_runs_are_compared(capsys, made):
    assert run(capsys, "query", made, "run_diff", "--against", made) == (0, "no rows\n", "")


def test_long_answers_are_cut_and_say_so(capsys, made):
    code, out, err = run(capsys, "query", made, "worst_cells", "--limit", "4")
    assert (code, len(out.splitlines())) == (0, 5)
    assert "14 more rows; --limit 0 prints all" in err
    assert len(run(capsys, "query", made, "worst_cells", "--limit", "0")[1].splitlines()) == 19


def test_machines_get_csv_and_json(capsys, made):
    code, out, _ = run(capsys, "query", made, "policies", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (code, [row["policy"] for row in rows]) == (0, ["rough", "int8", "exact"])
    code, out, _ = run(capsys, "query", made, "policies", "--json")
    assert [row["policy"] for row in json.loads(out)] == ["rough", "int8", "exact"]
    assert json.loads(out)[0]["median_candidate_k"] is None


@pytest.mark.parametrize("argv", [("--out", "x.parquet"), ("--parquet", "-o", "x")])
def test_rows_go_to_a_file(capsys, made, tmp_path, argv):
    target = tmp_path / argv[-1]
    code, out, err = run(capsys, "query", made, "policies", *argv[:-1], str(target))
    assert (code, out, err) == (0, "", f"wrote {target}: 3 rows\n")
    assert duckdb.sql(f"select count(*) from read_parquet('{target}')").fetchall() == [(3,)]


def test_own_sql(capsys, made):
    sql = "select policy, max(layer) as deepest from selection where verdict = 'pass' group by all order by all"
    code, out, _ = run(capsys, "query", made, "--sql", sql, "--csv")
    assert (code, out) == (0, "policy,deepest\nexact,7\nint8,7\n")


MISTAKES = {
    "an unknown query": (["{run}", "worst_cels"], 2, "did you mean 'worst_cells'"),
    "a query and SQL": (["{run}", "pareto", "--sql", "select 1"], 2, "give one"),
    "bad SQL": (["{run}", "--sql", "select * from resuls"], 2, "resuls"),
    "empty SQL": (["{run}", "--sql", ""], 2, "empty"),
    "two formats": (["{run}", "pareto", "--csv", "--json"], 2, "--csv and --json"),
    "parquet on the terminal": (["{run}", "pareto", "--parquet"], 2, "--out FILE"),
    "a file of no known kind": (["{run}", "pareto", "-o", "x.xlsx"], 2, ".xlsx"),
    "a folder that is not there": (["{run}", "pareto", "-o", "{tmp}/no/x.csv"], 2, "there is no folder"),
    "no baseline": (["{run}", "run_diff"], 2, "--against"),
    "a baseline that is no run": (["{run}", "run_diff", "--against", "{tmp}"], 2, "no run directory"),
    "a table the run lacks": (["{run}", "gonogo"], 3, "has no table 'gonogo'"),
    "no run": (["{tmp}/nothing", "pareto"], 2, "does not exist; a run directory was expected"),
    "a negative limit": (["{run}", "pareto", "--limit", "-1"], 2, "--limit is -1"),
    "a misspelt option": (["{run}", "pareto", "--limt", "3"], 2, "--limit"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_words(capsys, made, tmp_path, mistake):
    argv, expected, words = MISTAKES[mistake]
    code, out, err = run(capsys, "query", *(word.format(run=made, tmp=tmp_path) for word in argv))
    assert (code, words in err) == (expected, True), err
    assert out == ""
