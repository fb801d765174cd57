"""Which texts a search takes gradients over, and what they are said to take."""

from types import SimpleNamespace

import numpy as np
import pytest

from polykv.certify.fisher import FisherConfig
from polykv.search.kept import GRADIENT_TOKENS, gradient_texts, passes_of
from polykv.search_stages import SearchRequest, expected_passes


@pytest.mark.parametrize(("n_tokens", "pieces"), [(100, 1), (512, 1), (513, 1), (1023, 1), (1024, 2), (1536, 3)])
def test_a_passage_is_cut_into_whole_pieces(n_tokens, pieces):
    passages = [np.arange(n_tokens), 5000 + np.arange(n_tokens)]
    texts = gradient_texts(passages, 99)
    assert len(texts) == 2 * pieces
    assert {len(text) for text in texts} == {min(n_tokens, GRADIENT_TOKENS)}
    joined = np.concatenate(texts[:pieces])
    assert np.array_equal(joined, passages[0][: len(joined)])


def test_no_more_than_asked_evenly():
    texts = gradient_texts([np.full(1536, i) for i in range(6)], 6)
    assert [int(text[0]) for text in texts] == [0, 1, 2, 3, 4, 5]
    assert len(gradient_texts([np.arange(64)] * 20, 16)) == 16


@pytest.mark.parametrize(("n_tokens", "n_passages"), [(64, 3), (512, 40), (1536, 4), (1536, 40)])
def test_the_passes_that_are_expected_are_those_of_its_texts(n_tokens, n_passages):
    meta = SimpleNamespace(layers=range(3), cells=range(6), n_tokens=n_tokens, passages=lambda split: range(n_passages))
    texts = gradient_texts([np.zeros(n_tokens)] * min(n_passages, 16), 16)
    expected = expected_passes(SearchRequest("store", "tiny", "run"), SimpleNamespace(meta=meta))
    assert expected["gradients"] == len(texts) * passes_of(FisherConfig())


@pytest.mark.parametrize(("whose", "passes"), [("none", 0), ("layers", 7 * 2), ("heads", 19 * 2)])
def test_sensitivities_take_a_pass_a_stream_and_a_baseline(whose, passes):
    meta = SimpleNamespace(layers=range(3), cells=range(6), n_tokens=64, passages=lambda split: range(3))
    request = SearchRequest("store", "tiny", "run", sensitivities=whose)
    assert expected_passes(request, SimpleNamespace(meta=meta))["sensitivities"] == passes
