"""Where the numbers come from: command, configuration, digests, versions, sessions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from polykv.receipts import pretty_json
from polykv.report.markup import Html, details, figure, section, table, tag
from polykv.report.tables import RunTables

NAMED = ("two_tier", "int8", "reference", "exact")
_SIGNS = {"min": ">=", "max": "<="}


def command_of(run: RunTables) -> str:
    """The command that makes this run again; STORE stands for a capture whose place was not noted."""
    request = next((s["request"] for s in reversed(run.state["sessions"]) if "request" in s), None)
    sweep = run.config.get("sweep", {})
    if request is not None:
        words = ["polykv", "replay", request["store"], "--out", request["out"]]
        words += ["--policy", ",".join(request["policies"]), "--ks", ",".join(request["ks"])]
    else:
        names = [name if name in NAMED else f"{name}.json" for name in run.config.get("policies", {})]
        words = ["polykv", "replay", "STORE", "--out", run.path.name, "--policy", ",".join(names)]
        words += ["--ks", ",".join(map(str, sweep.get("candidate_ks", ())))]
    for gate in run.gates:
        words += ["--gate", f"{gate['metric']}{_SIGNS[gate['direction']]}{gate['limit']:g}"]
    if sweep.get("shared_tokens") is not None:
        words += ["--shared-tokens", str(sweep["shared_tokens"])]
    return shlex.join([*words, "--seed", str(sweep.get("seed", 42))])


def provenance_section(run: RunTables) -> Html:
    """Everything that determines the numbers, and what computed them."""
    state, config = run.state, run.config
    facts = [
        ("run", run.run_id),
        ("status", run.status),
        ("model", run.model_id),
        ("capture store digest", config.get("store")),
        ("configuration digest (blake3)", state["config_digest"]),
        *((f"{name} digest (blake3)", digest) for name, digest in sorted(state["outputs"].items())),
    ]
    command = command_of(run) if "sweep" in config else None
    return section(
        "Provenance",
        "provenance",
        tag("p", "The command that makes these tables again, value for value, on any number of workers:")
        if command
        else None,
        tag("pre", tag("code", command), tabindex=0) if command else None,
        table("What was measured", ("what", "value"), facts, class_="facts"),
        details(
            "Sessions: when, with which versions, how long",
            table("Sessions", _SESSION_COLUMNS, map(_session, state["sessions"]), (4, 5)),
        ),
        details("Configuration", tag("pre", tag("code", pretty_json(config)), tabindex=0)),
    )


_SESSION_COLUMNS = ("started", "versions", "git commit", "ended", "rows computed", "seconds")


def _session(session: Mapping[str, Any]) -> Sequence[Any]:
    git = session.get("git") or {}
    replay = session.get("replay") or {}
    return (
        session["started_at"],
        ", ".join(f"{name} {version}" for name, version in session["versions"].items()),
        f"{git['commit'][:12]}{' (with changes)' if git.get('dirty') else ''}" if git.get("commit") else "–",
        session.get("error") or "regularly",
        figure(replay.get("rows_computed"), "d"),
        figure(session.get("seconds"), ".0f"),
    )
