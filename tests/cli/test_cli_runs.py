"""`polykv runs`: every state a run can be in, and a prune that never takes what is still needed."""

import json
import os
import shutil
import socket

import pytest

from polykv.cli import main
from polykv.storage.lock import OWNER_NAME, RunLock

SWEEP = ["--serial", "--ks", "4,full", "-q", "--policy", "int8"]


def said(capsys, *argv):
    code = main(list(argv))
    told = capsys.readouterr()
    assert "Traceback" not in told.out + told.err
    return code, told.out, told.err


@pytest.fixture(scope="module")
def made(store, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "done"
    assert main(["replay", store, "--out", str(out), *SWEEP]) == 0
    return out


@pytest.fixture
def folder(made, tmp_path):
    """A folder with one complete run, and a file and a folder that are none."""
    place = tmp_path / "runs"
    shutil.copytree(made, place / "done")
    (place / "notes.txt").write_text("not a run")
    (place / "empty").mkdir()
    return place


def change(run, **values):
    path = run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def listed(capsys, folder):
    code, out, _ = said(capsys, "runs", str(folder), "--json")
    assert code == 0
    return {line["name"]: line for line in json.loads(out)}


def test_a_complete_run_is_told_with_its_verdict_and_size(capsys, folder):
    code, out, _ = said(capsys, "runs", str(folder))
    assert code == 0
    assert "done" in out
    assert "notes" not in out
    line = listed(capsys, folder)["done"]
    assert (line["status"], line["verdict"], line["kind"]) == ("complete", "pass", "replay")
    assert line["detail"] == "int8 4/4"
    assert line["n_bytes"] > line["parts_bytes"] > 0


def test_one_run_directory_is_listed_by_itself(capsys, folder):
    assert list(listed(capsys, folder / "done")) == ["done"]


def test_running_is_told_from_killed_by_the_process_that_holds_it(capsys, folder):
    run = folder / "done"
    change(run, status="running")
    assert listed(capsys, folder)["done"]["status"] == "killed"
    lock = RunLock(run)
    try:
        assert listed(capsys, folder)["done"]["status"] == "running"
    finally:
        lock.release()
    (run / OWNER_NAME).write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))
    assert listed(capsys, folder)["done"]["status"] == "killed"
    (run / OWNER_NAME).write_text(json.dumps({"pid": 2**22 + 1, "host": "another-host"}))
    assert listed(capsys, folder)["done"]["status"] == "running"


def test_a_killed_run_says_how_to_go_on(capsys, folder):
    change(folder / "done", status="interrupted")
    _, _, err = said(capsys, "runs", str(folder))
    assert "goes on where it stopped" in err


def test_a_damaged_run_is_a_line_and_not_an_end(capsys, folder):
    shutil.copytree(folder / "done", folder / "broken")
    (folder / "broken" / "run.json").write_text("{")
    _, out, err = said(capsys, "runs", str(folder))
    assert "damaged" in out
    assert "broken:" in err
    assert listed(capsys, folder)["done"]["verdict"] == "pass"
    (folder / "done" / "selection.parquet").write_bytes(b"PAR1")
    line = listed(capsys, folder)["done"]
    assert line["verdict"] is None
    assert "cannot be read" in line["detail"]


def test_listing_changes_nothing(capsys, folder):
    before = snapshot(folder)
    said(capsys, "runs", str(folder))
    said(capsys, "runs", str(folder), "--prune", "--dry-run")
    assert snapshot(folder) == before


def test_prune_deletes_parts_and_keeps_what_the_run_found(capsys, folder):
    before = snapshot(folder)
    code, out, _ = said(capsys, "runs", str(folder), "--prune", "--dry-run", "--json")
    promised = json.loads(out)
    assert (code, promised["freed_bytes"]) == (0, 0)
    code, out, _ = said(capsys, "runs", str(folder), "--prune", "--json")
    assert code == 0
    assert json.loads(out)["freed_bytes"] == promised["runs"][0]["n_bytes"] > 0
    gone = set(before) - set(snapshot(folder))
    assert gone == {name for name in before if "/parts/" in name}
    assert listed(capsys, folder)["done"]["verdict"] == "pass"
    assert json.loads(said(capsys, "runs", str(folder), "--prune", "--json")[1])["runs"] == []


def test_a_pruned_run_is_computed_anew_to_the_same_tables(capsys, store, folder):
    run = folder / "done"
    before = (run / "results.parquet").read_bytes()
    said(capsys, "runs", str(folder), "--prune")
    assert said(capsys, "replay", store, "--out", str(run), *SWEEP)[0] == 0
    assert (run / "results.parquet").read_bytes() == before


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_parts_of_a_run_that_is_not_complete_are_kept(capsys, folder, status):
    change(folder / "done", status=status)
    before = snapshot(folder)
    assert json.loads(said(capsys, "runs", str(folder), "--prune", "--json")[1])["runs"] == []
    assert snapshot(folder) == before


SPOILERS = {
    "a table that is gone": lambda run: (run / "results.parquet").unlink(),
    "a table that differs": lambda run: (run / "results.parquet").write_bytes(b"other"),
    "a run that names no table": lambda run: change(run, outputs={}),
}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_parts_are_kept_when_the_tables_do_not_stand(capsys, folder, spoiler):
    SPOILERS[spoiler](folder / "done")
    before = {name for name in snapshot(folder) if "/parts/" in name}
    code, _, err = said(capsys, "runs", str(folder), "--prune")
    assert code == 3
    assert "parts" in err
    assert {name for name in snapshot(folder) if "/parts/" in name} == before


def test_a_run_that_is_being_written_is_not_pruned(capsys, folder):
    lock = RunLock(folder / "done")
    try:
        code, _, err = said(capsys, "runs", str(folder), "--prune")
    finally:
        lock.release()
    assert code == 3
    assert "is writing this run directory" in err


MISTAKES = {
    "no folder": (lambda tmp: [str(tmp / "nothing")], "is no folder"),
    "a file": (lambda tmp: [__file__], "is no folder"),
    "a bucket": (lambda tmp: ["s3://bucket/runs"], "local or shared"),
    "a dry run of nothing": (lambda tmp: [str(tmp), "--dry-run"], "goes with --prune"),
    "an option that does not exist": (lambda tmp: [str(tmp), "--prunne"], "--prune"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_words(capsys, tmp_path, mistake):
    arguments, words = MISTAKES[mistake]
    code, _, err = said(capsys, "runs", *arguments(tmp_path))
    assert code == 2
    assert words in err


def test_an_empty_folder_says_how_to_make_a_run(capsys, tmp_path):
    code, out, _ = said(capsys, "runs", str(tmp_path))
    assert code == 0
    assert "polykv calibrate" in out


def snapshot(folder):
    return {
        os.path.relpath(os.path.join(root, name), folder): os.stat(os.path.join(root, name)).st_size
        for root, _, names in os.walk(folder)
        for name in names
        if not name.startswith(".lock")
    }
