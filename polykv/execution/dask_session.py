"""Jobs on Dask workers: the only module that imports Dask.

Jobs are submitted a few at a time and released as they complete: the scheduler never holds
the whole plan or its results, and the loss of a worker costs only what it was running.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from threading import Lock
from typing import Any

import dask
from distributed import Client, Future, LocalCluster, as_completed
from distributed.scheduler import KilledWorker

from polykv.errors import InputError, WorkerError
from polykv.execution.engines import WORKER_LOST, Engine, JobFailure, attempt
from polykv.execution.threads import KEEP_FREED_MEMORY, ONE_THREAD, pin_process
from polykv.execution.versions import check_versions, computing_versions

CONNECT_SECONDS = 20
NO_WORKER_SECONDS = 120
LOOK_EVERY_SECONDS = 5
_SHORTEST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05
_REFRESH_EVERY = 64  # completed jobs between two looks at how many threads the workers have


class DaskSession:
    """Runs jobs on the workers of an engine; connects, or starts them, with the first job.

    Several threads may fan out at once on one session.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cluster: LocalCluster | None = None
        self._client: Client | None = None
        self._connecting = Lock()

    def fan_out(self, function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """(job, result or JobFailure) of every job, as completed."""
        waiting = list(jobs)
        if not waiting:
            return
        with self._connecting:
            self._connect()
        suspects: list[Any] = []
        for job, outcome in self._stream(function, waiting, self._limit):
            lost = isinstance(outcome, JobFailure) and outcome.kind == WORKER_LOST
            if lost and self._engine.kind != "local":
                suspects.append(job)
            else:
                yield job, outcome
        # A worker's death is blamed on every job queued on it, so those beside a deadly one look
        # deadly too: alone, each shows what it is. (Our own workers have no queue: see _limit.)
        for job in suspects:
            yield from self._stream(function, [job], lambda: 1)

    def close(self) -> None:
        """Stop what this session started; a caller's own client is left as it is."""
        if self._client is not None and self._engine.kind != "client":
            self._client.close()
        if self._cluster is not None:
            self._cluster.close()
        self._client = self._cluster = None

    def _stream(
        self, function: Callable[[Any], Any], jobs: list[Any], limit: Callable[[], int]
    ) -> Iterator[tuple[Any, Any]]:
        """Keep `limit()` jobs in flight until all are done; cancels the rest when closed early."""
        queue = iter(jobs)
        in_flight: dict[Future, Any] = {}
        allowed = limit()

        def submit() -> list[Future]:
            room = max(0, allowed - len(in_flight))
            new = {self._submit(function, job): job for job in islice(queue, room)}
            in_flight.update(new)
            return list(new)

        try:
            completed = as_completed(submit(), loop=self._client.loop, with_results=True, raise_errors=False)
            for done, (future, result) in enumerate(self._watched(completed), start=1):
                job = in_flight.pop(future)
                outcome = self._outcome(future, result)
                future.release()
                if done % _REFRESH_EVERY == 0:
                    allowed = limit()
                completed.update(submit())
                yield job, outcome
        finally:
            if in_flight and self._client.status == "running":
                self._client.cancel(list(in_flight))

    def _watched(self, completed: as_completed) -> Iterator[tuple[Future, Any]]:
        """`completed` as it completes; looks after the workers whenever nothing does for a while."""
        quiet_since = looked = time.monotonic()
        while not completed.is_empty():
            now = time.monotonic()
            if completed.has_ready():
                yield next(completed)
                quiet_since = looked = time.monotonic()
            elif now - looked > LOOK_EVERY_SECONDS:
                self._look_after_workers(now - quiet_since)
                looked = time.monotonic()
            else:
                time.sleep(min(_LONGEST_PAUSE_SECONDS, max(_SHORTEST_PAUSE_SECONDS, (now - quiet_since) / 10)))

    def _look_after_workers(self, quiet_seconds: float) -> None:
        """Replace workers that are gone for good, and give up on a cluster that has none.

        A worker that dies while its nanny is still starting it is not started again: a deadly
        job on a busy machine can take all of them, and what is in flight would wait for ever.
        """
        try:
            there = len(self._client.nthreads())
        except (OSError, TimeoutError):
            return  # no scheduler: the futures tell
        if self._cluster is not None and there < self._engine.local_workers:
            self._cluster.scale(self._engine.local_workers)
        if there == 0 and quiet_seconds > NO_WORKER_SECONDS:
            raise WorkerError(
                f"the Dask scheduler {self._place()} has had no worker for {NO_WORKER_SECONDS} s: start some; "
                "finished jobs are kept: run the same command again"
            )

    def _submit(self, function: Callable[[Any], Any], job: Any) -> Future:
        key = f"{function.__name__}-{uuid.uuid4().hex}"
        return self._client.submit(_attempt_pinned, function, job, key=key, pure=False)

    def _outcome(self, future: Future, result: Any) -> Any:
        if future.status == "finished":
            return result
        if future.status == "error":
            error = result[1] if isinstance(result, tuple) else result
            if isinstance(error, KilledWorker):
                return JobFailure(WORKER_LOST, "every process that ran this job died; see the workers' memory and logs")
            return JobFailure(type(error).__name__, str(error))
        raise WorkerError(
            f"the Dask scheduler {self._place()} was lost (a job is {future.status!r}); "
            "finished jobs are kept: run the same command again"
        )

    def _connect(self) -> None:
        if self._client is not None:
            return
        if self._engine.kind == "local":
            self._start_local()
        elif self._engine.kind == "address":
            self._client = _reach(self._engine.address)
        else:
            self._client = _usable(self._engine.client)
        self._check_workers()

    def _start_local(self) -> None:
        settings = {
            "distributed.worker.multiprocessing-method": "spawn",
            "distributed.nanny.pre-spawn-environ": {
                **dask.config.get("distributed.nanny.pre-spawn-environ"),
                **KEEP_FREED_MEMORY,
            },
        }
        with dask.config.set(settings):
            self._cluster = LocalCluster(
                n_workers=self._engine.local_workers,
                threads_per_worker=1,
                processes=True,
                # No dashboard, and the scheduler's bare HTTP port on a free one of the loopback interface.
                dashboard_address=None,
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                silence_logs=logging.CRITICAL,  # what goes wrong is told as a JobFailure
                env=dict(ONE_THREAD),
            )
        self._client = Client(self._cluster, set_as_default=False)

    def _check_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=NO_WORKER_SECONDS)
        except TimeoutError as error:
            raise WorkerError(
                f"the Dask scheduler {self._place()} has had no worker for {NO_WORKER_SECONDS} s: start some"
            ) from error
        if self._engine.kind == "local":
            return  # they are this environment
        check_versions({f"scheduler {self._place()}": self._scheduler_versions()})
        found = self._client.run(computing_versions, on_error="return")
        check_versions({f"worker {address}": versions for address, versions in found.items()})

    def _scheduler_versions(self) -> Any:
        """The scheduler unpickles jobs too, so it needs the same packages."""
        try:
            return self._client.run_on_scheduler(computing_versions)
        except Exception as error:  # whatever its import machinery raised there
            return error

    def _limit(self) -> int:
        """Jobs in flight: one per process here; elsewhere some more than the threads there are now,
        because the way is long and a cluster may grow with its queue."""
        if self._engine.kind == "local":
            return self._engine.local_workers
        return 2 * sum(self._client.nthreads().values()) + 8

    def _place(self) -> str:
        return self._client.scheduler.address if self._client.scheduler else "of this session"


def _attempt_pinned(function: Callable[[Any], Any], job: Any) -> Any:
    """`attempt` in a worker process, which keeps to one thread from then on."""
    pin_process()
    return attempt(function, job)


def _reach(address: str) -> Client:
    try:
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise WorkerError(
            f"no Dask scheduler answers at {address} within {CONNECT_SECONDS} s ({error}): "
            "start one (dask scheduler, dask worker), or use the engine local"
        ) from error


def _usable(client: Any) -> Client:
    if not isinstance(client, Client):
        raise InputError(f"client is a {type(client).__name__}, must be a dask.distributed Client")
    if client.asynchronous or client.status != "running":
        raise WorkerError(f"the Dask client is {client.status!r} or asynchronous: give a running, synchronous one")
    return client
