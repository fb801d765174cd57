"""Top-k attention over codes: score everything compressed, rank once, decode only what was selected.

The order is total: score descending, then pool before shell, then the lower token (see
`polykv.ranking`); every smaller top_k is a prefix of a larger one's hits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polykv.errors import InputError
from polykv.pool.encoding import TierLayer, layer_of
from polykv.pool.manifest import codec_names
from polykv.pool.selection_receipt import CompressedAttentionSelectionReceipt
from polykv.ranking import rank_candidates
from polykv.receipts import digest_array, digest_json
from polykv.records import now_unix
from polykv.strict import check_length, vector, whole

if TYPE_CHECKING:
    from polykv.pool.pool import SharedKVPool
    from polykv.pool.shell import AgentShell


class CompressedShellAttentionHit(NamedTuple):
    """One selected token: index within its tier, score from codes, tier, decoded value [head_dim] float32."""

    token_index: int
    score: float
    from_shell: bool
    value: np.ndarray


@dataclass(frozen=True, eq=False)
class CompressedShellAttentionSelection:
    """Hits best first, as arrays: token_index [hit] int64 (within its tier), score [hit] float32,
    from_shell [hit] bool, value [hit, head_dim] float32; and the receipt."""

    token_index: np.ndarray
    score: np.ndarray
    from_shell: np.ndarray
    value: np.ndarray
    receipt: CompressedAttentionSelectionReceipt

    @property
    def hits(self) -> list[CompressedShellAttentionHit]:
        """The same, one object a hit."""
        arrays = zip(self.token_index, self.score, self.from_shell, self.value, strict=True)
        return [CompressedShellAttentionHit(int(t), float(s), bool(f), v) for t, s, f, v in arrays]

    def __len__(self) -> int:
        return len(self.score)


def select(
    pool: SharedKVPool,
    shell: AgentShell | None,
    layer: int,
    kv_head: int,
    query: np.ndarray,
    top_k: int,
    candidates: np.ndarray | None = None,
) -> CompressedShellAttentionSelection:
    """The best `top_k` of the candidates for `query` [head_dim], over pool and shell.

    candidates [token] bool, pool tokens first, restricts the choice (None: all). top_k beyond
    the candidates takes them all; 0 takes none, as in the seed. Raises InputError for another
    pool's shell, an empty shell, a layer or head that is not there.
    """
    check_same_pool(pool, shell)
    tiers = [layer_of(pool.layers, layer, "pool")]
    query = vector(query, "query")
    check_length(len(query), pool.manifest.shape.head_dim, "query")
    _check_head(pool, kv_head)
    if shell is not None:
        tiers.append(_shell_layer(shell, layer))
    top_k = whole(top_k, "top_k")
    scores = np.concatenate([tier.scores(kv_head, query) for tier in tiers])
    if candidates is None:
        candidates = np.ones(len(scores), bool)
    check_length(len(candidates), len(scores), "candidates")
    order, count = rank_candidates(scores[None, :], candidates[None, :])
    chosen = order[0, : min(top_k, int(count[0]))]
    from_shell = chosen >= tiers[0].n_tokens
    value = _decoded(tiers, kv_head, chosen, from_shell)
    token_index = np.where(from_shell, chosen - tiers[0].n_tokens, chosen)
    receipt = _receipt(pool, shell, tiers, (layer, kv_head), query, candidates, token_index, scores[chosen], from_shell)
    return CompressedShellAttentionSelection(token_index, scores[chosen], from_shell, value, receipt)


def _decoded(tiers: list[TierLayer], kv_head: int, chosen: np.ndarray, from_shell: np.ndarray) -> np.ndarray:
    """[hit, head_dim] float32 values of the chosen tokens, decoded tier by tier."""
    first = tiers[0].values(kv_head, chosen[~from_shell])
    value = np.empty((len(chosen), first.shape[1]), np.float32)
    value[~from_shell] = first
    if from_shell.any():
        value[from_shell] = tiers[1].values(kv_head, chosen[from_shell] - tiers[0].n_tokens)
    return value


def _receipt(
    pool: SharedKVPool,
    shell: AgentShell | None,
    tiers: list[TierLayer],
    place: tuple[int, int],
    query: np.ndarray,
    candidates: np.ndarray,
    token_index: np.ndarray,
    score: np.ndarray,
    from_shell: np.ndarray,
) -> CompressedAttentionSelectionReceipt:
    n_pool, n_shell = tiers[0].n_tokens, sum(tier.n_tokens for tier in tiers[1:])
    pairs = tuple((tier.key_codecs[place[1]], tier.value_codecs[place[1]]) for tier in tiers)
    names = [codec_names((pair,)) for pair in pairs]
    hits = [digest_array(array) for array in (token_index.astype(np.int64), from_shell, score)]
    return CompressedAttentionSelectionReceipt(
        pool_digest=pool.manifest.pool_id,
        layer=place[0],
        head=place[1],
        candidate_count=int(candidates.sum()),
        selected_count=len(score),
        pool_candidate_count=int(candidates[:n_pool].sum()),
        shell_candidate_count=int(candidates[n_pool:].sum()),
        selected_pool_count=int((~from_shell).sum()),
        selected_shell_count=int(from_shell.sum()),
        compressed_key_scores=n_pool + n_shell,
        decoded_value_vectors=len(score),
        full_layer_decoded=False,
        scoring_path=_scoring_path(names),
        codec_id="+".join(names),
        query_digest=digest_array(query),
        hits_digest=digest_json(hits),
        agent_id=None if shell is None else shell.agent_id,
        shell_digest=None if shell is None else shell.manifest.shell_digest,
        selected_at_unix=now_unix(),
    )


def _scoring_path(names: list[str]) -> str:
    """The reference's name of the path: "fib_pool_and_turbo_shell_…", "fib_cold_pool_…"."""
    families = [name.partition("_")[0] for name in names]
    tiers = f"{families[0]}_cold_pool" if len(names) == 1 else f"{families[0]}_pool_and_{families[1]}_shell"
    return f"{tiers}_compressed_score_topk_value_decode"


def check_same_pool(pool: SharedKVPool, shell: AgentShell | None) -> None:
    if shell is not None and shell.pool_digest != pool.manifest.pool_id:
        raise InputError(
            f"digest mismatch: expected {shell.pool_digest}, got {pool.manifest.pool_id}: the shell of agent "
            f"{shell.agent_id!r} belongs to another pool; materialise it from this one"
        )


def _check_head(pool: SharedKVPool, kv_head: int) -> None:
    have = pool.manifest.shape.num_kv_heads
    if isinstance(kv_head, bool) or not isinstance(kv_head, (int, np.integer)) or not 0 <= kv_head < have:
        raise InputError(f"head_idx {kv_head} out of range (have {have})")


def _shell_layer(shell: AgentShell, layer: int) -> TierLayer:
    if not shell.layers:
        raise InputError(f"no shell layer {layer}: the shell of agent {shell.agent_id!r} holds no tokens")
    return layer_of(shell.layers, layer, "shell")
