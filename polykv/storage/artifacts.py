"""Trained state (means, dictionaries, codebooks) as npz files named by their own digest.

The bytes are the same for the same arrays on any machine and day, so the blake3 of the file
is the identity that a policy or a row digest can hold. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from polykv.errors import DamagedStoreError, InputError, StoreError
from polykv.receipts import digest_bytes
from polykv.storage.atomic import write_bytes

_EPOCH = (1980, 1, 1, 0, 0, 0)


def artifact_path(folder: Path, digest: str) -> Path:
    """Where the artifact of this digest stands in `folder`."""
    return folder / f"{digest}.npz"


def save_artifact(folder: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write named arrays of any shape and numeric dtype; returns the blake3 of the file's bytes.

    Raises InputError for no arrays, or for object arrays (they would need pickle).
    """
    if not arrays:
        raise InputError("an artifact needs at least one array")
    data = _npz_bytes(arrays)
    digest = digest_bytes(data)
    write_bytes(artifact_path(folder, digest), data)
    return digest


def load_artifact(folder: Path, digest: str) -> dict[str, np.ndarray]:
    """The arrays of an artifact, by name.

    Raises StoreError when it is not there, DamagedStoreError when its bytes have another digest.
    """
    path = artifact_path(folder, digest)
    if not path.is_file():
        raise StoreError(f"{path}: the artifact is missing; run the command that fitted it again")
    data = path.read_bytes()
    found = digest_bytes(data)
    if found != digest:
        raise DamagedStoreError(f"{path}: the artifact's digest is {found}, its name says {digest}")
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """An npz whose bytes depend on names and arrays alone: sorted, stored, no clock."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            if array.dtype.kind not in "biufc":
                raise InputError(f"artifact array {name!r} has dtype {array.dtype}, must be numeric")
            item = io.BytesIO()
            little = array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(np.shape(arrays[name]))
            np.lib.format.write_array(item, little, version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=_EPOCH)
            info.create_system = 3  # the same bytes on Windows and elsewhere
            archive.writestr(info, item.getvalue())
    return buffer.getvalue()
