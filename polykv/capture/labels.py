"""Which logits of a passage are kept: the real next tokens and the likeliest tokens."""

from __future__ import annotations

import numpy as np

from polykv.errors import InputError


def choose_labels(logits: np.ndarray, next_tokens: np.ndarray, n_labels: int, n_token_ids: int) -> np.ndarray:
    """[label] int64, ascending: every next token, each query's likeliest, then those of most probability over all.

    logits [query, vocabulary] exact logits; next_tokens [query] int. Ids at or beyond
    `n_token_ids` pad the model's vocabulary, are no tokens, and are never labels (they do take
    part in the probabilities, as in the model). Ties go to the lower id.
    Raises InputError, with both numbers, when the next tokens alone are more than `n_labels`.
    """
    needed = np.unique(np.asarray(next_tokens, np.int64))
    if len(needed) > n_labels:
        raise InputError(f"{len(needed)} different next tokens do not fit {n_labels} labels; ask for more labels")
    exact = np.asarray(logits, np.float64)
    weights = np.exp(exact - exact.max(axis=1, keepdims=True))
    mass = (weights / weights.sum(axis=1, keepdims=True)).sum(axis=0)[:n_token_ids]
    mass[np.argmax(exact[:, :n_token_ids], axis=1)] += len(exact)
    mass[needed] = np.inf
    return np.sort(np.argsort(-mass, kind="stable")[:n_labels]).astype(np.int64)


def label_index(label_set: np.ndarray, next_tokens: np.ndarray) -> np.ndarray:
    """[query] int64: where each next token is in the ascending `label_set`; raises InputError when it is not."""
    place = np.searchsorted(label_set, next_tokens)
    found = np.take(label_set, place, mode="clip") == next_tokens
    if not found.all():
        raise InputError(f"next token {np.asarray(next_tokens)[~found][0]} is not among the {len(label_set)} labels")
    return place.astype(np.int64)
