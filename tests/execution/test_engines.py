"""Engines: a loop here or on Dask workers, with the same outcomes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy  # noqa: F401  (its BLAS is one of the libraries whose threads are counted)
import pytest
from enginejobs import (
    deadly_five,
    deadly_once,
    most_threads,
    page_faults_of_arrays,
    raises_unpicklable,
    seven_fails,
    slow_square,
    square,
)
from threadpoolctl import threadpool_info, threadpool_limits

from polykv.errors import InputError, WorkerError
from polykv.execution import dask_session
from polykv.execution.engines import SERIAL, Engine, JobFailure, fan_out, open_session
from polykv.execution.threads import one_thread
from polykv.execution.versions import check_versions, computing_versions

REPOSITORY = Path(__file__).resolve().parents[2]
TWO = Engine("local", n_workers=2)


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("serial", Engine("serial")),
        ("local", Engine("local")),
        ("local:3", Engine("local", n_workers=3)),
        ("tcp://10.0.0.1:8786", Engine("address", address="tcp://10.0.0.1:8786")),
        ("tls://scheduler:1", Engine("address", address="tls://scheduler:1")),
    ],
)
def test_an_engine_is_named_in_a_word(text, engine):
    assert Engine.parse(text) == engine


@pytest.mark.parametrize("text", ["", "dask", "local:", "local:x", "local:0", "http://x", "10.0.0.1:8786"])
def test_an_unknown_engine_is_refused(text):
    with pytest.raises(InputError, match="known: serial, local, local:N, tcp://HOST:PORT|at least 1"):
        Engine.parse(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "threads"},
        {"kind": "serial", "n_workers": 2},
        {"kind": "address"},
        {"kind": "local", "address": "tcp://x:1"},
        {"kind": "client"},
    ],
)
def test_an_engine_that_makes_no_sense_is_refused(fields):
    with pytest.raises(InputError):
        Engine(**fields)


def test_serial_yields_results_and_failures_in_order():
    outcomes = list(fan_out(seven_fails, range(6, 9), SERIAL))
    assert outcomes == [(6, 36), (7, JobFailure("ValueError", "seven is refused")), (8, 64)]


def test_serial_is_lazy_and_lets_an_interrupt_through():
    seen = []

    def stop_at_three(x: int) -> int:
        if x == 3:
            raise KeyboardInterrupt
        return x

    with pytest.raises(KeyboardInterrupt):
        seen.extend(fan_out(stop_at_three, range(9), SERIAL))
    assert list(islice(fan_out(stop_at_three, range(9), SERIAL), 2)) == [(0, 0), (1, 1)]


def test_serial_jobs_run_on_one_thread_and_the_callers_threads_come_back():
    with threadpool_limits(limits=2):
        before = [library["num_threads"] for library in threadpool_info()]
        assert max(before) == 2
        assert [threads for _, (_, threads) in fan_out(most_threads, [0], SERIAL)] == [1]
        assert [library["num_threads"] for library in threadpool_info()] == before


def test_numba_is_pinned_and_restored_where_it_is_loaded():
    numba = pytest.importorskip("numba")
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("numba has one thread here anyway")
    numba.set_num_threads(2)
    with one_thread():
        assert numba.get_num_threads() == 1
    assert numba.get_num_threads() == 2


def test_a_serial_run_never_loads_dask():
    code = "import sys; from polykv.execution import sweep; sys.exit('distributed' in sys.modules or 'dask' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=300).returncode == 0


def test_no_job_starts_no_worker(monkeypatch):
    monkeypatch.setattr(dask_session.DaskSession, "_connect", lambda self: pytest.fail("connected for nothing"))
    assert list(fan_out(square, [], TWO)) == []


def test_a_scheduler_that_does_not_answer_is_a_worker_error(monkeypatch):
    monkeypatch.setattr(dask_session, "CONNECT_SECONDS", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(WorkerError, match=f"no Dask scheduler answers at {address} within 1 s"):
        list(fan_out(square, [1], Engine("address", address=address)))


def test_something_that_is_no_client_is_refused():
    with pytest.raises(InputError, match="client is a str, must be a dask.distributed Client"):
        list(fan_out(square, [1], Engine("client", client="tcp://x")))


def test_a_difference_in_versions_names_worker_package_and_both():
    ours = computing_versions()
    assert set(ours) == {"polykv", "polykv numerics", "numpy", "zarr", "pyarrow"}
    check_versions({"worker tcp://a": dict(ours)})
    with pytest.raises(WorkerError, match=rf"worker tcp://b has zarr 2.0, this process has {ours['zarr']}: install"):
        check_versions({"worker tcp://a": dict(ours), "worker tcp://b": ours | {"zarr": "2.0"}})
    with pytest.raises(WorkerError, match=r"tcp://c cannot run polykv \(ModuleNotFoundError: No module"):
        check_versions({"worker tcp://c": ModuleNotFoundError("No module named 'polykv'")})


@pytest.fixture(scope="module")
def two():
    """One session on two local workers for the tests that leave it sound."""
    with open_session(TWO) as session:
        yield session


@pytest.mark.slow
def test_local_workers_give_what_serial_gives(two):
    serial = dict(fan_out(seven_fails, range(40), SERIAL))
    assert dict(two.fan_out(seven_fails, range(40))) == serial


@pytest.mark.slow
def test_workers_are_processes_with_one_thread(two):
    found = {outcome for _, outcome in two.fan_out(most_threads, range(20))}
    assert {threads for _, threads in found} == {1}
    assert os.getpid() not in {process for process, _ in found}


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the thresholds are those of glibc")
def test_workers_keep_the_memory_of_freed_arrays(two):
    # 50 arrays of 2,000 pages: mapped anew each time they would fault 100,000 times
    assert all(faults < 20_000 for _, faults in two.fan_out(page_faults_of_arrays, range(2)))


def test_an_error_that_cannot_be_unpickled_is_a_failure_like_any(two):
    assert dict(two.fan_out(raises_unpicklable, [3])) == {3: JobFailure("Unpicklable", "place 3")}


@pytest.mark.slow
def test_results_are_released_and_the_rest_is_cancelled_when_the_caller_stops(two):
    stream = two.fan_out(slow_square, range(200))
    assert len(list(islice(stream, 3))) == 3
    stream.close()
    deadline = time.monotonic() + 120
    client = two._client
    while client.futures and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client.futures == {}
    assert dict(two.fan_out(square, [4])) == {4: 16}


@pytest.mark.slow
def test_the_scheduler_never_holds_the_whole_plan(two):
    most = 0
    for _, _ in two.fan_out(square, range(60)):
        most = max(most, len(two._client.futures))
    assert most < 10  # two in flight, and those whose release is on its way


@pytest.mark.slow
def test_a_job_whose_worker_dies_once_is_done_again(tmp_path):
    jobs = [(str(tmp_path), x) for x in range(12)]
    with open_session(TWO) as session:
        assert dict(session.fan_out(deadly_once, jobs)) == {job: job[1] ** 2 for job in jobs}
    assert (tmp_path / "died").exists()


@pytest.mark.slow
def test_a_deadly_job_fails_alone_and_its_neighbours_are_fine():
    with open_session(TWO) as session:
        outcomes = dict(session.fan_out(deadly_five, range(12)))
    failure = outcomes.pop(5)
    assert failure.kind == "WorkerLost"
    assert "tcp://" not in failure.text  # the text is the same on any host
    assert outcomes == {x: x * x for x in range(12) if x != 5}


@pytest.mark.slow
def test_workers_that_are_gone_for_good_are_replaced(monkeypatch):
    monkeypatch.setattr(dask_session, "LOOK_EVERY_SECONDS", 0.5)
    with open_session(TWO) as session:
        assert dict(session.fan_out(square, [1])) == {1: 1}
        workers = list(session._cluster.workers)
        session._cluster.sync(lambda: _close_all(session._cluster, workers))
        assert session._client.nthreads() == {}
        assert dict(session.fan_out(square, range(6))) == {x: x * x for x in range(6)}


async def _close_all(cluster, workers) -> None:
    """End worker processes with their nannies, as a restart that failed does, and forget them."""
    for name in workers:
        await cluster.workers.pop(name).close()


@pytest.mark.slow
def test_a_cluster_that_loses_its_last_worker_is_a_worker_error(scheduler, launch, monkeypatch):
    monkeypatch.setattr(dask_session, "LOOK_EVERY_SECONDS", 0.2)
    worker = launch("dask_worker", scheduler, "--no-nanny")
    with open_session(Engine.parse(scheduler)) as session:
        stream = session.fan_out(slow_square, range(400))
        assert len(list(islice(stream, 3))) == 3
        monkeypatch.setattr(dask_session, "NO_WORKER_SECONDS", 1)
        worker.kill()
        with pytest.raises(WorkerError, match="has had no worker for 1 s.*run the same command again"):
            list(stream)


@pytest.mark.slow
def test_a_callers_client_serves_and_stays_open():
    from distributed import Client, LocalCluster

    quiet = {"dashboard_address": None, "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}}
    with LocalCluster(n_workers=1, threads_per_worker=1, **quiet) as cluster, Client(cluster) as client:
        engine = Engine("client", client=client)
        assert dict(fan_out(square, range(5), engine)) == {x: x * x for x in range(5)}
        assert client.status == "running"
        # Queued on one worker, innocent jobs share a deadly one's fate until they are tried alone.
        outcomes = dict(fan_out(deadly_five, range(3, 8), engine))
    assert {x for x, outcome in outcomes.items() if isinstance(outcome, JobFailure)} == {5}


@pytest.fixture
def launch(tmp_path):
    """launch(module, *arguments, python_path=…) starts a Dask process that is stopped after the test."""
    started: list[subprocess.Popen] = []
    elsewhere = tmp_path / "elsewhere"  # a process finds packages in its working directory first
    elsewhere.mkdir()

    def start(module: str, *arguments: str, python_path: str = "") -> subprocess.Popen:
        path = os.pathsep.join(filter(None, (python_path, str(REPOSITORY), str(Path(__file__).parent))))
        command = [
            sys.executable,
            "-m",
            f"distributed.cli.{module}",
            *arguments,
            "--host",
            "127.0.0.1",
            "--no-dashboard",
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = os.environ | {"PYTHONPATH": path}
        started.append(subprocess.Popen(command, cwd=elsewhere, env=environment, **quiet))
        return started[-1]

    yield start
    for process in reversed(started):
        with process:
            _stop(process)


@pytest.fixture
def scheduler(launch):
    """The address of a `dask scheduler` process on a free port of the loopback interface."""
    return launch_scheduler(launch)[0]


def launch_scheduler(launch) -> tuple[str, subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    process = launch("dask_scheduler", "--port", port)
    return f"tcp://127.0.0.1:{port}", process


def _stop(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


@pytest.mark.slow
def test_an_external_scheduler_serves(scheduler, launch):
    launch("dask_worker", scheduler, "--nthreads", "2")
    engine = Engine.parse(scheduler)
    assert dict(fan_out(seven_fails, range(20), engine)) == dict(fan_out(seven_fails, range(20), SERIAL))
    assert {threads for _, (_, threads) in fan_out(most_threads, range(6), engine)} == {1}


@pytest.mark.slow
def test_a_scheduler_lost_half_way_is_a_worker_error(launch):
    address, process = launch_scheduler(launch)
    launch("dask_worker", address)
    with open_session(Engine.parse(address)) as session:
        stream = session.fan_out(slow_square, range(400))
        assert len(list(islice(stream, 3))) == 3
        process.kill()
        with pytest.raises(WorkerError, match="was lost .*run the same command again"):
            list(stream)


@pytest.mark.slow
def test_an_external_worker_with_another_package_version_is_refused_before_work(scheduler, launch, tmp_path):
    info = tmp_path / "pyarrow-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyarrow\nVersion: 0.0.1\n")
    launch("dask_worker", scheduler, python_path=str(tmp_path))
    with pytest.raises(WorkerError, match=r"worker tcp://.* has pyarrow 0\.0\.1, this process has "):
        list(fan_out(square, [1], Engine.parse(scheduler)))


@pytest.mark.slow
def test_an_external_worker_without_polykv_is_refused_before_work(scheduler, launch, tmp_path):
    (tmp_path / "polykv").mkdir()
    (tmp_path / "polykv" / "__init__.py").write_text("raise ImportError('none here')\n")
    launch("dask_worker", scheduler, python_path=str(tmp_path))
    with pytest.raises(WorkerError, match="worker tcp://.* cannot run polykv .*install polykv"):
        list(fan_out(square, [1], Engine.parse(scheduler)))


@pytest.mark.slow
def test_an_external_scheduler_without_polykv_is_refused_before_work(launch, tmp_path):
    (tmp_path / "polykv").mkdir()
    (tmp_path / "polykv" / "__init__.py").write_text("raise ImportError('none here')\n")
    launch("dask_scheduler", "--port", "0", "--scheduler-file", str(tmp_path / "at.json"), python_path=str(tmp_path))
    launch("dask_worker", "--scheduler-file", str(tmp_path / "at.json"))
    deadline = time.monotonic() + 300
    while not (tmp_path / "at.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    address = json.loads((tmp_path / "at.json").read_text())["address"]
    with pytest.raises(WorkerError, match="scheduler tcp://.* cannot run polykv .*install polykv"):
        list(fan_out(square, [1], Engine.parse(address)))


@pytest.mark.slow
def test_a_scheduler_without_workers_is_a_worker_error(scheduler, monkeypatch):
    monkeypatch.setattr(dask_session, "NO_WORKER_SECONDS", 1)
    with pytest.raises(WorkerError, match="has had no worker for 1 s"):
        list(fan_out(square, [1], Engine.parse(scheduler)))
