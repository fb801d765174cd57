"""The ledger: answers survive a kill, and a line that was cut short is asked again."""

import pytest

from polykv.errors import PolykvError
from polykv.search.ledger import Ledger


def test_answers_come_back(tmp_path):
    ledger = Ledger(tmp_path / "search.jsonl")
    assert ledger.get("a") is None
    ledger.put("a", {"kl": 0.5})
    ledger.put("b", [1, 2])
    again = Ledger(tmp_path / "search.jsonl")
    assert (again.get("a"), again.get("b"), again.get("c")) == ({"kl": 0.5}, [1, 2], None)


@pytest.mark.parametrize("tail", ['{"key": "b", "val', '{"key": "b"}', "null", "\x00\x00"])
def test_a_torn_line_is_asked_again_and_harms_no_other(tmp_path, tail):
    path = tmp_path / "search.jsonl"
    Ledger(path).put("a", 1)
    path.write_text(path.read_text() + tail)
    ledger = Ledger(path)
    assert (ledger.get("a"), ledger.get("b")) == (1, None)
    ledger.put("b", 2)
    assert (Ledger(path).get("a"), Ledger(path).get("b")) == (1, 2)


def test_a_figure_that_is_not_a_number_is_never_kept(tmp_path):
    ledger = Ledger(tmp_path / "search.jsonl")
    with pytest.raises(PolykvError, match="finite"):
        ledger.put("a", float("nan"))
    assert not (tmp_path / "search.jsonl").exists()


def test_an_answer_of_another_search_is_copied_when_it_is_used(tmp_path):
    Ledger(tmp_path / "first").put("a", 1)
    second = Ledger(tmp_path / "second", tmp_path / "first")
    assert (second.get("a"), second.get("b")) == (1, None)
    third = Ledger(tmp_path / "third", tmp_path / "second")
    assert third.get("a") == 1
    assert Ledger(tmp_path / "third").get("a") == 1
    assert (tmp_path / "first").read_text().count("\n") == 1
