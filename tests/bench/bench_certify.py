"""What a certification costs beside the plain model: forward passes with a policy against those without.

Aim: 10 passages × 512 tokens at no more than 4 times the baseline's passes. Ratios are taken pass by pass in
turn, so that a busy machine slows both alike.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np

N_PASSAGES, N_TOKENS = 10, 512
POLICIES = ("int8", "kivi4", "turboquant2")
TEXT = Path(__file__).parents[2] / "data/text/mansfield_park.txt"


def main() -> None:
    from polykv.capture.forward import probe_layers
    from polykv.capture.models import load_model
    from polykv.certify.cells import plan_cells
    from polykv.certify.inject import baseline_logits, policy_logits
    from polykv.errors import PolykvError
    from polykv.policy import CompressionPolicy

    try:
        loaded = load_model("smollm2")
    except PolykvError as error:
        print(f"certification: skipped, {error}")
        return
    ids = np.array(loaded.tokenize(TEXT.read_text(encoding="utf-8"))[: N_PASSAGES * N_TOKENS]).reshape(-1, N_TOKENS)
    specs, _ = probe_layers(loaded.model, ids[0][:4])
    queries = np.arange(N_TOKENS // 2 - 1, N_TOKENS - 1)
    plans = {name: plan_cells(CompressionPolicy.named(name), specs) for name in POLICIES}
    ratios: dict[str, list[float]] = {name: [] for name in POLICIES}
    baseline_logits(loaded.model, ids[0], queries)
    for passage in ids:
        plain = _seconds(lambda: baseline_logits(loaded.model, passage, queries))  # noqa: B023
        for name, plan in plans.items():
            spent = _seconds(lambda: policy_logits(loaded.model, passage, queries, plan, N_TOKENS // 2))  # noqa: B023
            ratios[name].append(spent / plain)
    for name, found in ratios.items():
        middle, most = statistics.median(found), max(found)
        print(
            f"certify {name}: a pass takes {middle:.2f} times the model's own (median of {len(found)}, worst {most:.2f})"
        )


def _seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
