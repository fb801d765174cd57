"""What computed a result: versions and git state, recorded and never hashed."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import polykv
from polykv.receipts import NUMERICS_VERSION

_PACKAGES = ("numpy", "scipy", "numba", "zarr", "pyarrow", "dask", "distributed")


def versions() -> dict[str, str]:
    """What computes here: Python, polykv, its numerics version, and the packages that matter."""
    found = {"python": sys.version.split()[0], "polykv": polykv.__version__, "numerics": str(NUMERICS_VERSION)}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any] | None:
    """Commit and cleanliness of the checkout polykv runs from; None when it is an installed package."""
    root = Path(polykv.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        commit, dirty = (
            subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.stdout.strip(), "dirty": bool(dirty.stdout.strip())}
