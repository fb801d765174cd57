"""Where a run's figures come from: command, configuration, digests, versions, sessions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from polykv.receipts import pretty_json
from polykv.report.markup import Html, details, figure, section, table, tag
from polykv.report.tables import RunTables

_SIGNS = {"min": ">=", "max": "<="}
_SESSION_COLUMNS = ("started", "took", "engine", "ended", "git commit", "versions")


def provenance_section(run: RunTables) -> Html:
    """Everything needed to run it again, and to check that this is what ran."""
    return section(
        "Provenance",
        "provenance",
        tag("p", "The command that gives these tables again, value for value, on any number of workers:"),
        tag("pre", tag("code", command_of(run)), tabindex=0, aria_label="command"),
        table("Identity and digests (blake3)", ("what", "value"), identity(run), class_="plain"),
        details("Sessions: when, how long, with which versions", table("Sessions", _SESSION_COLUMNS, [_session(s) for s in run.state["sessions"]], class_="plain")),
        details("Configuration (run.json)", tag("pre", tag("code", pretty_json(run.config)), tabindex=0, aria_label="configuration")),
    )  # fmt: skip


def identity(run: RunTables) -> list[tuple[str, Any]]:
    """Names and digests of the run, its input and its tables."""
    rows: list[tuple[str, Any]] = [("model", run.model_id), ("run", run.run_id), ("status", run.status)]
    rows.append(("configuration", tag("code", run.state["config_digest"])))
    if "store" in run.config:
        rows.append(("capture store", tag("code", run.config["store"])))
    return [*rows, *((name, tag("code", digest)) for name, digest in sorted(run.state["outputs"].items()))]


def command_of(run: RunTables) -> str:
    """The command line that gives the run's figures: as asked for when run.json says so, else from its configuration."""
    asked = next((s["request"] for s in reversed(run.state["sessions"]) if "request" in s), None)
    kind = str(run.config.get("kind", "replay"))
    if asked is None:
        return _replay_command(_request_of(run.config)) if kind == "replay" else f"polykv {kind} …"
    return _COMMANDS[kind](asked)


def _replay_command(asked: Mapping[str, Any]) -> str:
    options = {"out": asked["out"], "policy": asked["policies"], "ks": asked["ks"]}
    gates = [word for gate in asked["gates"] for word in ("--gate", gate)]
    layers = {"layers": asked.get("layers")}  # runs of an earlier release do not say
    rest = {**layers, "shared_tokens": asked["shared_tokens"], "seed": asked["seed"]}
    return shlex.join(["polykv", "replay", asked["store"], *_options(options), *gates, *_options(rest)])


def _gonogo_command(asked: Mapping[str, Any]) -> str:
    names = ("out", "layers", "per_head", "atoms", "sparsity", "iterations", "method", "seed")
    return shlex.join(["polykv", "gonogo", asked["store"], *_options({name: asked[name] for name in names})])


def _certify_command(asked: Mapping[str, Any]) -> str:
    config = asked["config"]
    words = [word for name, option in (("policies", "--policy"), ("corpus", "--corpus")) for value in asked[name] for word in (option, value)]  # fmt: skip
    options = {
        "store": asked["store"],
        "passages": config["n_passages"],
        "tokens": config["n_tokens"],
        "shared_tokens": config["shared_tokens"],
        "score_from": config["score_from"],
        "bucket": config["bucket_tokens"],
        **{name: "none" if limit is None else limit for name, limit in config["budget"].items()},
        "uncentred": asked["uncentred"],
        "seed": config["seed"],
    }
    return shlex.join(["polykv", "certify", "--model", asked["model"], *words, *_options(options), "--out", "RUN"])


def _search_command(asked: Mapping[str, Any]) -> str:
    ppl = asked["max_ppl_increase"]
    options = {
        "budget_ppl": None if ppl is None else f"{100 * ppl:g}%",
        **{name: asked[name] for name in ("budget_bytes", "rate", "margin")},
        "min_cosine": "none" if asked["min_cosine"] is None else asked["min_cosine"],
        "unselected": asked.get("unselected_values"),
        **{name: asked.get(name) for name in _SEARCH_OPTIONS},
        "after_rope": not asked["before_rope"],
        "out": asked["out"],
    }
    corpus = [word for value in asked["corpus"] for word in ("--corpus", value)]
    return shlex.join(
        ["polykv", "policy", "search", asked["store"], "--model", asked["model"], *corpus, *_options(options)]
    )


# Runs of earlier versions lack some of them.
_SEARCH_OPTIONS = (
    "metric",
    "gradient_passages",
    "floor_bytes",
    "select_passages",
    "sensitivities",
    "sensitivity_passages",
    "confirm_passages",
    "max_passes",
    "name",
    "seed",
)
_COMMANDS = {
    "replay": _replay_command,
    "gonogo": _gonogo_command,
    "certify": _certify_command,
    "search": _search_command,
}


def _options(asked: Mapping[str, Any]) -> list[str]:
    """Options as words; None and False are left out, lists joined with commas."""
    words = []
    for name, value in asked.items():
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
    return words


def _request_of(config: Mapping[str, Any]) -> dict[str, Any]:
    sweep = config["sweep"]
    return {
        "store": "STORE",
        "out": "RUN",
        "policies": list(config["policies"]),
        "ks": sweep["candidate_ks"],
        "gates": [f"{g['metric']}{_SIGNS[g['direction']]}{g['limit']:g}" for g in sweep["gates"]],
        "shared_tokens": sweep["shared_tokens"],
        "seed": sweep["seed"],
    }


def _session(session: Mapping[str, Any]) -> Sequence[Any]:
    git = session.get("git") or {}
    engine = session.get("replay", {}).get("engine") or {}
    workers = f", {engine['n_workers']} workers" if engine.get("n_workers") else ""
    return (
        session.get("started_at"),
        f"{figure(session.get('seconds'), '.0f')} s",
        f"{engine['kind']}{workers}" if engine else None,
        session.get("error") or "regularly",
        f"{git['commit'][:12]}{' with local changes' if git.get('dirty') else ''}" if git.get("commit") else None,
        ", ".join(f"{name} {version}" for name, version in session.get("versions", {}).items()),
    )
