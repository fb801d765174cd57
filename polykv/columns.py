"""What a declared table is made of: columns with units, meanings, and when they are null."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("string", "int64", "double", "bool", "list<double>", "list<string>", "blockers")


@dataclass(frozen=True)
class Column:
    """One column: its name, storage kind (one of KINDS), unit, meaning, and when it is null."""

    name: str
    kind: str
    unit: str
    meaning: str
    null_when: str = "never"


@dataclass(frozen=True)
class TableSchema:
    """A declared table; `version` goes into the file's metadata and rises when a column changes."""

    name: str
    version: int
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)
