"""The receipt of one top-k selection over codes: what was scored, what was chosen, what was decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polykv.errors import InputError
from polykv.records import Comparison, Record, clock, defaulted, optional

if TYPE_CHECKING:
    from polykv.pool.pool import SharedKVPool
    from polykv.pool.shell import AgentShell

SELECTION_CLAIM = (
    "compressed candidate selection only; model-quality/KV-cache preservation claims require exact attention "
    "and logit/PPL replay receipts"
)


@dataclass(frozen=True)
class CompressedAttentionSelectionReceipt(Record):
    """Candidates were scored from their codes and only the selected values decoded.

    query_digest: blake3 of the query's float32 bytes. hits_digest: blake3 over token, tier and
    float32 score of every hit, in order.
    """

    pool_digest: str
    layer: int
    head: int
    candidate_count: int
    selected_count: int
    pool_candidate_count: int
    shell_candidate_count: int
    selected_pool_count: int
    selected_shell_count: int
    compressed_key_scores: int
    decoded_value_vectors: int
    full_layer_decoded: bool
    scoring_path: str
    codec_id: str
    agent_id: str | None = optional()
    shell_digest: str | None = optional()
    query_digest: str | None = optional()
    hits_digest: str | None = optional()
    exact_fallback_required: bool = defaulted(True)
    claim_boundary: str = defaulted(SELECTION_CLAIM)
    schema_version: str = "compressed_attention_selection_receipt_v1"
    selected_at_unix: int = clock()

    schema: ClassVar[str] = "compressed_attention_selection_receipt_v1"

    def verify(
        self, pool: SharedKVPool | None = None, shell: AgentShell | None = None, query: np.ndarray | None = None
    ) -> tuple[str, ...]:
        """Check the counts; with pool, shell (where there was one) and query [head_dim], select again and compare.

        A selection among some of the tokens only (a replay's, with exact sinks and window) cannot
        be made again from pool and shell: InputError.
        """
        found = Comparison("the selection receipt")
        found.equal("full_layer_decoded", self.full_layer_decoded, False)
        found.equal("decoded_value_vectors", self.decoded_value_vectors, self.selected_count)
        candidates = self.pool_candidate_count + self.shell_candidate_count
        found.equal("candidate_count", self.candidate_count, candidates)
        found.equal("selected_count", self.selected_count, self.selected_pool_count + self.selected_shell_count)
        found.equal("agent_id and shell_digest both or none", self.agent_id is None, self.shell_digest is None)
        if pool is not None and query is not None:
            if self.candidate_count != self.compressed_key_scores:
                raise InputError(
                    f"this selection chose among {self.candidate_count} of {self.compressed_key_scores} tokens; "
                    "verify the replay it belongs to"
                )
            again = self._selected_again(pool, shell, query)
            for name in again.to_dict():
                if name != "selected_at_unix":
                    found.equal(name, getattr(self, name), getattr(again, name))
        return found.finish()

    def _selected_again(
        self, pool: SharedKVPool, shell: AgentShell | None, query: np.ndarray
    ) -> CompressedAttentionSelectionReceipt:
        if (shell is None) != (self.agent_id is None):
            raise InputError("a selection over a shell is verified with that shell, one over a pool alone without")
        if shell is None:
            return pool.attention_topk_compressed(self.layer, self.head, query, self.selected_count).receipt
        return shell.attention_topk_compressed(pool, self.layer, self.head, query, self.selected_count).receipt
