"""`polykv tables`, and the page written by it."""

import json
from pathlib import Path

import pytest

from polykv.cli import main
from polykv.schemas import TABLES

PAGE = Path(__file__).parents[2] / "data" / "docs" / "tables.md"


def said(capsys, *argv):
    code = main(list(argv))
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_page_is_what_the_declarations_say(capsys):
    _, out, _ = said(capsys, "tables", "--markdown")
    assert PAGE.read_text(encoding="utf-8") == out, "run make docs"
    for table in TABLES.values():
        assert f"\n## {table.name}\n" in out
        assert all(f"\n| `{name}` |" in out for name in table.column_names)


@pytest.mark.parametrize("name", TABLES)
def test_every_column_of_a_table_is_told(capsys, name):
    code, out, _ = said(capsys, "tables", name)
    assert code == 0
    told = {line.split(" ")[0] for line in out.splitlines()}
    assert set(TABLES[name].column_names) <= told
    machine = json.loads(said(capsys, "tables", name, "--json")[1])
    assert [column["name"] for column in machine[0]["columns"]] == list(TABLES[name].column_names)


def test_the_list_of_tables_leads_on(capsys):
    _, out, _ = said(capsys, "tables")
    assert all(name in out for name in TABLES)
    assert "polykv tables NAME" in out


def test_an_unknown_table_is_refused_with_the_nearest(capsys):
    code, _, err = said(capsys, "tables", "selction")
    assert code == 2
    assert "did you mean 'selection'" in err
