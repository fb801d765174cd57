"""Jobs for the engine tests: module-level, so that any worker process can import them."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np  # its BLAS is one of the libraries whose threads are counted
from threadpoolctl import threadpool_info


def square(x: int) -> int:
    return x * x


def seven_fails(x: int) -> int:
    if x == 7:
        raise ValueError("seven is refused")
    return x * x


class Unpicklable(Exception):
    """Pickles, but cannot be unpickled: its constructor wants another argument."""

    def __init__(self, where: str, number: int) -> None:
        super().__init__(f"{where} {number}")


def raises_unpicklable(x: int) -> int:
    raise Unpicklable("place", x)


def deadly_five(x: int) -> int:
    """Kills its process for 5, which waits until the process is quite up; the others are there when it happens."""
    time.sleep(0.1)
    if x == 5:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x


def deadly_once(job: tuple[str, int]) -> int:
    """Kills its process the first time it sees 5."""
    folder, x = job
    time.sleep(0.1)
    flag = Path(folder) / "died"
    if x == 5 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x


def most_threads(x: int) -> tuple[int, int]:
    """(process, most threads of any native library in it); `x` is not used."""
    np.ones((2, 2)) @ np.ones((2, 2))
    counts = [library["num_threads"] for library in threadpool_info()]
    numba = sys.modules.get("numba")
    return os.getpid(), max([*counts, numba.get_num_threads() if numba else 1])


def slow_square(x: int) -> int:
    time.sleep(0.05)
    return x * x


def page_faults_of_arrays(x: int) -> int:
    """Minor page faults of 50 arrays of 8 MB, made and dropped one after the other."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(1_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
