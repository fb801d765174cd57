"""From a change of one head's output to the model's next-token logits.

The head's share of the logits is linear in its output: logits = full + P·(compressed − exact) /
rms, with P = W_lm[labels]·γ·W_o[:, head] and the rms of the last residual taken from the
capture (one head moves it by well under a percent). With a perfect replay the logits are the
model's own. Only captures whose model adds attention linearly to its residual carry this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.replay.seed_metrics import kl_divergence, nll, softmax_f64
from polykv.types import CellLogits


@dataclass(frozen=True, eq=False)
class LabelFigures:
    """[query, budget] float64 (top1_match bool); `nll_exact` [query]."""

    kl: np.ndarray
    nll_compressed: np.ndarray
    top1_match: np.ndarray
    nll_exact: np.ndarray


def label_figures(
    logits: CellLogits, row: int, head: int, asked: np.ndarray, exact_output: np.ndarray, outputs: np.ndarray
) -> LabelFigures:
    """Label-set figures of one query head of passage `row`.

    asked [query slot] bool picks the slots that hold a query; exact_output [query, value_dim],
    outputs [query, budget, value_dim].
    """
    projection = (logits.wlm_gamma[row] @ logits.w_o[head]).astype(np.float64)
    full = logits.full[row][asked].astype(np.float64)
    rms = logits.final_rms[row][asked].astype(np.float64)[:, None]
    label = logits.label_token[row][asked]
    exact = softmax_f64(full)
    moved = np.empty((len(full), outputs.shape[1], full.shape[1]))
    for column in range(outputs.shape[1]):
        # One budget at a time: a matrix product's last bits depend on its shape.
        moved[:, column] = full + ((outputs[:, column] - exact_output) @ projection.T) / rms
    compressed = softmax_f64(moved)
    labels = np.broadcast_to(label[:, None], moved.shape[:2])
    return LabelFigures(
        kl=kl_divergence(exact[:, None], compressed),
        nll_compressed=nll(compressed, labels),
        top1_match=moved.argmax(axis=2) == full.argmax(axis=1)[:, None],
        nll_exact=nll(exact, label),
    )
