"""Runs in a folder: their state as it stands on disk, and what can be given back of their space."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polykv.errors import InputError, PolykvError, StoreError
from polykv.receipts import digest_bytes
from polykv.storage.lock import OWNER_NAME, RunLock
from polykv.storage.run import RunDirectory, local_path


@dataclass(frozen=True)
class RunOnDisk:
    """One run directory, nothing but its run.json read.

    `state`: run.json, None when it cannot be read (`problem` says why). `status`: that of run.json,
    `killed` when it says running and no process holds the run, or `damaged`. Sizes in bytes;
    `parts_bytes` of them are only needed to resume or to give rows to a run of other settings.
    """

    path: Path
    state: Mapping[str, Any] | None
    status: str
    problem: str | None
    n_bytes: int
    parts_bytes: int


def runs_in(folder: str | os.PathLike[str]) -> list[RunOnDisk]:
    """The run directories in `folder` (or `folder` itself, when it is one), by name.

    Raises InputError for a URL or what is no folder.
    """
    root = local_path(folder)
    if not root.is_dir():
        raise InputError(f"{folder} is no folder; name the one that holds the run directories, for example runs")
    if (root / "zarr.json").is_file():
        raise InputError(
            f"{folder} is a capture store; name the folder that holds the run directories, for example runs"
        )
    if (root / "run.json").is_file():
        return [_look(root)]
    return [_look(path) for path in sorted(root.iterdir()) if (path / "run.json").is_file()]


def prunable(run: RunOnDisk) -> bool:
    """Whether the run is complete and still keeps parts."""
    return run.status == "complete" and run.parts_bytes > 0


def prune_parts(path: Path) -> int:
    """Delete the parts of a complete run; its tables, artifacts and run.json stay. Returns bytes freed.

    The tables are held against run.json first. Raises StoreError when one is missing or differs (then the
    parts are all there is), InputError for a run that is not complete, RunLockedError while one is written.
    """
    lock = RunLock(path)
    try:
        state = RunDirectory.open(path).state
        if state["status"] != "complete":
            raise InputError(f"{path}: this run is {state['status']}; its parts are what a resume goes on from")
        _check_outputs(path, state["outputs"])
        parts = [file for file in (path / "parts").iterdir() if file.is_file()]
        freed = sum(file.stat().st_size for file in parts)
        for file in parts:
            file.unlink(missing_ok=True)
        return freed
    finally:
        lock.release()


def _check_outputs(path: Path, outputs: Mapping[str, str]) -> None:
    if not outputs:
        raise StoreError(f"{path}: run.json names no table, so the parts are all there is; they are kept")
    for name, digest in outputs.items():
        file = path / name
        if not file.is_file():
            raise StoreError(f"{file} is missing; the parts are kept: run the same command again to write it anew")
        found = digest_bytes(file.read_bytes())
        if found != digest:
            raise StoreError(
                f"{file}: its digest is {found[:16]}, run.json says {digest[:16]}; the parts are kept: "
                "run the same command again to write it anew"
            )


def _look(path: Path) -> RunOnDisk:
    n_bytes, parts_bytes = _size(path), _size(path / "parts")
    try:
        state = RunDirectory.open(path).state
    except PolykvError as error:
        return RunOnDisk(path, None, "damaged", str(error), n_bytes, parts_bytes)
    status = state["status"]
    if status == "running" and not _is_held(path):
        status = "killed"
    return RunOnDisk(path, state, status, None, n_bytes, parts_bytes)


def _is_held(path: Path) -> bool:
    """Whether somebody writes here, as far as the owner file says; the lock itself is not touched.

    A process of another host cannot be looked at, and counts as alive.
    """
    try:
        owner = json.loads((path / OWNER_NAME).read_text())
        pid, host = int(owner["pid"]), str(owner["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return host != socket.gethostname() or _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _size(folder: Path) -> int:
    """Bytes of all files below a folder; one that vanishes meanwhile counts nothing."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total
