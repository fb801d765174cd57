"""Times of the cell replay, in ratios of one run: eight budgets against one, and policies against each other.

PYTHONPATH=. python tests/bench/bench_sweep.py
"""

import time

from threadpoolctl import threadpool_limits

from polykv.policy import NAMED_POLICIES, Policy
from polykv.replay.config import SweepConfig
from polykv.replay.controls import control_rows
from polykv.replay.means import key_mean
from polykv.replay.sweep import sweep_cell
from tests.replay.cells import make_cell

REPEATS = 7


def seconds(function, *arguments):
    """Least CPU seconds of several calls: other people's work on the machine does not count."""
    found = []
    for _ in range(REPEATS):
        start = time.process_time()
        function(*arguments)
        found.append(time.process_time() - start)
    return min(found)


def main():
    for n_tokens in (256, 1024):
        cell = make_cell(n_passages=12, n_tokens=n_tokens, n_queries=8, group=3, head_dim=64, value_dim=64, logits=True, scale=0.125)  # fmt: skip
        mean = key_mean(cell, 4)
        step = n_tokens // 8
        eight = SweepConfig(tuple(range(step, n_tokens + 1, step)))
        one = SweepConfig((n_tokens,))
        for name in NAMED_POLICIES:
            policy = Policy.named(name)
            all_ks = seconds(sweep_cell, cell, policy, eight, mean)
            one_k = seconds(sweep_cell, cell, policy, one, mean)
            print(
                f"T={n_tokens:5} {name:10} 8 budgets {all_ks:.3f} s CPU, 1 budget {one_k:.3f} s: {all_ks / one_k:.2f} ×"
            )
        print(f"T={n_tokens:5} controls   {seconds(control_rows, cell, eight):.3f} s CPU")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
