"""What the seed's replays refuse, in the seed's order and words (seed document 003); places and remedies are ours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polykv.errors import InputError, PolicyError
from polykv.policy import CompressionPolicy
from polykv.replay.fixtures import CapturedReplayFixture, CapturedReplayQuery, ModelReplayQuery, Rows
from polykv.replay.seed_config import CapturedReplayConfig, ModelReplayConfig
from polykv.strict import check_length

# More labels than any tokenizer has: a larger number is a slip, and would only fill the memory.
MOST_LABELS = 2**24


def is_reference(policy: CompressionPolicy) -> bool:
    """Whether a policy is the reference system: its codecs, no sinks, no window, whatever its name and seed."""
    plain, known = policy.to_dict(), CompressionPolicy.reference().to_dict()
    return all(plain[name] == known[name] for name in known if name not in ("name", "seed", "candidate_k"))


def validate_captured(fixture: CapturedReplayFixture, config: CapturedReplayConfig, policy: CompressionPolicy) -> None:
    """Raise InputError or DimensionMismatch for the first thing wrong with fixture or config."""
    _check_candidate_ks(config.candidate_ks, is_reference(policy))
    if not fixture.queries:
        raise InputError("captured fixture must contain at least one query")
    if fixture.head_dim == 0:
        raise InputError("head_dim must be greater than zero")
    if not len(fixture.output_projection):
        raise InputError("output_projection must not be empty")
    _check_widths(fixture.output_projection, fixture.head_dim, "output_projection")
    for index, query in enumerate(fixture.queries):
        _check_captured_query(fixture, query, f"queries[{index}]")
    if policy.cells:
        raise PolicyError(
            f"policy {policy.name!r} has overrides for single cells, and a fixture does not say which cell it is; "
            "replay it with policy.for_cell(layer, kv_head)"
        )


def validate_model_shaped(
    queries: Sequence[ModelReplayQuery], config: ModelReplayConfig, policy: CompressionPolicy, head_dim: int
) -> None:
    """The same for a model-shaped replay over a pool of this head_dim."""
    _check_candidate_ks(config.candidate_ks, is_reference(policy))
    if not queries:
        raise InputError("queries must not be empty")
    if config.vocab_size == 0:
        raise InputError("vocab_size must be greater than zero")
    if config.vocab_size > MOST_LABELS:
        raise InputError(f"vocab_size is {config.vocab_size}, must be at most {MOST_LABELS}")
    for index, query in enumerate(queries):
        check_length(len(query.query), head_dim, f"queries[{index}].query")
        if query.label_token >= config.vocab_size:
            raise InputError(f"label_token {query.label_token} >= vocab_size {config.vocab_size} (queries[{index}])")


def _check_candidate_ks(candidate_ks: Sequence[int], zero_allowed: bool) -> None:
    if not candidate_ks:
        raise InputError("candidate_ks must not be empty")
    if not zero_allowed and 0 in candidate_ks:
        raise InputError(
            "candidate_k 0 is not possible: a query must decode at least 1 value (only the reference policy accepts 0)"
        )


def _check_captured_query(fixture: CapturedReplayFixture, query: CapturedReplayQuery, place: str) -> None:
    head_dim, n_labels = fixture.head_dim, len(fixture.output_projection)
    check_length(len(query.query), head_dim, f"{place}.query")
    check_length(len(query.exact_attention_output), head_dim, f"{place}.exact_attention_output")
    n_tokens = len(query.keys)
    if n_tokens != len(query.values) or not n_tokens:
        raise InputError(
            f"captured keys/values must be non-empty and same length: {place} has {n_tokens} keys and "
            f"{len(query.values)} values"
        )
    if not 0 < fixture.shared_tokens < n_tokens:
        raise InputError(
            "shared_tokens must split captured rows into non-empty pool and shell tiers: it is "
            f"{fixture.shared_tokens}, and {place} has {n_tokens} rows"
        )
    check_length(len(query.exact_logits), n_labels, f"{place}.exact_logits")
    if query.label_token >= n_labels:
        raise InputError(f"label_token {query.label_token} >= logits len {n_labels} ({place})")
    _check_widths(query.keys, head_dim, f"{place}.keys")
    _check_widths(query.values, head_dim, f"{place}.values")


def _check_widths(rows: Rows, head_dim: int, place: str) -> None:
    if isinstance(rows, np.ndarray):
        check_length(rows.shape[1], head_dim, f"{place}[0]")
        return
    for index, row in enumerate(rows):
        check_length(len(row), head_dim, f"{place}[{index}]")
