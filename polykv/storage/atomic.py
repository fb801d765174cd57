"""Whole files or none: write to a temporary name, fsync, rename.

A reader never meets a half-written file, and a disk that runs full leaves what was there
before. Temporary names end in `.tmp`, so that no reader of a folder of tables picks one up.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from pathlib import Path

from polykv.errors import InputError, StorageFullError

TEMP_SUFFIX = ".tmp"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP
)  # fmt: skip


def write_bytes(path: Path, data: bytes) -> Path:
    """Put `data` at `path`, whole; an older file of that name is replaced.

    Raises StorageFullError when the disk or quota is full, InputError when the file system refuses
    the place (no right to write, no such folder, a name too long): the older file, if any, is kept.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMP_SUFFIX}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # a name that was refused cannot be deleted either
            temporary.unlink(missing_ok=True)
        if error.errno in _FULL:
            raise StorageFullError(
                f"{path}: no space for {len(data)} bytes ({error.strerror}); what was written before is kept: "
                "free space, then run the same command again"
            ) from error
        if error.errno in _REFUSED:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def remove_leftovers(folder: Path) -> int:
    """Delete the temporary files that a killed writer left in `folder`; returns how many."""
    leftovers = [path for path in folder.iterdir() if path.name.startswith(".") and path.name.endswith(TEMP_SUFFIX)]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


def _sync_folder(folder: Path) -> None:
    """Make a rename outlast a power cut, where the platform can open a folder."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
