"""How long a captured replay takes, against the running reference's seconds.

    python tests/bench/bench_captured_replay.py

8 queries of 512 and of 2,048 rows, head_dim 64, 6 candidate_ks, the reference policy. Each length runs in a
fresh process, so no codebook, rotation or projection is cached from before; imports are not timed. Wall and processor
seconds are printed: on a busy machine only the latter say something.
"""

import multiprocessing
import time

import numpy as np

HEAD_DIM, QUERIES, LABELS = 64, 8, 64
CANDIDATE_KS = (4, 8, 16, 32, 64, 128)
# seconds of the reference for the same work, with its quantisers trained 336 times
REFERENCE_SECONDS = {512: 4.9, 2048: 6.0}
AIM = 25


def main() -> None:
    context = multiprocessing.get_context("spawn")
    for n_tokens, reference in REFERENCE_SECONDS.items():
        with context.Pool(1) as pool:
            wall, processor = pool.apply(replay_seconds, (n_tokens,))
        print(
            f"captured replay, {n_tokens} rows: {wall:.3f} s wall, {processor:.3f} s processor; reference "
            f"{reference} s: {reference / wall:.0f} × (aim {AIM} ×, {reference / AIM:.3f} s)"
        )


def replay_seconds(n_tokens: int) -> tuple[float, float]:
    """(wall, processor) seconds of one replay in this process."""
    from polykv.replay.captured import run_captured_model_replay
    from polykv.replay.seed_config import CapturedReplayConfig

    fixture = make_fixture(n_tokens)
    wall, processor = time.perf_counter(), time.process_time()
    run_captured_model_replay(fixture, CapturedReplayConfig(CANDIDATE_KS))
    return time.perf_counter() - wall, time.process_time() - processor


def make_fixture(n_tokens: int):
    """Gaussian keys and values; queries of about the spread that trained attention has."""
    from polykv.replay.fixtures import CapturedReplayFixture, CapturedReplayQuery

    rng = np.random.default_rng(0)
    projection = rng.normal(size=(LABELS, HEAD_DIM)).astype(np.float32)
    queries = []
    for label in range(QUERIES):
        query = (rng.normal(size=HEAD_DIM) / np.sqrt(HEAD_DIM)).astype(np.float32)
        keys, values = rng.normal(size=(2, n_tokens, HEAD_DIM)).astype(np.float32)
        logits = keys.astype(np.float64) @ query
        weights = np.exp(logits - logits.max())
        output = ((weights / weights.sum()) @ values).astype(np.float32)
        queries.append(CapturedReplayQuery(query, keys, values, output, projection @ output, label))
    return CapturedReplayFixture("bench", HEAD_DIM, n_tokens // 2, 42, projection, tuple(queries))


if __name__ == "__main__":
    main()
