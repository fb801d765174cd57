"""Where a store lives: a path or an fsspec URL, its plain files, and its zarr view."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore

from polykv.errors import InputError, MissingExtraError, PolykvError, StorageFullError, StoreError


@dataclass(frozen=True)
class Location:
    """A directory-like place. `url` is what the user wrote, `path` fsspec's name for it."""

    url: str
    fs: fsspec.AbstractFileSystem
    path: str
    storage_options: Mapping[str, Any]

    @classmethod
    def of(cls, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Location:
        """Resolve a path or URL (file://, memory://, s3:// …); touches nothing.

        Options the URL cannot hold (an endpoint, credentials) come from the environment or from
        `storage_options`. Raises InputError for an empty path or an unknown protocol, MissingExtraError when the
        protocol's package is not installed.
        """
        options = dict(storage_options or {})
        if not os.fspath(url):
            raise InputError("the path of a capture store is empty; name a folder or URL, for example captures/mine")
        try:
            fs, path = fsspec.url_to_fs(os.fspath(url), **options)
        except ImportError as error:
            raise MissingExtraError(f"{url}: {error}") from error
        except (ValueError, TypeError) as error:
            raise InputError(f"{url} is not a path or URL that can be opened: {error}") from error
        return cls(str(url), fs, path.rstrip("/") or "/", options)

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    def zarr_store(self, *, read_only: bool) -> Store:
        """The zarr view of the place."""
        if self.is_local:
            return LocalStore(self.path, read_only=read_only)
        return FsspecStore.from_url(self.url, storage_options=dict(self.storage_options), read_only=read_only)

    def entries(self) -> list[str]:
        """Names directly inside; empty when there is nothing at the place.

        Raises InputError when the place is a file.
        """
        with reading(self.url):
            self.fs.invalidate_cache()
            try:
                found = [str(name).rstrip("/") for name in self.fs.ls(self.path, detail=False)]
            except FileNotFoundError:
                return []
            if found == [self.path] and self.fs.isfile(self.path):
                raise InputError(f"{self.url} is a file, a capture store is a directory")
            except_self = [name for name in found if name != self.path]
            return sorted(name.rsplit("/", 1)[-1] for name in except_self)

    def read_bytes(self, name: str) -> bytes | None:
        """One file's bytes, None when it is absent. Raises StoreError when it cannot be read."""
        with reading(f"{self.url}, file {name}"):
            try:
                return self.fs.cat_file(f"{self.path}/{name}")
            except (FileNotFoundError, NotADirectoryError):
                return None

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write one file so that nobody ever sees half of it: temp and rename, or a single PUT."""
        with writing(f"{self.url}, file {name}"):
            if self.is_local:
                _replace_file(Path(self.path) / name, data)
            else:
                self.fs.pipe_file(f"{self.path}/{name}", data)

    def size_bytes(self) -> int:
        """Bytes of all files inside."""
        with reading(self.url):
            self.fs.invalidate_cache()
            return int(self.fs.du(self.path))


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn a library's failure to read (network, permission, credentials) into a StoreError."""
    try:
        yield
    except (PolykvError, MemoryError):
        raise
    except Exception as error:
        raise StoreError(f"{what} cannot be read: {type(error).__name__}: {error}") from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn a library's failure to write into StorageFullError (no space, quota) or StoreError."""
    try:
        yield
    except (PolykvError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"no space left while writing {what}; what was written before is kept, the store is not sealed. "
                "Free some space or choose another place, and capture again"
            ) from error
        raise StoreError(f"{what} cannot be written: {type(error).__name__}: {error}") from error


def _replace_file(target: Path, data: bytes) -> None:
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
