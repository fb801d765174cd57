"""Result tables: one declared schema, nothing inferred, nothing silently wrong."""

from __future__ import annotations

import dataclasses
import math
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_rows import filled_row, filled_rows

from polykv.errors import DamagedStoreError, InputError, NonFiniteError, SchemaVersionError, StoreError
from polykv.schemas import CONTROLS, RESULTS, SELECTION, TABLES, Column, TableSchema
from polykv.storage.parts import scan_parts, write_part
from polykv.storage.results import compact, read_rows, set_aside, write_table


def by_key(table: TableSchema, rows: list[dict]) -> list[dict]:
    return sorted(rows, key=lambda row: tuple(row[name] for name in table.key))


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_rows_come_back_value_for_value_in_key_order(tmp_path, table):
    rows = filled_rows(12, table)
    path = write_table(tmp_path / "t.parquet", table, rows[::-1])
    assert read_rows(path, table) == by_key(table, rows)


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_an_empty_table_has_its_columns(tmp_path, table):
    path = write_table(tmp_path / "t.parquet", table, [])
    assert read_rows(path, table) == []
    assert pq.read_schema(path).names == list(table.column_names)


def test_every_column_that_may_be_null_can_be(tmp_path):
    row = filled_row()
    nulls = {c.name: None for c in RESULTS.columns if c.null_when != "never"}
    path = write_table(tmp_path / "t.parquet", RESULTS, [row | nulls])
    assert read_rows(path, RESULTS) == [row | nulls]


def test_an_int_in_a_double_column_does_not_truncate_what_follows(tmp_path):
    rows = [filled_row(number=0, output_cosine_mean=1), filled_row(number=1, output_cosine_mean=0.75)]
    path = write_table(tmp_path / "t.parquet", RESULTS, rows)
    assert [row["output_cosine_mean"] for row in read_rows(path, RESULTS)] == [1.0, 0.75]


def test_numpy_scalars_and_arrays_are_taken(tmp_path):
    row = filled_row(layer=np.int64(3), is_full=np.bool_(True), output_cosine_mean=np.float32(0.5))
    row["passage_output_cosine"] = np.array([0.25, 0.5])
    read = read_rows(write_table(tmp_path / "t.parquet", RESULTS, [row]), RESULTS)[0]
    assert (read["layer"], read["is_full"], read["output_cosine_mean"]) == (3, True, 0.5)
    assert read["passage_output_cosine"] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"surprise": 1}, InputError, "unknown column 'surprise'"),
        ({"output_cosine_mean": math.nan}, NonFiniteError, "'output_cosine_mean' is nan"),
        ({"output_cosine_low": math.inf}, NonFiniteError, "'output_cosine_low' is inf"),
        ({"passage_output_cosine": [1.0, math.nan]}, NonFiniteError, "'passage_output_cosine'\\[1\\] is nan"),
        ({"blockers": [{"gate": "g", "value": math.nan, "limit": 1.0}]}, NonFiniteError, "\\[0\\].value is nan"),
        ({"blockers": [{"gate": "g", "value": 1.0}]}, InputError, "exactly gate, value and limit"),
        ({"layer": None}, InputError, "'layer' is null"),
        ({"layer": 1.0}, InputError, "'layer' is 1.0 \\(float\\), must be an integer"),
        ({"layer": True}, InputError, "must be an integer"),
        ({"layer": 2**63}, InputError, "beyond 64 bits"),
        ({"policy": 3}, InputError, "must be a string"),
        ({"is_full": 1}, InputError, "must be true or false"),
        ({"output_cosine_mean": "1"}, InputError, "must be a number"),
        ({"output_cosine_mean": True}, InputError, "must be a number"),
        ({"passage_output_cosine": 0.5}, InputError, "must be a list"),
    ],
)
def test_what_a_table_cannot_hold_is_refused_by_name_and_nothing_is_written(tmp_path, change, error, text):
    with pytest.raises(error, match=text):
        write_table(tmp_path / "t.parquet", RESULTS, [filled_row(number=1), filled_row() | change])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_is_refused_by_name(tmp_path):
    row = filled_row()
    del row["verdict"]
    with pytest.raises(InputError, match="row 0 lacks the column 'verdict'"):
        write_table(tmp_path / "t.parquet", RESULTS, [row])


