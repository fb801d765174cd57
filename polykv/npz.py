"""Named arrays as npz bytes that depend on names and arrays alone; nothing is ever pickled.

The bytes are the same for the same arrays on any machine and day, so their blake3 is the
identity that a policy, a codec or a row digest holds.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import numpy as np

from polykv.errors import InputError

_EPOCH = (1980, 1, 1, 0, 0, 0)


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """An npz of arrays of any shape and numeric dtype: names sorted, stored uncompressed, no clock.

    Raises InputError for no arrays, or for object arrays (they would need pickle).
    """
    if not arrays:
        raise InputError("an artifact needs at least one array")
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


def npz_arrays(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of `npz_bytes`, by name."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
