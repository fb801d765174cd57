"""One writer per run directory.

The lock is the operating system's (fcntl on POSIX), so it ends with the process that holds
it, however that process ends. Who holds it stands in a file beside it, for the error's text.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from polykv.errors import RunLockedError, StoreError
from polykv.receipts import pretty_json
from polykv.storage.atomic import write_bytes

LOCK_NAME = ".lock"
OWNER_NAME = ".lock-owner.json"


class RunLock:
    """The lock of one run directory; held from construction to `release`."""

    def __init__(self, folder: Path) -> None:
        """Take the lock at once. Raises RunLockedError naming process and host that hold it, StoreError where nothing can be written."""
        self._owner = folder / OWNER_NAME
        self._lock = FileLock(folder / LOCK_NAME)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise RunLockedError(
                f"{folder}: {_describe(self._owner)} is writing this run directory; "
                "wait until it ends, or choose another run directory"
            ) from error
        except OSError as error:
            raise StoreError(
                f"{folder} cannot be written ({error.strerror}): its lock cannot be taken; "
                "make it writable, or choose another run directory"
            ) from error
        try:
            owner = {"pid": os.getpid(), "host": socket.gethostname()}
            write_bytes(self._owner, pretty_json(owner).encode())
        except BaseException:
            self._lock.release()
            raise

    @property
    def held(self) -> bool:
        return self._lock.is_locked

    def release(self) -> None:
        """Let the next writer in; a second call does nothing."""
        if self._lock.is_locked:
            self._owner.unlink(missing_ok=True)
            self._lock.release()


def _describe(owner: Path) -> str:
    """Who holds the lock, as far as the owner file says (its writer may be between the two steps)."""
    try:
        raw = json.loads(owner.read_text())
        return f"process {raw['pid']} on {raw['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
