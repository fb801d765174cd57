"""Passages to certify on: equal length, spread evenly, never from calibration text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.capture.corpus import TextDocument
from polykv.certify.passages import evaluation_text, even_shares, spread_over_documents
from polykv.errors import InputError


def _document(name, n_words, splits=()):
    words = " ".join(str(i) for i in range(n_words))
    return TextDocument(name, words, f"{hash((name, n_words)) & (2**64 - 1):064x}", splits)


def _tokenize(text):
    return [int(word) for word in text.split()]


def test_documents_share_evenly_whatever_their_size():
    text = evaluation_text([_document("long", 5000), _document("short", 90)], _tokenize, None, 6, 30)
    assert text.owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert {len(ids) for ids in text.token_ids} == {30}
    assert [d.name for d in text.documents] == ["long", "short"]
    short = np.concatenate(text.token_ids[3:])
    assert len(set(short.tolist())) == 90


def test_bos_counts_among_the_tokens():
    text = evaluation_text([_document("a", 100)], _tokenize, 7, 2, 30)
    assert all(ids[0] == 7 and len(ids) == 30 for ids in text.token_ids)


def test_calibration_documents_are_left_out():
    documents = [_document("fit", 100, ("calibrate",)), _document("judge", 100, ("confirm",))]
    assert [d.name for d in evaluation_text(documents, _tokenize, None, 2, 30).documents] == ["judge"]
    with pytest.raises(InputError, match="no document to evaluate"):
        evaluation_text(documents[:1], _tokenize, None, 2, 30)


def test_too_little_text_is_refused_with_both_numbers():
    with pytest.raises(InputError, match=r"holds 3 passages of 30 tokens, but 4 are asked \(a 3, b 0\)"):
        evaluation_text([_document("a", 100), _document("b", 10)], _tokenize, None, 4, 30)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_even_shares_fit_and_differ_by_one_at_most_where_there_is_room(capacities, data):
    total = data.draw(st.integers(0, sum(capacities)))
    shares = even_shares(capacities, total)
    assert sum(shares) == total
    assert all(share <= capacity for share, capacity in zip(shares, capacities, strict=True))
    room = [share for share, capacity in zip(shares, capacities, strict=True) if share < capacity]
    assert not room or max(shares) - min(room) <= 1


@pytest.mark.parametrize(
    ("documents", "total", "chosen"),
    [([0, 0, 0, 1, 1, 1], 4, [0, 1, 3, 4]), ([0, 0, 0, 1], 3, [0, 1, 3]), ([5, 2, 5], 9, [0, 1, 2]), ([0, 0], 1, [0])],
)
def test_passages_are_taken_evenly_from_their_documents(documents, total, chosen):
    assert spread_over_documents(list(range(len(documents))), documents, total) == chosen
