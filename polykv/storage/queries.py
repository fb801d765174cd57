"""SQL over a run's tables, on DuckDB (the extra `analysis`; the only import of it).

Tables are read as everywhere: checksums verified, columns that an older schema version lacked
null. They are registered under their own names, and only those that the SQL speaks of.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import os
import re
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from polykv.errors import InputError, MissingExtraError
from polykv.schemas import SELECTION, TABLES
from polykv.storage.atomic import write_bytes
from polykv.storage.results import read_arrow
from polykv.storage.run import RunDirectory
from polykv.storage.views import VIEWS, View

BASELINE = f"baseline_{SELECTION.name}"
# Extensions would be fetched from the network; a query asks the run's tables and nothing else.
_SETTINGS = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}


@dataclass(frozen=True)
class Answer:
    """What a query found, as a pyarrow table."""

    table: pa.Table

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows as plain Python values; decimals are numbers, dates text."""
        columns = [[_plain(value) for value in column.to_pylist()] for column in self.table.columns]
        return list(zip(*columns, strict=True))

    def to_dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def to_csv(self) -> str:
        """Comma-separated text with a header; null is empty, lists are JSON."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([[_csv_value(value) for value in row] for row in self.rows])
        return text.getvalue()

    def write_parquet(self, path: str | os.PathLike[str]) -> Path:
        sink = pa.BufferOutputStream()
        pq.write_table(self.table, sink, compression="zstd", write_page_checksum=True)
        return write_bytes(Path(path), sink.getvalue().to_pybytes())


def named_view(name: str) -> View:
    """A view by name ("-" and "_" are alike); an unknown one is refused with the nearest."""
    wanted = name.replace("-", "_")
    if wanted in VIEWS:
        return VIEWS[wanted]
    near = difflib.get_close_matches(wanted, VIEWS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"unknown query {name!r}{hint} (queries: {', '.join(VIEWS)}; or --sql)")


def ask(run: str | os.PathLike[str], sql: str, against: str | os.PathLike[str] | None = None) -> Answer:
    """Run SQL over the tables of a run; named views can be selected from like tables.

    `against` names the run whose selection is `baseline_selection`. Raises InputError for SQL that
    DuckDB refuses, StoreError for a table this run lacks, MissingExtraError without DuckDB.
    """
    duckdb = _duckdb()
    if not sql.strip():
        raise InputError('the SQL is empty; for example --sql "select * from selection limit 5"')
    views, tables = _spoken_of(sql)
    with duckdb.connect(config=_SETTINGS) as connection:
        for name, table in _read(run, tables, against).items():
            connection.register(name, table)
        for view in views:
            connection.execute(f"create view {view.name} as {view.sql}")
        try:
            _refuse_all_but_questions(connection.extract_statements(sql))
            return Answer(connection.sql(sql).to_arrow_table())
        except duckdb.Error as error:
            raise InputError(f"DuckDB refuses this SQL: {_one_line(error)}") from error


def ask_view(run: str | os.PathLike[str], name: str, against: str | os.PathLike[str] | None = None) -> Answer:
    """The answer of a named view."""
    return ask(run, named_view(name).sql, against)


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError(
            "polykv query needs DuckDB, which is not installed: run `make setup`, or pip install 'polykv[analysis]'"
        ) from error
    return duckdb


def _refuse_all_but_questions(statements: list[Any]) -> None:
    kinds = [statement.type.name for statement in statements]
    if len(kinds) != 1:
        raise InputError(f"the SQL holds {len(kinds)} statements; give one")
    if kinds[0] not in ("SELECT", "EXPLAIN"):
        raise InputError(f"the SQL is a {kinds[0]}, not a question; begin with select, from, with or describe")


def _spoken_of(sql: str) -> tuple[list[View], list[str]]:
    """The views and the tables whose names stand in the SQL; a table's own name wins over a view's."""
    words = set(re.findall(r"[a-z_0-9]+", sql.lower()))
    views = [view for view in VIEWS.values() if view.name in words and view.name not in TABLES]
    tables = {name for name in (*TABLES, BASELINE) if name in words}
    return views, sorted(tables.union(*(view.tables for view in views)))


def _read(
    run: str | os.PathLike[str], tables: list[str], against: str | os.PathLike[str] | None
) -> dict[str, pa.Table]:
    here = RunDirectory.open(run)
    found = {}
    for name in tables:
        if name == BASELINE:
            if against is None:
                raise InputError(f"{BASELINE} is the selection of another run: name it with --against RUN")
            found[name] = _table(RunDirectory.open(against), SELECTION.name)
        else:
            found[name] = _table(here, name)
    return found


def _table(run: RunDirectory, name: str) -> pa.Table:
    return read_arrow(run.existing_table(name), TABLES[name])


def _one_line(error: Exception) -> str:
    """What DuckDB says, without the picture of the statement."""
    text = str(error).split("\n\nLINE")[0]
    return " ".join(part.strip() for part in text.splitlines() if part.strip() and "sqlite_master" not in part)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _csv_value(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
