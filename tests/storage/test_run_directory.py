"""The run directory: one configuration, one writer, nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from storage_rows import filled_row, filled_rows

from polykv.errors import (
    DamagedStoreError,
    InputError,
    RunConfigError,
    RunLockedError,
    SchemaVersionError,
    StorageFullError,
    StoreError,
)
from polykv.schemas import CONTROLS, RESULTS
from polykv.storage.atomic import write_bytes
from polykv.storage.results import read_rows, write_table
from polykv.storage.run import RunDirectory

CONFIG = {"store": "abc", "seed": 7, "sweep": {"gates": [{"name": "cosine", "limit": 0.999}], "ks": [1, 2]}}


def test_a_run_ends_complete_and_is_resumed_with_the_same_configuration(tmp_path):
    with RunDirectory.create_or_resume(tmp_path / "run", CONFIG) as run:
        assert run.status == "running"
        run.record("replay", {"computed": 3})
    again = RunDirectory.open(tmp_path / "run")
    assert (again.status, again.config) == ("complete", CONFIG)
    assert again.state["sessions"][0]["replay"] == {"computed": 3}
    assert again.state["sessions"][0]["seconds"] >= 0
    assert again.state["sessions"][0]["versions"]["pyarrow"]
    with RunDirectory.create_or_resume(tmp_path / "run", dict(reversed(CONFIG.items()))) as run:
        assert len(run.state["sessions"]) == 2


def test_the_run_id_is_of_the_configuration_not_of_the_place(tmp_path):
    ids = []
    for name, config in (("a", CONFIG), ("b", CONFIG), ("c", CONFIG | {"seed": 8})):
        with RunDirectory.create_or_resume(tmp_path / name, config) as run:
            ids.append(run.run_id)
    assert ids[0] == ids[1] != ids[2]
    assert len(ids[0]) == 12


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 8}, "seed is 7 there, 8 asked for"),
        ({"seed": 7.0}, "seed is 7 there, 7.0 asked for"),
        (
            {"sweep": {"gates": [{"name": "cosine", "limit": 0.99}], "ks": [1, 2]}},
            r"sweep.gates\[0\].limit is 0.999 there",
        ),
        ({"sweep": {"gates": CONFIG["sweep"]["gates"], "ks": [1, 2, 4]}}, r"sweep.ks is \[1, 2\] there, \[1, 2, 4\]"),
        ({"extra": 1}, r"extra is '\(absent\)' there, 1 asked for"),
    ],
)
def test_another_configuration_is_refused_naming_the_first_key(tmp_path, change, text):
    with RunDirectory.create_or_resume(tmp_path, CONFIG):
        pass
    with pytest.raises(RunConfigError, match=text):
        RunDirectory.create_or_resume(tmp_path, CONFIG | change)
    with RunDirectory.create_or_resume(tmp_path, CONFIG):
        pass  # the refusal released the lock


@pytest.mark.parametrize(
    ("error", "status"), [(None, "complete"), (KeyboardInterrupt, "interrupted"), (ValueError, "failed")]
)
def test_the_status_says_how_a_run_ended(tmp_path, error, status):
    def body() -> None:
        with RunDirectory.create_or_resume(tmp_path, CONFIG):
            if error is not None:
                raise error("stop")

    if error is None:
        body()
    else:
        with pytest.raises(error):
            body()
    assert RunDirectory.open(tmp_path).status == status


def test_recorded_failures_end_the_run_as_failed(tmp_path):
    with RunDirectory.create_or_resume(tmp_path, CONFIG) as run:
        run.record("replay", {"failed": 1}, failed=True)
    assert RunDirectory.open(tmp_path).status == "failed"


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path):
    with RunDirectory.create_or_resume(tmp_path, CONFIG):
        with pytest.raises(RunLockedError, match=rf"process {os.getpid()} on .* is writing .*choose another run"):
            RunDirectory.create_or_resume(tmp_path, CONFIG)
        assert RunDirectory.open(tmp_path).status == "running"
    reader = RunDirectory.open(tmp_path)
    with pytest.raises(InputError, match="open for reading only"):
        reader.record("x", 1)


def test_a_lock_that_cannot_be_taken_is_a_named_error(tmp_path):
    RunDirectory.create_or_resume(tmp_path, CONFIG).finish("complete")
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").mkdir()  # what no one can open for writing, not even root
    with pytest.raises(StoreError, match="cannot be written .*choose another run directory"):
        RunDirectory.create_or_resume(tmp_path, CONFIG)


HOLD = """
import sys
from polykv.storage.run import RunDirectory
run = RunDirectory.create_or_resume(sys.argv[1], {"a": 1})
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_of_a_killed_process_does_not_block(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunLockedError, match=f"process {holder.pid} on"):
            RunDirectory.create_or_resume(tmp_path, {"a": 1})
        holder.send_signal(signal.SIGKILL)
    assert RunDirectory.open(tmp_path).status == "running"
    with RunDirectory.create_or_resume(tmp_path, {"a": 1}) as run:
        assert len(run.state["sessions"]) == 2


@pytest.mark.parametrize("url", ["s3://bucket/run", "memory://run", "file:///x"])
def test_a_url_is_refused_with_the_remedy(url):
    with pytest.raises(InputError, match="copy the finished run to the object store afterwards"):
        RunDirectory.create_or_resume(url, CONFIG)


