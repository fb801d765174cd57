"""Captured replay: how much of a fixture's exact attention survives compressed pool and shell (seed document 003).

Each query has its own pool (fixture seed + query index) and shell (that + 10,000), built once;
candidates are ranked once, and every candidate_k is a prefix of that ranking.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.codecs.registry import ArtifactLoader
from polykv.policy import SHELL_SEED_OFFSET, CompressionPolicy
from polykv.pool import SharedKVPool
from polykv.pool.encoding import tier_codecs
from polykv.pool.selection import select
from polykv.receipts import NUMERICS_VERSION
from polykv.records import Comparison
from polykv.replay.fixtures import CapturedReplayFixture, CapturedReplayQuery
from polykv.replay.head import exact_token_mask
from polykv.replay.seed_config import CapturedReplayConfig
from polykv.replay.seed_figures import QueryFigures, candidate_metrics, query_figures
from polykv.replay.seed_float32 import attend_f32, dot_f32
from polykv.replay.seed_records import CapturedReplayReceipt
from polykv.replay.seed_validation import is_reference, validate_captured
from polykv.replay.softmax_scale import warn_of_other_scale
from polykv.shape import KvTensorShape
from polykv.strict import SEED_LIMIT, within
from polykv.types import TIERS

NO_CENTERING = "off: a fixture has no calibrate split to fit a mean on"
FIGURE_TOLERANCE = 1e-5


def run_captured_model_replay(
    fixture: CapturedReplayFixture,
    config: CapturedReplayConfig,
    policy: CompressionPolicy | None = None,
    artifacts: ArtifactLoader | None = None,
) -> CapturedReplayReceipt:
    """Replay every query of the fixture at every candidate_k and judge the means.

    policy None is the reference's. A policy's sinks are the first rows of a query, its recent window the
    last ones: attended exactly, outside the budget. Raises InputError, DimensionMismatch, CodecError,
    NonFiniteError and PolicyError, each naming its place; warns when the exact outputs show another softmax scale.
    """
    policy = policy or CompressionPolicy.reference()
    validate_captured(fixture, config, policy)
    for tier in TIERS:
        tier_codecs(policy, tier, 0, 0, fixture.head_dim, fixture.seed, artifacts)
    warn_of_other_scale(fixture)
    figures = []
    for index, query in enumerate(fixture.queries):
        with within(f"queries[{index}]: "):
            figures.append(_replay_query(fixture, query, index, config, policy, artifacts))
    results = candidate_metrics(config, figures)
    provenance = _provenance(fixture, policy)
    return CapturedReplayReceipt.assemble(
        config, results, len(figures), model_id=fixture.model_id, provenance=provenance
    )


def verify_captured_receipt(
    receipt: CapturedReplayReceipt,
    fixture: CapturedReplayFixture,
    policy: CompressionPolicy | None = None,
    artifacts: ArtifactLoader | None = None,
) -> tuple[str, ...]:
    """Replay the fixture again and compare every figure within 1e-5, every count and text exactly.

    Returns the names checked; raises ReceiptError naming every field that disagrees.
    """
    again = run_captured_model_replay(fixture, receipt.config, policy, artifacts)
    checked = receipt.verify()
    found = Comparison(receipt.schema)
    found.equal("model_id", receipt.model_id, again.model_id)
    for name, stated in (receipt.provenance or {}).items():
        found.equal(f"provenance.{name}", stated, (again.provenance or {}).get(name))
    found.equal("selected_candidate_k", receipt.selected_candidate_k, again.selected_candidate_k)
    for i, (stated, new) in enumerate(zip(receipt.candidate_results, again.candidate_results, strict=True)):
        for name, value in stated.to_dict().items():
            place = f"candidate_results[{i}].{name}"
            if isinstance(value, float) or value is None:
                found.close(place, value, getattr(new, name), FIGURE_TOLERANCE)
            else:
                found.equal(place, getattr(stated, name), getattr(new, name))
    return (*checked, *found.finish())


def _replay_query(
    fixture: CapturedReplayFixture,
    query: CapturedReplayQuery,
    index: int,
    config: CapturedReplayConfig,
    policy: CompressionPolicy,
    artifacts: ArtifactLoader | None,
) -> QueryFigures:
    seed, shape = (fixture.seed + index) % SEED_LIMIT, KvTensorShape.single_head(fixture.head_dim)
    shared, hot = np.split(np.stack([query.keys, query.values])[:, None, None], [fixture.shared_tokens], axis=3)
    pool, _ = SharedKVPool.from_arrays(shared[0], shared[1], shape, seed, policy, artifacts)
    agent = f"captured_{fixture.model_id}_{index}"
    shell, _ = pool.shell_from_arrays(agent, hot[0], hot[1], (seed + SHELL_SEED_OFFSET) % SEED_LIMIT)
    n_tokens, polite = len(query.keys), is_reference(policy)
    exact = exact_token_mask(np.array([n_tokens - 1]), n_tokens, None, policy.sink_tokens, policy.recent_window)[0]
    selection = select(pool, shell, 0, 0, query.query, max(config.candidate_ks), ~exact)

    # the tokens kept exact come first, in token order; then the hits, best first
    scores = (
        np.concatenate([dot_f32(query.keys[exact], query.query), selection.score]) if exact.any() else selection.score
    )
    values = np.concatenate([query.values[exact], selection.value])
    if fixture.softmax_scale is not None:
        scores = scores * np.float32(fixture.softmax_scale)
    n_decoded = np.minimum(config.candidate_ks, len(selection))
    outputs = [_attended(scores, values, int(exact.sum()) + n, polite) for n in n_decoded]
    return query_figures(
        query.exact_attention_output,
        query.exact_logits,
        query.label_token,
        outputs,
        fixture.output_projection,
        n_decoded,
        n_tokens,
        polite,
    )


def _attended(scores: np.ndarray, values: np.ndarray, n: int, polite: bool) -> np.ndarray | None:
    """Attention over the first n entries; None over nothing."""
    return attend_f32(scores[:n], values[:n], polite) if n else None


def _provenance(fixture: CapturedReplayFixture, policy: CompressionPolicy) -> dict[str, Any]:
    return {
        "exact_reference": "fixture",
        "fixture_digest": fixture.digest(),
        "policy": policy.name,
        "policy_digest": policy.digest(),
        "softmax_scale": fixture.scale,
        "sink_tokens": policy.sink_tokens,
        "recent_window": policy.recent_window,
        "key_centering": NO_CENTERING,
        "numerics_version": NUMERICS_VERSION,
    }
