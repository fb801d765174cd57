"""Trained state (means, dictionaries, codebooks) as npz files named by their own digest.

The bytes are the same for the same arrays on any machine and day, so the blake3 of the file
is the identity that a policy or a row digest can hold. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from polykv.errors import DamagedStoreError, StoreError
from polykv.npz import npz_arrays, npz_bytes
from polykv.receipts import digest_bytes
from polykv.storage.atomic import write_bytes


def artifact_path(folder: Path, digest: str) -> Path:
    """Where the artifact of this digest stands in `folder`."""
    return folder / f"{digest}.npz"


def save_artifact(folder: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write named arrays of any shape and numeric dtype; returns the blake3 of the file's bytes.

    Raises InputError for no arrays, or for object arrays (they would need pickle).
    """
    data = npz_bytes(arrays)
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
        raise DamagedStoreError(
            f"{path}: the artifact's digest is {found}, its name says {digest}; delete the file and run the command "
            "that made it again"
        )
    return npz_arrays(data)
