"""One thread per process for BLAS, OpenMP and numba, so that every engine adds in the same order.

A matrix product split over threads rounds differently; a serial run that used two threads
would not be the meaning of a distributed one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

# What a worker process finds in its environment before it loads any library.
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMBA_NUM_THREADS",
    ),
    "1",
)

# Dask lowers glibc's trim threshold to 64 KiB, which also stops its mmap threshold from growing: every
# array beyond 128 KiB is then mapped, faulted in and unmapped anew, in more time than the arithmetic takes.
KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(128 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}


def pin_process() -> None:
    """Limit this process to one thread per library, for good: for workers, which only run jobs."""
    threadpool_limits(limits=1)
    _set_numba_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit this process to one thread per library inside the block, and restore it after."""
    before = _numba_threads()
    with threadpool_limits(limits=1):
        _set_numba_threads(1)
        try:
            yield
        finally:
            _set_numba_threads(before)


def _numba_threads() -> int | None:
    """Threads numba uses now; None when nothing has loaded it."""
    numba = sys.modules.get("numba")
    return None if numba is None else numba.get_num_threads()


def _set_numba_threads(count: int | None) -> None:
    numba = sys.modules.get("numba")
    if numba is not None and count is not None:
        numba.set_num_threads(count)
