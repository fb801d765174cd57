"""--layers: the same spelling everywhere, a part of the run's configuration, and of the command its report names."""

import json

import pytest

from polykv.cli import main
from polykv.cli.options import layer_numbers
from polykv.errors import InputError
from polykv.report.provenance import command_of
from polykv.report.tables import RunTables
from polykv.schemas import SELECTION
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory

QUICK = ["--policy", "int8", "--ks", "full", "--serial", "-q"]


@pytest.mark.parametrize(
    ("text", "layers"),
    [(None, None), ("0", (0,)), ("0,7-9", (0, 7, 8, 9)), ("3-3", (3,)), ("5,0, 5-6", (5, 0, 6))],
)
def test_layers_and_ranges(text, layers):
    assert layer_numbers(text) == layers


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "0,,2", "1.5", "9-7", "1-2-3"])
def test_what_is_no_list_of_layers(text):
    with pytest.raises(InputError, match="--layers"):
        layer_numbers(text)


@pytest.mark.parametrize("command", ["replay", "calibrate"])
def test_only_the_layers_asked_for_are_swept(command, store, tmp_path, capsys):
    out = tmp_path / "run"
    target = ["--store", store, "--no-gonogo", "--no-report"] if command == "calibrate" else [store]
    assert main([command, *target, "--layers", "5", "--out", str(out), *QUICK]) == 0
    assert {row["layer"] for row in read_rows(out / "selection.parquet", SELECTION)} == {5}
    assert RunDirectory.open(out).config["cells"] == [[5, 0], [5, 1]]
    assert "--layers 5" in command_of(RunTables.read(out))
    capsys.readouterr()
    assert main([command, *target, "--out", str(out), *QUICK]) == 2
    assert "cells" in capsys.readouterr().err  # all layers are another run


def test_the_go_no_go_of_a_calibration_takes_the_same_layers(store, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("polykv.cli.sweep.gonogo_stage", lambda request, *_: asked.append(request.layers) or _Done)
    monkeypatch.setattr("polykv.cli.sweep.publish_gonogo", lambda out: None)
    options = ["--store", store, "--layers", "0", "--out", str(tmp_path / "run"), "--no-report", *QUICK]
    assert main(["calibrate", *options]) == 0
    assert asked == [(0,)]


class _Done:
    jobs_failed = 0


def test_a_dry_run_counts_the_cells_of_those_layers(store, tmp_path, capsys):
    assert main(["replay", store, "--layers", "0", "--dry-run", "--json", "--out", str(tmp_path / "x"), *QUICK]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == 2
