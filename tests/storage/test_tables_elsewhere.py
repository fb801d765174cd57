"""The Parquet files as others read them: DuckDB, Polars, pandas, pyarrow; old rows beside new; nulls."""

from dataclasses import replace

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from polykv.columns import Column
from polykv.schemas import RESULTS, TABLES
from polykv.storage import queries
from polykv.storage.results import read_rows, write_table
from tests.report.run_samples import result_rows, write_run

NULLED = {"output_cosine_mean": None, "verdict": "fail", "verdict_reason": "non_finite"}
NEW = replace(RESULTS, version=RESULTS.version + 1, columns=(*RESULTS.columns, Column("shine", "double", "1", "a new figure", "the row is older")))  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(old, new): one file under this release's schema, one under the next; a null metric in each."""
    folder = tmp_path_factory.mktemp("tables")
    old = [row | NULLED if row["candidate_k"] == 8 else row for row in result_rows("old", [(0, 0)])]
    new = [row | {"shine": 0.5} for row in result_rows("new", [(1, 0)])]
    return (
        write_table(folder / "old.parquet", RESULTS, old),
        write_table(folder / "new.parquet", NEW, [new[0] | NULLED, *new[1:]]),
    )


def read_duckdb(files):
    names = ", ".join(f"'{file}'" for file in files)
    return duckdb.sql(f"select * from read_parquet([{names}], union_by_name = true)").to_arrow_table().to_pylist()


def read_polars(files):
    return pl.concat([pl.read_parquet(file) for file in files], how="diagonal").to_dicts()


def read_pandas(files):
    frame = pd.concat([pd.read_parquet(file, dtype_backend="pyarrow") for file in files], ignore_index=True)
    return pa.Table.from_pandas(frame, preserve_index=False).to_pylist()


def read_pyarrow(files):
    schema = pa.unify_schemas([pq.read_schema(file).remove_metadata() for file in files])
    return ds.dataset(list(map(str, files)), schema=schema).to_table().to_pylist()


READERS = {"duckdb": read_duckdb, "polars": read_polars, "pandas": read_pandas, "pyarrow": read_pyarrow}


def key(row):
    return row["run_id"], row["split"], row["policy"], row["row_kind"], row["candidate_k"]


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_finds_the_same_rows_old_and_new(files, reader):
    ours = sorted([*read_rows(files[0], NEW), *read_rows(files[1], NEW)], key=key)
    theirs = sorted(READERS[reader](files), key=key)
    names = NEW.column_names
    assert [[row.get(name) for name in names] for row in theirs] == [[row[name] for name in names] for row in ours]
    assert sum(row["output_cosine_mean"] is None for row in theirs) == 6 + 1
    assert {row["shine"] for row in theirs if row["run_id"] == "old"} == {None}


def test_a_query_reads_an_older_table_with_its_new_columns_null(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", layers=(0,))
    monkeypatch.setitem(TABLES, "results", NEW)
    found = queries.ask(run, "select count(*) as n, count(shine) as shining from results").to_dicts()
    assert found == [{"n": 2 * 2 * 3 * 5, "shining": 0}]


def test_views_stand_null_metrics(tmp_path):
    run = write_run(tmp_path / "run", layers=(0,), change=dict.fromkeys(("output_cosine_mean", "output_relative_error_mean", "output_cosine_low", "output_cosine_high")) | {"blockers": [{"gate": "output_cosine_mean", "value": None, "limit": 0.999}], "verdict": "fail"})  # fmt: skip
    assert queries.ask_view(run, "pareto").table.num_rows == 0
    assert {row["not_finite"] for row in queries.ask_view(run, "blockers").to_dicts()} == {2}
    assert {row["worst_output_cosine"] for row in queries.ask_view(run, "policies").to_dicts()} == {None}
    assert {row["relative_error"] for row in queries.ask_view(run, "worst_cells").to_dicts()} == {None}
    assert queries.ask_view(run, "run_diff", run).table.num_rows == 0
    whole = write_run(tmp_path / "whole", layers=(0,))
    assert {row["moved"] for row in queries.ask_view(run, "run_diff", whole).to_dicts()} == {"worse"}
