"""What a tracker is told about one run: parameters as text, finite numbers, files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polykv.errors import InputError
from polykv.report.summary import PolicySummary

Row = Mapping[str, Any]

# always told, so that a run without any can be plotted beside one with some
_VERDICTS = {"pass": "cells_pass", "inconclusive": "cells_inconclusive", "fail": "cells_fail"}
_OTHER_VERDICTS = {"insensitive": "cells_insensitive", "invalid": "cells_invalid", "failed": "cells_not_measured"}
_CERTIFIED = (
    "ppl_increase",
    "ppl_increase_low",
    "ppl_increase_high",
    "kl_mean",
    "top1_agreement",
    "bytes_per_token",
    "ratio_to_float16",
    "decode_reduction",
)
_GONOGO = {"go": "cells_go", "no-go": "cells_no_go", "inconclusive": "cells_inconclusive"}


@dataclass(frozen=True)
class RunRecord:
    """One run as a tracker keeps it.

    `metrics` are finite, named "POLICY/figure" in the units of the tables' columns; `files` maps
    each file's place within the run to where it lies now.
    """

    name: str
    run_id: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    files: Mapping[str, Path]


def policy_metrics(summaries: Iterable[PolicySummary]) -> dict[str, float]:
    """A sweep's figures: cells by verdict, and medians over cells (see `PolicySummary`)."""
    found: dict[str, Any] = {}
    for summary in summaries:
        figures: dict[str, Any] = {name: summary.verdicts.get(word, 0) for word, name in _VERDICTS.items()}
        figures |= {name: summary.verdicts.get(word) for word, name in _OTHER_VERDICTS.items()}
        figures |= {
            "candidate_k_median": summary.candidate_k,
            "decode_reduction_median": summary.decode_reduction,
            "bytes_per_token_median": summary.bytes_per_token,
            "output_cosine_median": summary.output_cosine,
        }
        found |= _named(summary.policy, figures)
    return finite(found)


def certify_metrics(rows: Iterable[Row]) -> dict[str, float]:
    """What each policy does to the model itself: the rows of whole policies in a table `certify`."""
    found: dict[str, Any] = {}
    for row in rows:
        if row["slice_kind"] == "all":
            found |= _named(row["policy"], {f"certify_{name}": row[name] for name in _CERTIFIED})
    return finite(found)


def gonogo_metrics(rows: Iterable[Row]) -> dict[str, float]:
    """How many layer × stream verdicts of a table `gonogo` say what; nothing without primary rows."""
    said = [str(row["verdict"]).lower() for row in rows if row["is_primary"]]
    return {f"gonogo/{name}": float(said.count(word)) for word, name in _GONOGO.items()} if said else {}


def finite(figures: Mapping[str, Any]) -> dict[str, float]:
    """The figures that are numbers: nulls, NaN and infinities are left out, never written as 0."""
    return {name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)}


def tracker_name(policy: str) -> str:
    """A policy's name as trackers take it: what they refuse is folded to "_", and "/" parts nothing."""
    return re.sub(r"[^A-Za-z0-9_. -]+", "_", policy)


def one_line(error: Exception) -> str:
    """A tracker's own words without their line breaks and final stop."""
    return " ".join(str(error).split()).removesuffix(".")


def check_names(policies: Iterable[str]) -> None:
    """Raise InputError when two policies would be told under one name."""
    owners: dict[str, str] = {}
    for policy in policies:
        other = owners.setdefault(tracker_name(policy), policy)
        if other != policy:
            raise InputError(
                f"the policies {other!r} and {policy!r} are both {tracker_name(policy)!r} to a tracker: rename one"
            )


def _named(policy: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{tracker_name(policy)}/{name}": value for name, value in figures.items()}