def test_two_rows_of_one_key_are_refused(tmp_path):
    with pytest.raises(InputError, match="two rows for .*'layer': 0"):
        write_table(tmp_path / "t.parquet", RESULTS, [filled_row(), filled_row(output_cosine_mean=0.1)])


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(0, 30), max_size=5), seed=st.integers(0, 2**32 - 1))
def test_compacting_gives_the_same_bytes_whatever_the_cut(tmp_path_factory, cuts, seed):
    folder = tmp_path_factory.mktemp("cut")
    rows = filled_rows(30, CONTROLS)
    whole = write_table(folder / "whole.parquet", CONTROLS, rows)
    np.random.default_rng(seed).shuffle(rows)
    edges = [0, *sorted(cuts), 30]
    pieces = [rows[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    parts = [write_table(folder / f"{i}.parquet", CONTROLS, piece) for i, piece in enumerate(pieces)]
    assert compact(parts, folder / "out.parquet", CONTROLS).read_bytes() == whole.read_bytes()


def newer(table: TableSchema) -> TableSchema:
    """The table as a later release may declare it: one version up, one column more."""
    extra = Column("added_later", "double", "1", "new", "written by an older release")
    return dataclasses.replace(table, version=table.version + 1, columns=(*table.columns, extra))


def test_an_older_version_reads_with_nulls_in_new_columns(tmp_path):
    path = write_table(tmp_path / "t.parquet", RESULTS, [filled_row()])
    assert read_rows(path, newer(RESULTS)) == [filled_row(added_later=None)]


def test_a_newer_version_is_refused_with_both_numbers(tmp_path):
    later = newer(RESULTS)
    path = write_table(tmp_path / "t.parquet", later, [filled_row(later)])
    with pytest.raises(SchemaVersionError, match="version 2, this release reads up to 1"):
        read_rows(path, RESULTS)


def test_another_table_and_no_table_are_refused(tmp_path):
    path = write_table(tmp_path / "t.parquet", CONTROLS, [filled_row(CONTROLS)])
    with pytest.raises(StoreError, match="expected the table 'results', found 'controls'"):
        read_rows(path, RESULTS)
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"x": [1]}), foreign)
    with pytest.raises(StoreError, match="found 'no polykv table'"):
        read_rows(foreign, RESULTS)
    with pytest.raises(StoreError, match="there is no such results table"):
        read_rows(tmp_path / "absent.parquet", RESULTS)


def flip(path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(bytes(data))


def test_no_flipped_byte_in_a_page_is_read_in_silence(tmp_path):
    path = tmp_path / "t.parquet"
    write_table(path, CONTROLS, filled_rows(50, CONTROLS))
    sound, good = path.read_bytes(), read_rows(path, CONTROLS)
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    caught = []
    for offset in np.linspace(4, footer - 1, 60).astype(int):
        path.write_bytes(sound)
        flip(path, int(offset))
        try:
            read = read_rows(path, CONTROLS)
        except DamagedStoreError as error:
            caught.append(str(error))
        else:
            assert read == good  # only bytes that nobody reads may pass
    assert len(caught) >= 50
    assert all(str(path) in text for text in caught)


@pytest.mark.parametrize("size", [0, 3, 100, -1])
def test_a_truncated_table_is_a_named_error(tmp_path, size):
    path = write_table(tmp_path / "t.parquet", CONTROLS, filled_rows(5, CONTROLS))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamagedStoreError, match="t.parquet: this controls table cannot be read"):
        read_rows(path, CONTROLS)


@pytest.mark.parametrize("damage", ["page", "footer", "truncated", "empty"])
def test_a_damaged_part_is_set_aside_and_its_neighbour_kept(tmp_path, damage):
    bad = write_part(tmp_path, "job-a", CONTROLS, [filled_row(CONTROLS, 0)])
    good = write_part(tmp_path, "job-b", CONTROLS, [filled_row(CONTROLS, 1)])
    size = bad.stat().st_size
    if damage in ("truncated", "empty"):
        os.truncate(bad, size // 2 if damage == "truncated" else 0)
    else:
        flip(bad, 20 if damage == "page" else size - 30)
    scan = scan_parts(tmp_path, CONTROLS)
    assert dict(scan.rows) == {"digest 1": good}
    assert [path.name for path in scan.set_aside] == [bad.name + ".damaged"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([bad.name + ".damaged", good.name])


def test_a_part_written_twice_is_one_file_and_tables_do_not_mix(tmp_path):
    first = write_part(tmp_path, "job", CONTROLS, [filled_row(CONTROLS)])
    assert write_part(tmp_path, "job", CONTROLS, [filled_row(CONTROLS)]) == first
    write_part(tmp_path, "job", RESULTS, [filled_row(RESULTS, 7)])
    assert list(scan_parts(tmp_path, CONTROLS).rows) == ["digest 0"]
    assert list(scan_parts(tmp_path, RESULTS).rows) == ["digest 7"]


def test_set_aside_leaves_the_bytes(tmp_path):
    path = tmp_path / "part.parquet"
    path.write_bytes(b"evidence")
    assert set_aside(path).read_bytes() == b"evidence"
    assert not path.exists()


def test_analysts_tools_read_the_table(tmp_path):
    duckdb, pandas, polars = (pytest.importorskip(name) for name in ("duckdb", "pandas", "polars"))
    rows = filled_rows(8, SELECTION)
    path = write_table(tmp_path / "selection.parquet", SELECTION, rows)
    expected = [row["confirm_output_cosine_mean"] for row in by_key(SELECTION, rows)]
    column = "confirm_output_cosine_mean"
    with duckdb.connect() as connection:
        query = f"select {column}, len(blockers) from read_parquet('{path}') order by layer"
        assert connection.execute(query).fetchall() == [(v, 1 - i % 2) for i, v in enumerate(expected)]
    assert pandas.read_parquet(path)[column].tolist() == expected
    frame = polars.read_parquet(path)
    assert frame[column].to_list() == expected
    assert frame["blockers"].list.len().to_list() == [1, 0] * 4
    assert pq.read_table(path)[column].to_pylist() == expected
