"""Scheduler and workers must compute with what this process computes with; Dask's own check misses half of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import polykv
from polykv.errors import WorkerError
from polykv.receipts import NUMERICS_VERSION

_PACKAGES = ("numpy", "zarr", "pyarrow")


def computing_versions() -> dict[str, str]:
    """Versions that decide figures and files, in this process; runs in the others too."""
    ours = {"polykv": polykv.__version__, "polykv numerics": str(NUMERICS_VERSION)}
    return ours | {name: metadata.version(name) for name in _PACKAGES}


def check_versions(found: Mapping[str, Any]) -> None:
    """`found`: process → its computing_versions(), or the exception it answered with.

    Raises WorkerError naming the process, the package and both versions.
    """
    ours = computing_versions()
    for process, theirs in found.items():
        if isinstance(theirs, BaseException):
            raise WorkerError(
                f"{process} cannot run polykv ({type(theirs).__name__}: {theirs}): "
                f"install polykv {polykv.__version__} in its environment"
            )
        for name, version in ours.items():
            if theirs.get(name) != version:
                raise WorkerError(
                    f"{process} has {name} {theirs.get(name, '(none)')}, this process has {version}: "
                    "install the same versions on both"
                )