def test_foreign_folders_and_files_are_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("hello")
    with pytest.raises(InputError, match="holds other files and is no run directory"):
        RunDirectory.create_or_resume(tmp_path, CONFIG)
    with pytest.raises(InputError, match="is a file"):
        RunDirectory.create_or_resume(tmp_path / "letter.txt", CONFIG)
    with pytest.raises(InputError, match="cannot be made"):
        RunDirectory.create_or_resume(tmp_path / "letter.txt" / "run", CONFIG)
    with pytest.raises(InputError, match="no run directory: it has no run.json"):
        RunDirectory.open(tmp_path)
    with pytest.raises(InputError, match="is a file; a run directory was expected"):
        RunDirectory.open(tmp_path / "letter.txt")
    with pytest.raises(InputError, match="does not exist; a run directory was expected"):
        RunDirectory.open(tmp_path / "nothing")
    with pytest.raises(InputError, match="is empty"):
        RunDirectory.open("")


def test_a_run_that_lost_its_state_is_damaged_and_a_store_is_no_run(tmp_path):
    RunDirectory.create_or_resume(tmp_path / "run", CONFIG).finish()
    (tmp_path / "run/run.json").unlink()
    with pytest.raises(StoreError, match="its run.json is missing"):
        RunDirectory.open(tmp_path / "run")
    (tmp_path / "zarr.json").write_text("{}")
    with pytest.raises(InputError, match="is a capture store, no run directory; polykv replay .* makes a run of it"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ('"seed": 7', '"seed": 8', StoreError, "config_digest does not match"),
        ('"seed": 7', '"seed":', StoreError, "not valid JSON"),
        ("polykv_run_v1", "polykv_run_v9", SchemaVersionError, "polykv_run_v9, this release reads polykv_run_v1"),
        ("polykv_run_v1", "something", StoreError, "not the run.json of a polykv run"),
        ('"outputs"', '"outputz"', StoreError, "lacks 'outputs'"),
    ],
)
def test_a_damaged_run_json_is_a_named_error(tmp_path, old, new, error, text):
    with RunDirectory.create_or_resume(tmp_path, CONFIG):
        pass
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(error, match=text):
        RunDirectory.create_or_resume(tmp_path, CONFIG)


def test_what_a_killed_writer_left_is_cleared(tmp_path):
    with RunDirectory.create_or_resume(tmp_path, CONFIG) as run:
        (run.parts / ".part.parquet.0123.tmp").write_bytes(b"half")
        (run.parts / "part.parquet.damaged").write_bytes(b"evidence")
    with RunDirectory.create_or_resume(tmp_path, CONFIG) as run:
        assert [path.name for path in run.parts.iterdir()] == ["part.parquet.damaged"]


def test_artifacts_are_named_by_bytes_that_never_change(tmp_path):
    arrays = {"mean": np.arange(4, dtype=np.float32), "count": np.array(3)}
    with RunDirectory.create_or_resume(tmp_path, CONFIG) as run:
        digest = run.save_artifact(arrays)
        assert run.save_artifact(dict(reversed(arrays.items()))) == digest
        assert run.save_artifact(arrays | {"mean": arrays["mean"][::-1]}) != digest
        loaded = run.load_artifact(digest)
        assert loaded["mean"].tolist() == [0, 1, 2, 3]
        assert (loaded["count"].shape, int(loaded["count"])) == ((), 3)
        assert digest == "1c73cca43576cb8522a3fc0c7059702af589b81e50ea2b8bcf289ae5939809d3"


def test_damaged_missing_and_unpicklable_artifacts_are_refused(tmp_path):
    with RunDirectory.create_or_resume(tmp_path, CONFIG) as run:
        digest = run.save_artifact({"mean": np.zeros(3)})
        path = run.artifacts / f"{digest}.npz"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        with pytest.raises(DamagedStoreError, match=f"its name says {digest}"):
            run.load_artifact(digest)
        with pytest.raises(StoreError, match="the artifact is missing"):
            run.load_artifact("00" * 32)
        with pytest.raises(InputError, match="'x' has dtype object"):
            run.save_artifact({"x": np.array([{}])})
        with pytest.raises(InputError, match="at least one array"):
            run.save_artifact({})


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB that really runs full."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_a_named_error_and_loses_nothing(small_disk):
    run = RunDirectory.create_or_resume(small_disk / "run", CONFIG)
    kept = write_table(run.table_path("controls"), CONTROLS, filled_rows(3, CONTROLS))
    before = kept.read_bytes()
    write_bytes(small_disk / "filler", b"x" * (120 * 1024))
    big = [filled_row(CONTROLS, i, reason=os.urandom(4000).hex()) for i in range(40)]
    with pytest.raises(StorageFullError, match="controls.parquet: no space for .* bytes .*free space"):
        write_table(kept, CONTROLS, big)
    assert kept.read_bytes() == before
    assert read_rows(kept, CONTROLS) == filled_rows(3, CONTROLS)
    assert not list(run.path.glob("**/*.tmp"))
    run.finish("failed")


def write_forever(path) -> None:
    with open(path, "wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)


def test_a_disk_full_to_the_brim_lets_the_first_error_through(small_disk):
    def body() -> None:
        with RunDirectory.create_or_resume(small_disk / "run", CONFIG) as run:
            with pytest.raises(OSError, match="No space"):
                write_forever(small_disk / "filler")
            write_table(run.table_path("results"), RESULTS, filled_rows(20))

    with pytest.raises(StorageFullError, match="results.parquet"):
        body()
    (small_disk / "filler").unlink()
    with RunDirectory.create_or_resume(small_disk / "run", CONFIG):
        pass  # neither lock nor torn run.json in the way


@pytest.mark.parametrize("name", ["no/such/folder.html", "x" * 300, "file/below"])
def test_a_place_that_the_file_system_refuses_is_named(tmp_path, name):
    (tmp_path / "file").write_text("text")
    with pytest.raises(InputError, match="cannot be written"):
        write_bytes(tmp_path / name, b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
