"""Model-shaped replay: what selecting among codes costs against attending all of them (seed document 003).

The exact side is full attention over the *decoded* pool and shell, so a codec's own error never
shows here; the receipt says so. Both outputs go through a deterministic synthetic
projection to labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polykv.errors import InputError
from polykv.pool import AgentShell, SharedKVPool
from polykv.receipts import NUMERICS_VERSION, digest_array, digest_json
from polykv.replay.fixtures import ModelReplayQuery
from polykv.replay.seed_config import ModelReplayConfig
from polykv.replay.seed_figures import QueryFigures, candidate_metrics, query_figures
from polykv.replay.seed_float32 import attend_f32, dot_f32, output_projection, project_f32
from polykv.replay.seed_records import ModelReplayReceipt
from polykv.replay.seed_validation import is_reference, validate_model_shaped
from polykv.strict import within

EXACT_REFERENCE = "decoded_pool: full attention over the decoded codes of pool and shell, not over the original tensors"


def run_model_replay(
    pool: SharedKVPool, shell: AgentShell, queries: Sequence[ModelReplayQuery], config: ModelReplayConfig
) -> ModelReplayReceipt:
    """Replay every query over pool and shell at every candidate_k and judge the means.

    Raises InputError and DimensionMismatch for queries, layer, head or shell that do not fit.
    """
    head_dim = pool.manifest.shape.head_dim
    validate_model_shaped(queries, config, pool.policy, head_dim)
    keys, values = _decoded(pool, shell, config.layer, config.head)
    projection = output_projection(config.vocab_size, head_dim, config.projection_seed)
    figures = []
    for index, query in enumerate(queries):
        with within(f"queries[{index}]: "):
            figures.append(_replay_query(pool, shell, query, config, keys, values, projection))
    results = candidate_metrics(config, figures)
    provenance = {
        "exact_reference": EXACT_REFERENCE,
        "pool_digest": pool.manifest.pool_id,
        "shell_digest": shell.manifest.shell_digest,
        "queries_digest": digest_json([[digest_array(q.query), q.label_token] for q in queries]),
        "policy": pool.policy.name,
        "policy_digest": pool.policy.digest(),
        "softmax_scale": 1.0,
        "sink_tokens": 0,
        "recent_window": 0,
        "numerics_version": NUMERICS_VERSION,
    }
    return ModelReplayReceipt.assemble(config, results, len(figures), provenance=provenance)


def _replay_query(
    pool: SharedKVPool,
    shell: AgentShell,
    query: ModelReplayQuery,
    config: ModelReplayConfig,
    keys: np.ndarray,
    values: np.ndarray,
    projection: np.ndarray,
) -> QueryFigures:
    polite = is_reference(pool.policy)
    exact = attend_f32(dot_f32(keys, query.query), values, polite)
    top_k = max(config.candidate_ks)
    selection = shell.attention_topk_compressed(pool, config.layer, config.head, query.query, top_k)
    n_decoded = np.minimum(config.candidate_ks, len(selection))
    outputs = [attend_f32(selection.score[:n], selection.value[:n], polite) if n else None for n in n_decoded]
    return query_figures(
        exact, project_f32(exact, projection), query.label_token, outputs, projection, n_decoded, len(keys), polite
    )


def _decoded(pool: SharedKVPool, shell: AgentShell, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """Decoded keys and values [token, head_dim] float32 of one head, pool first."""
    whole_layer = pool.decompress_layer(layer)
    if head >= len(whole_layer.keys):
        raise InputError(f"head_idx {head} out of range (have {len(whole_layer.keys)})")
    keys, values = [whole_layer.keys[head]], [whole_layer.values[head]]
    for block in shell.layers[layer : layer + 1]:
        keys.append(block.keys(head))
        values.append(block.values(head))
    return np.concatenate(keys), np.concatenate(values)
