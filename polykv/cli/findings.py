"""A run's findings on a terminal: the sentence, the policies, the cells, the paths."""

from __future__ import annotations

from typing import Any

from polykv.cli.console import figure, note, say, say_table
from polykv.report_stages import ClosingReport
from polykv.stages import ReplaySummary, RunFindings

MAX_CELLS = 60


def say_findings(found: RunFindings, summary: ReplaySummary | None = None, all_cells: bool = False) -> None:
    """Print a run for people; of a large run the cells that do not pass come first, 60 at most."""
    say_table("", _POLICY_COLUMNS, [_policy_row(policy) for policy in found.policies])
    say()
    cells = sorted(found.cells, key=lambda row: (row["layer"], row["kv_head"], row["policy"]))
    if len(cells) > MAX_CELLS and not all_cells:
        say(f"the {MAX_CELLS} cells with the lowest cosine of {len(cells)} (polykv show {found.path} --all for all):")
        cells = sorted(cells, key=lambda row: row["confirm_output_cosine_mean"] or -1.0)[:MAX_CELLS]
    say_table("", _CELL_COLUMNS, [_cell_row(row) for row in cells])
    say()
    for line in found.controls:
        say(f"control {line}")
    say()
    say(found.sentence)
    say()
    if summary is not None:
        say(
            f"{summary.rows_computed} rows computed, {summary.rows_reused} reused, {summary.rows_failed} failed, "
            f"in {summary.seconds:.0f} s"
        )
        for reason, count in summary.failures.items():
            say(f"failed: {count} rows: {reason}")
    for name in ("results", "selection", "controls"):
        say(f"wrote {found.path}/{name}.parquet")


def say_report(closing: ClosingReport) -> None:
    """The last line of a run: where its report is, or why there is none."""
    if closing.path is None:
        note(closing.line)
    else:
        say(closing.line)


_POLICY_COLUMNS = (
    "policy", "pass", "inconclusive", "fail", "insensitive", "median k", "decodes 1 in", "cosine", "window alone",
    "B/token", "of float16",
)  # fmt: skip


def _policy_row(policy: Any) -> list[str]:
    count = policy.verdicts.get
    failed = count("fail", 0) + count("failed", 0) + count("invalid", 0)
    ratio = policy.ratio_to_float16
    return [
        policy.policy,
        f"{policy.n_pass}",
        f"{count('inconclusive', 0)}",
        f"{failed}",
        f"{count('insensitive', 0)}",
        figure(policy.candidate_k, ".0f"),
        figure(policy.decode_reduction, ".1f"),
        figure(policy.output_cosine, ".4f"),
        figure(policy.window_only_cosine, ".4f"),
        figure(policy.bytes_per_token, ".0f"),
        f"1/{ratio:.1f}" if ratio else "–",
    ]


_CELL_COLUMNS = (
    "layer", "head", "policy", "k", "cosine", "low", "rel. error", "KL (nats)", "window alone", "decodes 1 in",
    "B/token", "verdict",
)  # fmt: skip


def _cell_row(row: dict[str, Any]) -> list[str]:
    k = figure(row["candidate_k"], "d")
    return [
        str(row["layer"]),
        str(row["kv_head"]),
        row["policy"],
        f"{k} (full)" if row["candidate_k"] is not None and row["is_full"] else k,
        figure(row["confirm_output_cosine_mean"], ".4f"),
        figure(row["confirm_output_cosine_low"], ".4f"),
        figure(row["confirm_output_relative_error_mean"], ".3f"),
        figure(row["confirm_attention_kl_mean"], ".1e"),
        figure(row["window_only_output_cosine_mean"], ".3f"),
        figure(row["decode_reduction"], ".1f"),
        figure(row["bytes_per_token"], ".0f"),
        row["verdict"],
    ]
