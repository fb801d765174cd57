"""What a policy changes in the model's predictions, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.errors import DimensionMismatch, NonFiniteError

# Rows of logits turned to float64 at a time: 32 × 49,152 × 8 bytes = 12.6 MB.
_ROWS = 32


@dataclass(frozen=True, eq=False)
class TokenFigures:
    """[token] float64 of the tokens scored in one passage.

    nll_baseline and nll_policy in nats; kl = KL(baseline ‖ policy) of the next-token
    distributions in nats; top1_match 1.0 where both have the same most likely token.
    """

    nll_baseline: np.ndarray
    nll_policy: np.ndarray
    kl: np.ndarray
    top1_match: np.ndarray

    @property
    def log_ratio(self) -> np.ndarray:
        """nll_policy − nll_baseline: its mean is the log of the ratio of the two perplexities."""
        return self.nll_policy - self.nll_baseline


def compare_logits(baseline: np.ndarray, policy: np.ndarray, targets: np.ndarray) -> TokenFigures:
    """Figures of two sets of logits [token, vocabulary] float32 for the tokens [token] that really came.

    Raises NonFiniteError naming the token where a logit is NaN or infinite.
    """
    if baseline.shape != policy.shape or len(baseline) != len(targets):
        raise DimensionMismatch(f"logits {baseline.shape} and {policy.shape} for {len(targets)} tokens")
    columns = [np.empty(len(targets)) for _ in range(4)]
    for start in range(0, len(targets), _ROWS):
        rows = slice(start, start + _ROWS)
        found = _compare_rows(baseline[rows], policy[rows], targets[rows], start)
        for column, values in zip(columns, found, strict=True):
            column[rows] = values
    return TokenFigures(*columns)


def _compare_rows(
    baseline: np.ndarray, policy: np.ndarray, targets: np.ndarray, start: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    p, q = (_log_softmax(logits, what, start) for logits, what in ((baseline, "baseline"), (policy, "policy")))
    row = np.arange(len(targets))
    # rounding may bring a perfect match to −1e-17, which is 0
    kl = np.maximum(np.einsum("tv,tv->t", np.exp(p), p - q), 0.0)
    match = baseline.argmax(axis=1) == policy.argmax(axis=1)
    return -p[row, targets], -q[row, targets], kl, match.astype(np.float64)


def _log_softmax(logits: np.ndarray, what: str, start: int) -> np.ndarray:
    logits = logits.astype(np.float64)
    if not np.isfinite(logits).all():
        token, entry = np.argwhere(~np.isfinite(logits))[0]
        raise NonFiniteError(
            f"the {what}'s logit of token id {entry} at scored token {start + token} is {logits[token, entry]}"
        )
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
