"""Declared tables (`polykv.schemas`) as pyarrow schemas, and rows checked against them.

The pyarrow schema is never inferred: a first row with an empty list or an int would decide
for all that follow. Rows are plain dicts; what a table cannot hold is refused with the row
and the column, before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from polykv.errors import InputError, NonFiniteError
from polykv.schemas import Column, TableSchema

NAME_KEY = b"polykv_table"
VERSION_KEY = b"polykv_schema_version"
_INT64 = range(-(2**63), 2**63)

_BLOCKER = pa.struct([pa.field("gate", pa.string()), pa.field("value", pa.float64()), pa.field("limit", pa.float64())])
_ARROW = {
    "string": pa.string(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "list<double>": pa.list_(pa.float64()),
    "list<string>": pa.list_(pa.string()),
    "blockers": pa.list_(_BLOCKER),
}


def arrow_schema(table: TableSchema) -> pa.Schema:
    """The pyarrow schema of a declared table; its name and version stand in the metadata."""
    return pa.schema(
        [pa.field(column.name, _ARROW[column.kind]) for column in table.columns],
        metadata={NAME_KEY: table.name.encode(), VERSION_KEY: str(table.version).encode()},
    )


def to_arrow(table: TableSchema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Checked rows as one pyarrow table.

    Raises InputError for an unknown, missing or wrongly typed column and for a null where the
    declaration has none; NonFiniteError for NaN and infinity (a figure that does not exist is
    null). Each text names table, row and column.
    """
    checked = [_checked_row(table, index, row) for index, row in enumerate(rows)]
    schema = arrow_schema(table)
    arrays = [pa.array([row[f.name] for row in checked], type=f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _checked_row(table: TableSchema, index: int, row: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(row) - set(table.column_names))
    if unknown:
        raise InputError(f"{table.name} row {index} has the unknown column {unknown[0]!r} ({len(unknown)} in all)")
    missing = [name for name in table.column_names if name not in row]
    if missing:
        raise InputError(f"{table.name} row {index} lacks the column {missing[0]!r} ({len(missing)} in all)")
    return {column.name: _checked_value(table, index, column, row[column.name]) for column in table.columns}


def _checked_value(table: TableSchema, index: int, column: Column, value: Any) -> Any:
    place = f"{table.name} row {index}, column {column.name!r}"
    if value is None:
        if column.null_when == "never":
            raise InputError(f"{place} is null, which its declaration never allows")
        return None
    return _CHECKS[column.kind](place, value)


def _string(place: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_type(place, value, "a string")
    return value


def _int64(place: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise _wrong_type(place, value, "an integer")
    if int(value) not in _INT64:
        raise InputError(f"{place} is {value}, beyond 64 bits")
    return int(value)


def _double(place: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise _wrong_type(place, value, "a number")
    if not math.isfinite(value):
        raise NonFiniteError(f"{place} is {value}: a figure that does not exist is null, never NaN or infinity")
    return float(value)


def _bool(place: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise _wrong_type(place, value, "true or false")
    return bool(value)


def _items(place: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise _wrong_type(place, value, "a list")
    return value


def _doubles(place: str, value: Any) -> list[float | None]:
    return [None if x is None else _double(f"{place}[{i}]", x) for i, x in enumerate(_items(place, value))]


def _strings(place: str, value: Any) -> list[str]:
    return [_string(f"{place}[{i}]", x) for i, x in enumerate(_items(place, value))]


def _blockers(place: str, value: Any) -> list[dict[str, Any]]:
    return [_blocker(f"{place}[{i}]", x) for i, x in enumerate(_items(place, value))]


def _blocker(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or set(value) != {"gate", "value", "limit"}:
        raise InputError(f"{place} is {value!r}, must have exactly gate, value and limit")
    figures = {k: None if value[k] is None else _double(f"{place}.{k}", value[k]) for k in ("value", "limit")}
    return {"gate": _string(f"{place}.gate", value["gate"]), **figures}


def _wrong_type(place: str, value: Any, wanted: str) -> InputError:
    return InputError(f"{place} is {value!r} ({type(value).__name__}), must be {wanted}")


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "string": _string,
    "int64": _int64,
    "double": _double,
    "bool": _bool,
    "list<double>": _doubles,
    "list<string>": _strings,
    "blockers": _blockers,
}
