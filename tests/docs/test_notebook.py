"""The notebook of the sample: its stored outputs are what its cells show."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "data" / "sample.ipynb").read_text(encoding="utf-8"))
TOOL = runpy.run_path(str(ROOT / "tests" / "tools" / "notebook.py"))


def test_five_questions_have_answers():
    titles = [line for cell in STORED["cells"] for line in cell["source"] if line.startswith("## ")]
    assert [title[3] for title in titles[:5]] == list("12345")
    shown = TOOL["texts"](STORED)
    assert all(shown[1:])
    assert not re.search(r"/(home|work|tmp|root|Users)/", json.dumps(STORED))


def test_the_tool_keeps_what_a_cell_shows_and_raises_what_it_raises():
    def cell(source):
        return {"cell_type": "code", "source": [source]}

    done = TOOL["execute"]({"cells": [cell("x = 2\nprint('said')"), cell("x * 21"), cell("y = 1")]})
    assert TOOL["texts"](done) == ["said\n", "42", ""]
    with pytest.raises(ZeroDivisionError):
        TOOL["execute"]({"cells": [cell("1 / 0")]})


@pytest.mark.slow
def test_the_stored_outputs_are_what_the_cells_show(tmp_path, monkeypatch):
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    assert TOOL["texts"](TOOL["execute"](STORED)) == TOOL["texts"](STORED)
