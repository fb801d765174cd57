"""Token figures against definitions written out with scipy."""

import numpy as np
import pytest
from scipy.special import log_softmax

from polykv.certify.metrics import compare_logits
from polykv.errors import DimensionMismatch, NonFiniteError


def _logits(seed, n_tokens=70, vocabulary=11):
    return (3 * np.random.default_rng(seed).standard_normal((n_tokens, vocabulary))).astype(np.float32)


def test_figures_follow_their_definitions():
    baseline, other = _logits(0), _logits(1)
    targets = np.random.default_rng(2).integers(0, 11, 70)
    found = compare_logits(baseline, other, targets)
    p, q = (log_softmax(x.astype(float), axis=1) for x in (baseline, other))
    rows = np.arange(70)
    np.testing.assert_allclose(found.nll_baseline, -p[rows, targets])
    np.testing.assert_allclose(found.nll_policy, -q[rows, targets])
    np.testing.assert_allclose(found.kl, (np.exp(p) * (p - q)).sum(axis=1))
    assert found.top1_match.tolist() == (p.argmax(1) == q.argmax(1)).astype(float).tolist()
    np.testing.assert_allclose(found.log_ratio, p[rows, targets] - q[rows, targets])


def test_equal_logits_differ_by_nothing():
    found = compare_logits(_logits(0), _logits(0), np.zeros(70, int))
    assert not found.kl.any()
    assert not found.log_ratio.any()
    assert found.top1_match.all()


def test_a_constant_added_to_all_logits_changes_nothing():
    found = compare_logits(_logits(0), _logits(0) + np.float32(8), np.zeros(70, int))
    assert found.kl.max() < 1e-10


def test_bad_logits_are_refused_with_their_place():
    other = _logits(1)
    other[40, 7] = np.inf
    with pytest.raises(NonFiniteError, match="policy's logit of token id 7 at scored token 40"):
        compare_logits(_logits(0), other, np.zeros(70, int))
    with pytest.raises(DimensionMismatch):
        compare_logits(_logits(0), _logits(0)[:5], np.zeros(70, int))
