"""Which texts a search takes gradients over."""

import numpy as np
import pytest

from polykv.search.kept import GRADIENT_TOKENS, gradient_texts


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
