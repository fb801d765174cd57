"""Rows for the storage tests: every column filled by a rule, so that any mix-up shows."""

from __future__ import annotations

from typing import Any

from polykv.schemas import RESULTS, TableSchema

_FILL = {
    "string": lambda i: f"text {i}",
    "int64": lambda i: i,
    "double": lambda i: i + 0.5,
    "bool": lambda i: i % 2 == 0,
    "list<double>": lambda i: [float(i), i + 0.25],
    "list<string>": lambda i: [f"item {i}"],
    "blockers": lambda i: [] if i % 2 else [{"gate": "output_cosine_mean", "value": None, "limit": 0.999}],
}


def filled_row(table: TableSchema = RESULTS, number: int = 0, **changes: Any) -> dict[str, Any]:
    """A row with a value in every column, different for each `number`."""
    row = {column.name: _FILL[column.kind](number) for column in table.columns}
    if "row_digest" in row:
        row["row_digest"] = f"digest {number}"
    return row | changes


def filled_rows(n: int, table: TableSchema = RESULTS) -> list[dict[str, Any]]:
    return [filled_row(table, number) for number in range(n)]
