"""One function a receipt command: replay a fixture, show a run's cell, verify a file, export a fixture.

Nothing here prints; what a person should know besides the result comes back as notes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from polykv.codecs.registry import ArtifactLoader
from polykv.errors import InputError, PolicyError
from polykv.policy import NAMED_POLICIES, CompressionPolicy
from polykv.pool import (
    CompressedAttentionSelectionReceipt,
    InjectionReceipt,
    PoolBuildReceipt,
    PoolManifest,
    ShellManifest,
    ShellMaterializeReceipt,
    open_pool,
    open_shell,
)
from polykv.records import Comparison, Record
from polykv.replay.captured import run_captured_model_replay, verify_captured_receipt
from polykv.replay.fixture_export import fixture_of_cell
from polykv.replay.fixtures import CapturedReplayFixture, read_fixture, read_json
from polykv.replay.seed_config import CapturedReplayConfig
from polykv.replay.seed_records import CapturedReplayReceipt, ModelReplayReceipt
from polykv.replay.softmax_scale import SoftmaxScaleWarning
from polykv.replay.sweep_receipt import receipt_of_rows
from polykv.schemas import RESULTS
from polykv.storage import CaptureStore
from polykv.storage.artifacts import load_artifact
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory
from polykv.strict import within

GATE_NAMES = tuple(item.name for item in fields(CapturedReplayConfig) if item.name != "candidate_ks")
_KINDS: Mapping[str, type[Record]] = {
    kind.schema: kind
    for kind in (
        CapturedReplayReceipt,
        ModelReplayReceipt,
        PoolBuildReceipt,
        ShellMaterializeReceipt,
        CompressedAttentionSelectionReceipt,
        InjectionReceipt,
        PoolManifest,
        ShellManifest,
    )
}


@dataclass(frozen=True)
class Evidence:
    """What a receipt may be held against; all optional paths, `policy` a name or .json file."""

    fixture: str | None = None
    policy: str | None = None
    run: str | None = None
    pool: str | None = None
    shell: str | None = None


def replay_fixture(
    path: str, ks: Sequence[int | str] = (), policy: str = "reference", limits: Mapping[str, float] | None = None
) -> tuple[CapturedReplayReceipt, tuple[str, ...]]:
    """Replay a fixture file; returns the receipt and notes.

    `ks` in the order tried, "full" for every row of the longest query; without ks the file must hold a config
    ({"fixture": …, "config": …}). `limits` overrides gates by name (GATE_NAMES).
    """
    fixture, raw_config = read_fixture(path)
    if raw_config is not None:
        with within(f"{path}: config: "):
            config = CapturedReplayConfig.from_dict(raw_config)
    elif ks:
        config = CapturedReplayConfig(())
    else:
        raise InputError(f"{path} holds no config: say which budgets to try, for example --ks 8,16,32")
    if ks:
        config = replace(config, candidate_ks=_resolved(ks, fixture))
    config = replace(config, **(limits or {}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SoftmaxScaleWarning)
        receipt = run_captured_model_replay(fixture, config, *_policy_and_artifacts(policy))
    notes = [one for one in caught if issubclass(one.category, SoftmaxScaleWarning)]
    for other in caught:
        if other not in notes:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return receipt, tuple(str(one.message) for one in notes)


def show_receipt(
    run: str, layer: int, kv_head: int, policy: str | None = None, split: str = "confirm"
) -> CapturedReplayReceipt:
    """The receipt of one cell of a run; `policy` may be left out when the run has only one."""
    opened = RunDirectory.open(run)
    rows = read_rows(opened.existing_table(RESULTS.name), RESULTS, layer=layer, kv_head=kv_head, split=split)
    policies = sorted({row["policy"] for row in rows})
    if not policies:
        raise InputError(f"{run} has no row of layer {layer}, KV head {kv_head}, split {split!r}")
    if policy is None and len(policies) > 1:
        raise InputError(f"{run} holds the policies {', '.join(policies)}; choose one with --policy")
    chosen = policy or policies[0]
    if chosen not in policies:
        raise InputError(f"{run} has no policy {chosen!r} there; it has {', '.join(policies)}")
    own = [row for row in rows if row["policy"] == chosen]
    return receipt_of_rows(own, str(opened.config.get("model_id", "")), opened.run_id, opened.config_digest)


def verify_receipt(path: str, evidence: Evidence = Evidence()) -> tuple[str, tuple[str, ...]]:
    """Check a receipt or manifest file; returns its schema and the names of what was checked.

    Without evidence its own figures are recomputed; with a fixture, a run, a pool or a shell, against those.
    Raises InputError for what is no receipt, ReceiptError for one that does not hold.
    """
    raw = read_json(path)
    schema = raw.get("schema_version") if isinstance(raw, Mapping) else None
    if not isinstance(schema, str) or schema not in _KINDS:
        raise InputError(f"{path} is no receipt: its schema_version is {schema!r}; known: {', '.join(_KINDS)}")
    with within(f"{path}: "):
        receipt = _KINDS[schema].from_dict(raw)
        return schema, _verified(receipt, evidence)


def export_fixture(
    store: str,
    layer: int,
    kv_head: int,
    n_queries: int,
    q_head: int = 0,
    passage: int | None = None,
    split: str = "confirm",
    shared_tokens: int | None = None,
    seed: int = 42,
    synthetic_projection: bool = False,
) -> CapturedReplayFixture:
    """A fixture of one query head of a capture store (see `polykv.replay.fixture_export`)."""
    opened = CaptureStore.open(store)
    meta = opened.meta
    if passage is not None:
        if not 0 <= passage < meta.n_passages:
            raise InputError(f"{store} has passages 0 to {meta.n_passages - 1}, not {passage}")
        split = meta.passage_split[passage]
    data = opened.cell(layer, kv_head, split)
    return fixture_of_cell(
        data, meta.model_id, n_queries, q_head, passage, shared_tokens, seed, synthetic_projection, meta.logits_reason
    )


def _resolved(ks: Sequence[int | str], fixture: CapturedReplayFixture) -> tuple[int, ...]:
    longest = max((len(query.keys) for query in fixture.queries), default=0)
    return tuple(longest if k == "full" else int(k) for k in ks)


def _verified(receipt: Record, evidence: Evidence) -> tuple[str, ...]:
    _refuse_foreign(receipt, evidence)
    if isinstance(receipt, CapturedReplayReceipt):
        return _verified_replay(receipt, evidence)
    if isinstance(receipt, ModelReplayReceipt):
        return receipt.verify()
    pool = open_pool(evidence.pool) if evidence.pool else None
    shell = open_shell(evidence.shell, pool) if evidence.shell and pool else None
    if isinstance(receipt, PoolBuildReceipt):
        return receipt.verify(pool)
    if isinstance(receipt, ShellMaterializeReceipt):
        return receipt.verify(shell)
    if isinstance(receipt, InjectionReceipt):
        return receipt.verify(pool, shell)
    if isinstance(receipt, CompressedAttentionSelectionReceipt):
        return receipt.verify()
    found = Comparison(receipt.schema)
    found.equal("schema_version", receipt.schema, receipt.schema)
    saved = pool if isinstance(receipt, PoolManifest) else shell
    if saved is not None:
        found.equal("manifest", receipt.digest(), saved.manifest.digest())
    return found.finish()


def _refuse_foreign(receipt: Record, evidence: Evidence) -> None:
    """Evidence that a receipt of this schema is never held against would make "holds" say more than was checked."""
    fit = ("fixture", "policy", "run") if isinstance(receipt, CapturedReplayReceipt) else ("pool", "shell")
    foreign = [item.name for item in fields(evidence) if getattr(evidence, item.name) and item.name not in fit]
    if foreign:
        raise InputError(f"--{foreign[0]}: {receipt.schema} is checked against --{', --'.join(fit)}")
    if evidence.policy and not evidence.fixture:
        raise InputError("--policy needs --fixture: it is the policy to replay the fixture with")


def _verified_replay(receipt: CapturedReplayReceipt, evidence: Evidence) -> tuple[str, ...]:
    checked = receipt.verify()
    if evidence.fixture is not None:
        fixture, _ = read_fixture(evidence.fixture)
        asked = evidence.policy or _named_policy(receipt)
        checked = verify_captured_receipt(receipt, fixture, *_policy_and_artifacts(asked))
    if evidence.run is not None:
        place = receipt.provenance or {}
        lost = [name for name in ("layer", "kv_head", "policy", "split") if name not in place]
        if lost:
            raise InputError(f"the receipt does not say its {lost[0]}: it is not of a run")
        again = show_receipt(evidence.run, place["layer"], place["kv_head"], place["policy"], place["split"])
        found = Comparison(receipt.schema)
        found.equal("digest of the run's receipt", receipt.body_digest(), again.body_digest())
        checked += found.finish()
    return checked


def _named_policy(receipt: CapturedReplayReceipt) -> str:
    """The named policy that the receipt says, or (a receipt without provenance) the reference."""
    name = str((receipt.provenance or {}).get("policy", "reference"))
    if name not in NAMED_POLICIES:
        raise PolicyError(f"the receipt is of policy {name!r}, which has no fixed meaning: pass its file with --policy")
    return name


def _policy_and_artifacts(text: str) -> tuple[CompressionPolicy, ArtifactLoader]:
    """The policy of a name or file, and a loader of the artifacts it lists, whose paths are relative to its file."""
    policy = CompressionPolicy.resolve(text)

    def load(digest: str) -> dict[str, np.ndarray]:
        if digest not in policy.artifacts:
            raise PolicyError(f"policy {policy.name!r} uses artifact {digest[:12]}… but does not list it")
        return load_artifact((Path(text).parent / policy.artifacts[digest]).parent, digest)

    return policy, load


def save_text(path: str, text: str) -> None:
    """Write a result file; raises InputError naming the path when it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error
