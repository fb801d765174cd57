"""Result tables as Parquet: checked on the way in, checked on the way out.

Every page carries a checksum and is verified on read (a flipped byte would otherwise be
read in silence); a file is whole or absent. What cannot be read is an error that names the
file; `set_aside` then takes it out of the way of everything that reads the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from polykv.errors import DamagedStoreError, InputError, SchemaVersionError, StoreError
from polykv.schemas import TableSchema
from polykv.storage.atomic import write_bytes
from polykv.storage.tables import NAME_KEY, VERSION_KEY, arrow_schema, to_arrow

DAMAGED_SUFFIX = ".damaged"


def write_table(path: str | os.PathLike[str], table: TableSchema, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows, sorted by the table's key, as one Parquet file at `path`.

    Raises InputError or NonFiniteError (see `to_arrow`), StorageFullError on a full disk: the
    file of that name that stood there before, if any, is kept.
    """
    return write_bytes(Path(path), encode(sort_rows(table, to_arrow(table, rows))))


def read_rows(path: str | os.PathLike[str], table: TableSchema, **equal: Any) -> list[dict[str, Any]]:
    """The rows of a Parquet file as plain dicts, every declared column present.

    `equal`: only rows with these values, for example `layer=3, split="confirm"`.

    Columns that an older schema version did not have are null. Raises SchemaVersionError for a
    newer version, StoreError for another table, DamagedStoreError for what cannot be read.
    """
    data = read_arrow(path, table)
    for name, value in equal.items():
        data = data.filter(pc.equal(data[name], pa.scalar(value, data.schema.field(name).type)))
    return data.to_pylist()


def compact(parts: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str], table: TableSchema) -> Path:
    """Put the rows of all `parts` into one file, sorted by the table's key.

    The same rows give the same file, however they were cut into parts. Raises InputError when
    two rows share a key.
    """
    pieces = [read_arrow(part, table) for part in parts]
    return write_arrow(out, table, pa.concat_tables([arrow_schema(table).empty_table(), *pieces]))


def amend(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    table: TableSchema,
    by: str,
    changes: Mapping[str, Mapping[str, Any]],
) -> Path:
    """Copy a table with other values in some rows: `changes` maps the value of the column `by` to columns."""
    data = read_arrow(source, table)
    keys = data[by].to_pylist()
    for name in sorted({name for change in changes.values() for name in change}):
        values = [changes.get(key, {}).get(name, old) for key, old in zip(keys, data[name].to_pylist(), strict=True)]
        place = data.schema.get_field_index(name)
        field = data.schema.field(place)
        data = data.set_column(place, field, pa.array(values, field.type))
    return write_arrow(out, table, data)


def set_aside(path: str | os.PathLike[str]) -> Path:
    """Rename a file that cannot be read to `*.damaged`, where no reader looks; returns the new path."""
    source = Path(path)
    target = source.with_name(source.name + DAMAGED_SUFFIX)
    os.replace(source, target)
    return target


def write_arrow(path: str | os.PathLike[str], table: TableSchema, data: pa.Table) -> Path:
    """`write_table` for rows that already are a pyarrow table of this schema."""
    return write_bytes(Path(path), encode(sort_rows(table, data)))


def read_arrow(path: str | os.PathLike[str], table: TableSchema, columns: list[str] | None = None) -> pa.Table:
    """`read_rows` as a pyarrow table; `columns` None reads all. Errors as there."""
    source = Path(path)
    if not source.is_file():
        raise StoreError(f"{source}: there is no such {table.name} table")
    try:
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            written = file.schema_arrow  # built anew at each access
            version = _checked_version(source, table, written)
            wanted = arrow_schema(table)
            if columns is not None:
                wanted = pa.schema([wanted.field(name) for name in columns], metadata=wanted.metadata)
            present = [name for name in wanted.names if name in written.names]
            if version == table.version and len(present) < len(wanted):
                lost = sorted(set(wanted.names) - set(present))
                raise DamagedStoreError(f"{source}: version {version} of {table.name} without the column {lost[0]!r}")
            return _as_schema(file.read(columns=present, use_threads=False), wanted)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedStoreError(f"{source}: this {table.name} table cannot be read: {error}") from error


def encode(data: pa.Table) -> bytes:
    """The Parquet bytes of a table: the same table gives the same bytes on one pyarrow version."""
    sink = pa.BufferOutputStream()
    pq.write_table(data, sink, compression="zstd", write_page_checksum=True, version="2.6")
    return sink.getvalue().to_pybytes()


def sort_rows(table: TableSchema, data: pa.Table) -> pa.Table:
    """Rows in the order of the table's key, in one chunk; two rows of one key are refused."""
    ordered = data.sort_by([(name, "ascending") for name in table.key]).combine_chunks()
    keys = ordered.select(list(table.key))
    if keys.group_by(list(table.key)).aggregate([]).num_rows < ordered.num_rows:
        rows = keys.to_pylist()
        twice = next(a for a, b in zip(rows, rows[1:], strict=False) if a == b)
        raise InputError(f"{table.name} has two rows for {twice}")
    return ordered


def _checked_version(source: Path, table: TableSchema, schema: pa.Schema) -> int:
    """The schema version of a file of this table; refuses another table and a newer version."""
    metadata = schema.metadata or {}
    name = metadata.get(NAME_KEY, b"no polykv table").decode()
    if name != table.name:
        raise StoreError(f"{source}: expected the table {table.name!r}, found {name!r}")
    written = metadata.get(VERSION_KEY, b"").decode()
    if not written.isdecimal():
        raise DamagedStoreError(f"{source}: its schema version is {written!r}, which is not a number")
    if int(written) > table.version:
        raise SchemaVersionError(
            f"{source}: {table.name} was written under schema version {written}, this release reads up to "
            f"{table.version}: install the release that wrote it, or a newer one"
        )
    return int(written)


def _as_schema(data: pa.Table, wanted: pa.Schema) -> pa.Table:
    """`data` with exactly the wanted columns; those it lacks are null."""
    if data.column_names == wanted.names:
        return data.cast(wanted)
    arrays = [
        data[f.name].cast(f.type) if f.name in data.column_names else pa.nulls(data.num_rows, f.type) for f in wanted
    ]
    return pa.Table.from_arrays(arrays, schema=wanted)
