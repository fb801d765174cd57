"""Weights & Biases' own file of an offline run: read back, and waited for until it is whole.

`run.finish()` returns before its background process has written out what it holds; a run is only
said to be kept once its file ends.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

from polykv.errors import TrackingError

# protobuf records in LevelDB's log format: blocks of this many bytes after a file header, each piece
# of a record with a header of its own (checksum, length, kind), never split between two blocks
_BLOCK_BYTES = 32768
_FILE_HEADER_BYTES = 7
_PIECE_HEADER = struct.Struct("<IHB")
_LAST_PIECE = (1, 4)  # a record in one piece, the last one of several

_POLL_S = 0.02


def offline_records(folder: str | Path) -> list[Any]:
    """The protobuf records (wandb_internal_pb2.Record) written so far; up to the first that is
    not whole yet."""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    data = b"".join(file.read_bytes() for file in Path(folder).glob("*.wandb"))
    at, whole, found = _FILE_HEADER_BYTES, b"", []
    while at + _PIECE_HEADER.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _PIECE_HEADER.size:
            at += left
            continue
        _, length, kind = _PIECE_HEADER.unpack_from(data, at)
        at += _PIECE_HEADER.size
        if at + length > len(data):
            break
        whole += data[at : at + length]
        at += length
        if kind in _LAST_PIECE:
            try:
                found.append(wandb_internal_pb2.Record.FromString(whole))
            except DecodeError:  # not written out yet, or damaged
                break
            whole = b""
    return found


def wait_until_kept(folder: str | Path, timeout_s: float) -> None:
    """Return once the run's file ends with the record that ends a run; TrackingError after `timeout_s` seconds."""
    end_s = time.monotonic() + timeout_s
    while True:
        records = offline_records(folder)
        if records and records[-1].HasField("exit"):
            return
        if time.monotonic() >= end_s:
            raise TrackingError(
                f"{folder} is not whole: after {timeout_s:g} s its file holds {len(records)} records and no end; "
                "look for room on the disk, then log the run again"
            )
        time.sleep(_POLL_S)
