"""Part files: what one job wrote, kept until the run is compacted, and all that a resume looks at.

A part's name ends in the digest of its own bytes, so any damage shows (page checksums do not
cover a Parquet footer), and a job that ran twice writes the same file twice. A part that does
not match its name or cannot be read is set aside and its rows count as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from polykv.errors import DamagedStoreError
from polykv.receipts import digest_bytes
from polykv.schemas import TableSchema
from polykv.storage.atomic import write_bytes
from polykv.storage.results import encode, read_arrow, set_aside, sort_rows, write_arrow
from polykv.storage.tables import to_arrow

_DIGEST_HEX_DIGITS = 16


@dataclass(frozen=True)
class PartScan:
    """What a folder of parts holds: the part of each row digest, and the parts set aside."""

    rows: Mapping[str, Path]
    set_aside: tuple[Path, ...]


def write_part(folder: Path, stem: str, table: TableSchema, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write one job's rows as `<table>-<stem>-<digest>.parquet`; the same rows give the same file."""
    data = encode(sort_rows(table, to_arrow(table, rows)))
    return write_bytes(folder / f"{table.name}-{stem}-{digest_bytes(data)[:_DIGEST_HEX_DIGITS]}.parquet", data)


def read_part(path: Path, table: TableSchema, columns: list[str] | None = None) -> pa.Table:
    """A part as a pyarrow table; DamagedStoreError when its bytes are not those of its name."""
    found = digest_bytes(path.read_bytes())[:_DIGEST_HEX_DIGITS]
    named = path.stem.rpartition("-")[2]
    if found != named:
        raise DamagedStoreError(f"{path}: the part's digest is {found}, its name says {named}")
    return read_arrow(path, table, columns)


def scan_parts(folder: Path, table: TableSchema) -> PartScan:
    """Row digests of every sound part of `table` in `folder`; damaged parts are renamed `*.damaged`.

    Where two parts hold one row the first by name counts; parts of other tables are not touched.
    """
    rows: dict[str, Path] = {}
    aside: list[Path] = []
    for path in sorted(folder.glob(f"{table.name}-*.parquet")):
        try:
            digests = read_part(path, table, ["row_digest"])["row_digest"].to_pylist()
        except DamagedStoreError:
            aside.append(set_aside(path))
            continue
        for digest in digests:
            rows.setdefault(digest, path)
    return PartScan(rows, tuple(aside))


def compact_rows(
    scan: PartScan,
    table: TableSchema,
    wanted: Iterable[str],
    failed: Iterable[Mapping[str, Any]],
    run_id: str,
    out: Path,
) -> Path:
    """Write the table of a run: the rows of the `wanted` row digests, each once, and the `failed` rows.

    Rows of a part that another run wrote take this run's id. The same rows give the same file,
    however they were cut into parts.
    """
    by_part: dict[Path, list[str]] = {}
    for digest in wanted:
        if digest in scan.rows:
            by_part.setdefault(scan.rows[digest], []).append(digest)
    pieces = [_chosen(read_part(path, table), digests, run_id) for path, digests in by_part.items()]
    return write_arrow(out, table, pa.concat_tables([to_arrow(table, failed), *pieces]))


def _chosen(part: pa.Table, digests: list[str], run_id: str) -> pa.Table:
    """The part's rows with these digests, under this run's id."""
    rows = part.filter(pc.is_in(part["row_digest"], value_set=pa.array(digests, pa.string())))
    column = rows.schema.get_field_index("run_id")
    return rows.set_column(column, rows.schema.field(column), pa.array([run_id] * len(rows), pa.string()))
