"""Every error a user can make with every command: one clear line, the documented exit code, no traceback.

A case is a command line with {places} of the fixture `world`, its exit code (2 bad input, 3 damaged or
incomplete data) and words that must stand in the line. A command without a case fails a test here.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click
import pytest

from polykv.cli import Commands, cli, main
from polykv.storage.run import RunDirectory
from tests.cli.error_cases import BAD_INPUT, CASES, NO_MODEL
from tests.report.run_samples import write_run
from tests.tiny_store import write_tiny_store

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Good and bad files of every kind, by the name the cases use."""
    root = tmp_path_factory.mktemp("world")
    write_tiny_store(root / "store")
    shutil.copytree(root / "store", root / "unsealed")
    (root / "unsealed/seal.json").unlink()
    write_run(root / "run", layers=(0, 5))
    with RunDirectory.create_or_resume(root / "unfinished", {"kind": "replay", "model_id": "m"}) as run:
        run.record("note", "its parts are all it has")
    shutil.copytree(root / "run", root / "torn")
    for table in ("results", "selection"):
        (root / f"torn/{table}.parquet").write_bytes(b"PAR1 nothing PAR1")
    (root / "empty").mkdir()
    (root / "text.txt").write_text("It is a truth universally acknowledged.\n")
    (root / "other.json").write_text('{"a": 1}')
    (root / "cut.json").write_text('{"a": ')
    receipt = (GOLDEN / "captured_replay.receipt.json").read_text()
    (root / "untrue.json").write_text(re.sub(r'("output_cosine_mean": )[0-9.]+', r"\g<1>0.5", receipt, count=1))
    names = ("store", "unsealed", "run", "unfinished", "torn", "empty", "text.txt", "other.json", "cut.json", "untrue.json")  # fmt: skip
    places = {Path(name).stem: str(root / name) for name in names}
    return places | {
        "nothing": str(root / "nothing"),
        "out": str(root / "out"),
        "long": str(root / ("x" * 300)),
        "fixture": str(GOLDEN / "captured_replay.in.json"),
        "receipt": str(GOLDEN / "captured_replay.receipt.json"),
    }


def leaves():
    """Every command by its full name, those of groups too."""
    for name in Commands.modules:
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            yield from (f"{name} {inner}" for inner in command.commands)
        else:
            yield name


def test_every_command_has_its_mistakes_here():
    known = list(leaves())
    assert len(known) > len(Commands.modules)
    assert [name for name in known if not CASES.get(name)] == [], "a new command needs its cases"
    assert [name for name in CASES if name not in known] == [], "cases of a command that is gone"
    for name, cases in CASES.items():
        assert all(f"{case.line} ".startswith(f"{name} ") for case in cases), name


@pytest.mark.parametrize("name", list(leaves()))
def test_an_unknown_option_is_refused(name, capsys):
    assert main([*name.split(), "--nonesuch"]) == BAD_INPUT
    assert "No such option '--nonesuch'" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("case", [case for cases in CASES.values() for case in cases], ids=lambda case: case.line)
def test_a_mistake_gets_one_clear_line_and_its_exit_code(case, world, capsys):
    shutil.rmtree(world["out"], ignore_errors=True)
    argv = [word.strip("'").format(**world) for word in re.findall(r"'[^']*'|\S+", case.line)]
    code = main(argv)
    said = capsys.readouterr()
    line = one_line(said.err)
    assert re.search(
        case.words.format(**world) if case.words == NO_MODEL else re.escape(case.words.format(**world)), line
    ), line
    assert (code, said.out) == (case.code, ""), line
    assert "Traceback" not in line


def one_line(err):
    """The line a mistake gets: ours, or the last of click's usage error."""
    lines = err.splitlines()
    if lines and lines[0].startswith("Usage: "):
        assert lines[-1].startswith("Error: "), err
        return lines[-1]
    assert len(lines) == 1, err
    assert lines[0].startswith("polykv: "), err
    return lines[0]
