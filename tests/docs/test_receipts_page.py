"""Every command and quoted line of data/docs/receipts.md, against what the commands really say."""

import json
import re
import shlex
from pathlib import Path

import pytest

from polykv.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "data" / "docs" / "receipts.md").read_text(encoding="utf-8")


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


COMMANDS = [line for block in blocks("") for line in block.splitlines() if line.strip()]


def run(line):
    words = shlex.split(line)
    assert words[0] == "polykv"
    return main(words[1:])


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    for name in ("data", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def receipt(workplace):
    assert run(COMMANDS[0]) == 0
    return workplace / "receipt.json"


def test_the_quoted_lines_are_in_the_receipt(receipt):
    text = receipt.read_text(encoding="utf-8")
    quoted = [line for block in blocks("json") for line in block.splitlines()]
    assert len(quoted) > 8
    for line in quoted:
        assert f"{line}\n" in text


def test_the_figures_of_the_explanation_follow(receipt):
    entry = json.loads(receipt.read_text())["candidate_results"][2]
    assert entry["blockers"] == ["output_cosine_mean 0.5859 < 0.7500", "abs(ppl_proxy_delta) 1.3488 > 1.0000"]
    assert "`output_cosine_mean 0.5859 < 0.7500`" in PAGE
    assert entry["decoded_values_total"] == 4 * 4
    assert entry["full_decode_value_count"] == 4 * 48
    assert [e["passed"] for e in json.loads(receipt.read_text())["candidate_results"] if e["candidate_k"] == 16] == [
        False
    ]


@pytest.mark.parametrize("line", [line for line in COMMANDS if "verify receipt.json" in line])
def test_the_receipt_verifies(receipt, line):
    assert run(line) == 0


def test_a_hand_that_forgets_the_blocker_is_caught_and_a_consistent_one_is_not(receipt, capsys):
    said = json.loads(receipt.read_text())
    said["candidate_results"][2]["output_cosine_mean"] = 0.8
    receipt.write_text(json.dumps(said))
    assert main(["receipt", "verify", "receipt.json"]) == 3
    assert "blockers" in capsys.readouterr().err
    said["candidate_results"][2]["output_cosine_mean"] = 0.5
    said["candidate_results"][2]["blockers"][0] = "output_cosine_mean 0.5000 < 0.7500"
    receipt.write_text(json.dumps(said))
    assert main(["receipt", "verify", "receipt.json"]) == 0
    assert main(["receipt", "verify", "receipt.json", "--fixture", "tests/golden/captured_replay.in.json"]) == 3


@pytest.mark.slow
def test_every_command_of_the_page_runs(workplace):
    sweep = [
        "replay",
        "data/smollm2-sample",
        "--out",
        "runs/demo",
        "--policy",
        "int8",
        "--ks",
        "64,full",
        "--serial",
        "-q",
    ]
    assert main(sweep) == 0
    for line in COMMANDS:
        assert run(line) == 0, line
    provenance = json.loads((workplace / "cell.json").read_text())["provenance"]
    for field in re.findall(r"^\| (`[^|]+) \|", PAGE, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", field):
            assert name in provenance
    assert all("row_digest" in row for row in provenance["rows"])
