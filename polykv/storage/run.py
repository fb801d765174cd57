"""A run directory: what was asked, what came of it, and everything in between.

    run.json         configuration, digests, versions, status, sessions
    parts/           one file a job (see `polykv.storage.parts`)
    artifacts/       trained state by digest (see `polykv.storage.artifacts`)
    *.parquet        the tables, compacted from the parts

A run directory belongs to one configuration: resuming with the same one continues it, another
one is refused. Clock times stand here and never in a table.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polykv.errors import InputError, SchemaVersionError, StorageFullError, StoreError
from polykv.receipts import digest_bytes, digest_json, parse_json, pretty_json, to_plain
from polykv.storage.artifacts import load_artifact, save_artifact
from polykv.storage.atomic import remove_leftovers, write_bytes
from polykv.storage.lock import RunLock
from polykv.storage.provenance import git_state, versions
from polykv.storage.run_config import check_same_config

SCHEMA = "polykv_run_v1"
STATUSES = ("running", "complete", "failed", "interrupted")
RUN_ID_HEX_DIGITS = 12


class RunDirectory:
    """A run on disk. `create_or_resume` gives one to write in (locked), `open` one to read.

    As a context manager a writer ends its run: `complete` or `failed` at the end of the block,
    `interrupted` on Ctrl-C, `failed` on any other error; the lock is released either way.
    """

    def __init__(self, path: Path, state: dict[str, Any], lock: RunLock | None) -> None:
        self.path = path
        self._state = state
        self._lock = lock
        self._began = time.monotonic()
        self._end_status = "complete"

    @classmethod
    def create_or_resume(cls, path: str | os.PathLike[str], config: Mapping[str, Any]) -> RunDirectory:
        """Make the run directory, or continue the one that stands there, as its only writer.

        `config` is plain JSON and holds all that decides the results (digests of inputs, policies,
        gates, seed), nothing that does not (paths, workers, time): its digest is the run's identity.
        Raises InputError for a URL, RunLockedError when another process writes here, RunConfigError
        when the directory holds another configuration, naming the first key that differs.
        """
        folder = local_path(path)
        plain = to_plain(config)
        _make_folders(folder)
        lock = RunLock(folder)
        try:
            old = _read_state(folder) if (folder / "run.json").exists() else None
            if old is not None:
                check_same_config(folder, old["config"], plain)
            for part in (folder, folder / "parts", folder / "artifacts"):
                remove_leftovers(part)
            run = cls(folder, old or _new_state(plain), lock)
            run._state["sessions"].append({"started_at": _now(), "versions": versions(), "git": git_state()})
            run._set_status("running")
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """A run directory to read from, whatever its status. Raises InputError where there is none,
        StoreError for one that is damaged or of another schema."""
        folder = local_path(path)
        return cls(folder, _read_state(folder), None)

    @property
    def config(self) -> dict[str, Any]:
        return self._state["config"]

    @property
    def config_digest(self) -> str:
        return self._state["config_digest"]

    @property
    def run_id(self) -> str:
        """The first 12 hex digits of the configuration's digest: the same inputs, the same id anywhere."""
        return self._state["run_id"]

    @property
    def status(self) -> str:
        """running, complete, failed or interrupted; `running` without a writer means it was killed."""
        return self._state["status"]

    @property
    def state(self) -> dict[str, Any]:
        """All of run.json as plain JSON; a copy."""
        return to_plain(self._state)

    @property
    def parts(self) -> Path:
        return self.path / "parts"

    @property
    def artifacts(self) -> Path:
        return self.path / "artifacts"

    def table_path(self, name: str) -> Path:
        """Where the compacted table of this name stands (or will stand)."""
        return self.path / f"{name}.parquet"

    def existing_table(self, name: str) -> Path:
        """Where the table of this name stands. Raises StoreError, saying what the run has, when it does not."""
        path = self.table_path(name)
        if path.is_file():
            return path
        there = [file.stem for file in sorted(self.path.glob("*.parquet"))]
        what = f"it has {', '.join(there)}" if there else "it has none yet: the command that started it goes on with it"
        raise StoreError(
            f"{self.path}: this {self.config.get('kind', '')} run ({self.status}) has no table {name!r}; {what}"
        )

    def save_artifact(self, arrays: Mapping[str, np.ndarray]) -> str:
        """Keep trained state in the run; returns its digest (see `polykv.storage.artifacts`)."""
        return save_artifact(self.artifacts, arrays)

    def load_artifact(self, digest: str) -> dict[str, np.ndarray]:
        """The arrays of an artifact of this run, checked against the digest."""
        return load_artifact(self.artifacts, digest)

    def record(self, name: str, value: Any, failed: bool = False) -> None:
        """Note what a stage did (counts, seconds, notes) under `name` in this session of run.json.

        `failed` says that part of it failed: the run then ends as `failed`, though it went on.
        """
        if failed:
            self._end_status = "failed"
        self._session()[name] = to_plain(value)
        self._write()

    def record_output(self, path: Path) -> None:
        """Note the digest of a file this run ended with, so that damage can be told later."""
        self._state["outputs"][path.name] = digest_bytes(path.read_bytes())
        self._write()

    def finish(self, status: str | None = None) -> None:
        """End the run and release the lock; the session's seconds are noted.

        `status` None: `failed` when a stage recorded failures, else `complete`.
        """
        status = status or self._end_status
        if status not in STATUSES:
            raise InputError(f"status is {status!r}; known: {', '.join(STATUSES)}")
        try:
            self._session()["seconds"] = time.monotonic() - self._began
            self._set_status(status)
        finally:
            self.release()

    def release(self) -> None:
        """Let another writer in, leaving the status as it is."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._lock is None or not self._lock.held:
            return
        if kind is None:
            self.finish()
            return
        stopped = issubclass(kind, KeyboardInterrupt)
        try:
            self._session()["error"] = "interrupted" if stopped else f"{kind.__name__}: {error}"
            self.finish("interrupted" if stopped else "failed")
        except StorageFullError as full:
            # The error on its way out says more than this one; run.json stays as it was.
            if error is not None:
                error.add_note(str(full))

    def _session(self) -> dict[str, Any]:
        if self._lock is None or not self._lock.held:
            raise InputError(f"{self.path}: this run directory is open for reading only")
        return self._state["sessions"][-1]

    def _set_status(self, status: str) -> None:
        self._state["status"] = status
        self._write()

    def _write(self) -> None:
        write_bytes(self.path / "run.json", pretty_json(self._state).encode())


def local_path(path: str | os.PathLike[str]) -> Path:
    """An absolute path; a URL is refused, because runs need locks and renames."""
    text = os.fspath(path)
    if not text:
        raise InputError("the path of a run directory is empty; name one, for example runs/mine")
    if re.match(r"[a-z][a-z0-9+.-]+://", text, re.IGNORECASE):
        raise InputError(
            f"{text}: a run directory must be a path on a local or shared file system (it needs locks and renames); "
            "copy the finished run to the object store afterwards"
        )
    return Path(text).absolute()


def _new_state(config: dict[str, Any]) -> dict[str, Any]:
    digest = digest_json(config)
    return {
        "schema": SCHEMA,
        "run_id": digest[:RUN_ID_HEX_DIGITS],
        "status": "running",
        "config_digest": digest,
        "config": config,
        "outputs": {},
        "sessions": [],
    }


def refuse_no_place_for_a_run(path: str | os.PathLike[str], config: Mapping[str, Any] | None = None) -> None:
    """Raise InputError where no run directory can stand: a URL, a file, a folder of other files. Writes nothing.

    With `config` also RunConfigError where a run of another configuration stands.
    """
    folder = local_path(path)
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; a run directory must be a folder or not exist yet")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "parts").is_dir():
            raise InputError(f"{folder} holds other files and is no run directory; choose an empty or new folder")
    except OSError as error:
        raise InputError(f"{folder}: the run directory cannot be made: {error.strerror}") from error
    if config is not None and (folder / "run.json").exists():
        check_same_config(folder, _read_state(folder)["config"], to_plain(config))


def _make_folders(folder: Path) -> None:
    refuse_no_place_for_a_run(folder)
    try:
        for part in ("parts", "artifacts"):
            (folder / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: the run directory cannot be made: {error.strerror}") from error


def _read_state(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    if not path.is_file():
        raise _no_run(folder)
    try:
        state = parse_json(path.read_bytes(), str(path))
    except InputError as error:
        raise StoreError(f"{path} is damaged ({error}); move it away to start the run again from its parts") from error
    if not isinstance(state, dict) or not str(state.get("schema", "")).startswith("polykv_run_v"):
        raise StoreError(f"{path} is not the run.json of a polykv run")
    if state["schema"] != SCHEMA:
        raise SchemaVersionError(f"{path} has the schema {state['schema']}, this release reads {SCHEMA}")
    lost = sorted({"run_id", "status", "config", "config_digest", "outputs", "sessions"} - set(state))
    if lost or digest_json(state["config"]) != state["config_digest"]:
        what = f"lacks {lost[0]!r}" if lost else "holds a configuration that its config_digest does not match"
        raise StoreError(f"{path} is damaged: it {what}; move it away to start the run again from its parts")
    return state


def _no_run(folder: Path) -> InputError | StoreError:
    """What to say where run.json is missing: what stands there instead."""
    if (folder / "parts").is_dir():
        return StoreError(f"{folder} is damaged: its run.json is missing; the command that made the run writes it anew")
    if not folder.exists():
        return InputError(f"{folder} does not exist; a run directory was expected there (polykv runs lists them)")
    if folder.is_file():
        return InputError(f"{folder} is a file; a run directory was expected there")
    if (folder / "zarr.json").is_file():
        return InputError(
            f"{folder} is a capture store, no run directory; polykv replay {folder} --out RUN makes a run of it"
        )
    return InputError(f"{folder} is no run directory: it has no run.json (polykv runs lists those of a folder)")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
