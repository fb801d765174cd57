"""How many values each head has to decode: the smallest candidate_k that leaves its output as it is."""

from __future__ import annotations

from collections.abc import Sequence

from polykv.policy import CompressionPolicy
from polykv.replay.config import SweepConfig, normalise_candidate_ks
from polykv.replay.sweep import sweep_cell
from polykv.types import CellData

CANDIDATE_KS = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024, "full")


def head_budget(
    data: CellData,
    sink_tokens: int,
    recent_window: int,
    min_cosine: float,
    unselected_values: str,
    asked: Sequence[int | str] = CANDIDATE_KS,
) -> int | str:
    """The smallest of `asked` whose mean output cosine on `data` is min_cosine or more; "full" if none is.

    Keys and values are exact, sinks and window always attended: what is measured is the selection
    alone, with what `unselected_values` makes of the rest. `data`: the split select of a cell.
    """
    n_tokens = int(data.lengths.max())
    ks, _ = normalise_candidate_ks(asked, n_tokens)
    exact = CompressionPolicy.exact()
    policy = CompressionPolicy(
        "exact_topk",
        sink_tokens=sink_tokens,
        recent_window=recent_window,
        pool=exact.pool,
        shell=exact.shell,
        unselected_values=unselected_values,
    )
    for row in sweep_cell(data, policy, SweepConfig(candidate_ks=ks)):
        cosine = row["output_cosine_mean"]
        if row["row_kind"] == "candidate" and cosine is not None and cosine >= min_cosine:
            return "full" if row["candidate_k"] >= n_tokens else int(row["candidate_k"])
    return "full"
