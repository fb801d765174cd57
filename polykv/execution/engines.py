"""How jobs run: an engine only loops, and serial is the meaning.

    with open_session(Engine.parse("local:2")) as session:
        for job, outcome in session.fan_out(function, jobs):
            ...

`function` is a module-level function of one job; jobs are small and picklable; outcomes come as
jobs complete. A job that raises, or whose worker dies, yields a `JobFailure`; the others finish.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from polykv.errors import InputError
from polykv.execution.threads import one_thread

KINDS = ("serial", "local", "address", "client")
WORKER_LOST = "WorkerLost"


@dataclass(frozen=True)
class JobFailure:
    """Why a job gave nothing: the error's class name (`WorkerLost` when its process died) and its text."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Session(Protocol):
    """Something that runs jobs; workers start with the first job, never for none."""

    def fan_out(self, function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """(job, result or JobFailure) of every job, as completed."""


@dataclass(frozen=True)
class Engine:
    """Where jobs run.

    serial: in this process. local: `n_workers` single-threaded processes on this machine (None:
    one per usable core). address: the Dask scheduler at `address`. client: a Dask `Client` that
    the caller made (of any cluster) and closes.
    """

    kind: str = "local"
    n_workers: int | None = None
    address: str | None = None
    client: Any = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"engine is {self.kind!r}; known: {', '.join(KINDS)}")
        if self.n_workers is not None and (self.kind != "local" or self.n_workers < 1):
            raise InputError(f"n_workers is {self.n_workers} for engine {self.kind!r}: at least 1, and for local only")
        for name, kind in (("address", "address"), ("client", "client")):
            if (getattr(self, name) is not None) != (self.kind == kind):
                raise InputError(f"engine {self.kind!r} with {name} = {getattr(self, name)!r}")

    @classmethod
    def parse(cls, text: str) -> Engine:
        """`serial`, `local`, `local:4` or a scheduler address such as `tcp://host:8786`."""
        if text == "serial":
            return cls("serial")
        local = re.fullmatch(r"local(?::(\d+))?", text)
        if local:
            return cls("local", n_workers=int(local[1]) if local[1] else None)
        if re.fullmatch(r"(tcp|tls|ucx|ws|wss)://.+", text):
            return cls("address", address=text)
        raise InputError(f"engine is {text!r}; known: serial, local, local:N, tcp://HOST:PORT")

    @property
    def name(self) -> str:
        """The text that `parse` reads back (a caller's client has none: "client")."""
        if self.kind == "local" and self.n_workers is not None:
            return f"local:{self.n_workers}"
        return self.address or self.kind

    @property
    def local_workers(self) -> int:
        """Processes a local engine starts."""
        return self.n_workers or usable_cores()


SERIAL = Engine("serial")


@contextmanager
def open_session(engine: Engine) -> Iterator[Session]:
    """A session on `engine`; what it started is stopped at the end of the block.

    Raises WorkerError, at the first job, for a scheduler that does not answer and for workers
    that cannot import polykv or have other versions than this process.
    """
    if engine.kind == "serial":
        yield SerialSession()
        return
    from polykv.execution.dask_session import DaskSession  # a serial run never loads Dask

    session = DaskSession(engine)
    try:
        yield session
    finally:
        session.close()


def fan_out(function: Callable[[Any], Any], jobs: Iterable[Any], engine: Engine) -> Iterator[tuple[Any, Any]]:
    """(job, result or JobFailure) of every job as completed, on workers of its own."""
    with open_session(engine) as session:
        yield from session.fan_out(function, jobs)


class SerialSession:
    """A plain loop in this process: what every other engine must agree with."""

    def fan_out(self, function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        for job in jobs:
            with one_thread():
                outcome = attempt(function, job)
            yield job, outcome


def attempt(function: Callable[[Any], Any], job: Any) -> Any:
    """`function(job)`, or the JobFailure that says why not."""
    try:
        return function(job)
    except Exception as error:
        return JobFailure(type(error).__name__, str(error))


def usable_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
