"""Row digests: all that decides a row's figures, and nothing else.

Neither time, host, engine nor the cut into jobs takes part, so a row found in a part of
another cut, another day or another machine is the row that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polykv.receipts import NUMERICS_VERSION, digest_json
from polykv.replay.controls import CONTROLS
from polykv.schemas import TableSchema

# What each control must come out as, for the run to be valid and the cell to be sensitive.
CONTROL_EXPECTED = {name: "pass" if name == "exact" else "fail" for name in CONTROLS}


@dataclass(frozen=True)
class RowInputs:
    """What all rows of one cell and split are computed from.

    `slabs`: see `slabs_digest`. `config`: the sweep's configuration (gates, shared_tokens, seed);
    its candidate_ks take no part, because a row does not depend on its neighbours.
    """

    layer: int
    kv_head: int
    split: str
    slabs: str
    config: Mapping[str, Any]

    def digest(self, table: TableSchema, **of: Any) -> str:
        """Digest for rows of `table`, which further depend on `of` (policy, control …)."""
        return digest_json(
            {
                "table": [table.name, table.version],
                "numerics_version": NUMERICS_VERSION,
                "cell": [self.layer, self.kv_head],
                "split": self.split,
                "slabs": self.slabs,
                "config": {name: value for name, value in self.config.items() if name != "candidate_ks"},
                "of": of,
            }
        )


def slabs_digest(slab_digests: Mapping[str, str]) -> str:
    """One digest for everything a job reads of a store (see `CaptureStore.cell_digests`)."""
    return digest_json(slab_digests)


def row_digest(sweep: str, row_kind: str, candidate_k: int) -> str:
    """Digest of one results row; `sweep` is `RowInputs.digest` of its cell, split and policy."""
    return digest_json([sweep, row_kind, candidate_k])


def mean_inputs(layer: int, kv_head: int, slabs: str, sink_tokens: int, rotation: str | None = None) -> str:
    """Digest of what the mean key of one cell is fitted on; `rotation`: digest of what un-rotates keys, None for nothing."""
    turned = [] if rotation is None else [rotation]
    return digest_json(["key_mean", NUMERICS_VERSION, layer, kv_head, slabs, sink_tokens, *turned])
