"""The last stage of a calibration: the policies it found, inside the model, on passages it never saw.

    certify_skipped(True, capture)        why there is nothing to certify, or None
    found_policy(policy, selection)       each cell with the candidate_k that the sweep chose
    certify_calibration(out, store, …)    policy files, certify.parquet and certify.json in the run

The policy files and their artifacts lie together in the run directory, so that it can be copied
whole and certified elsewhere: `polykv certify --policy RUN/two_tier.policy.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polykv.capture import CaptureConfig
from polykv.certify import CertifyConfig
from polykv.certify.means import means_to_arrays
from polykv.certify.run import Progress
from polykv.certify_stages import (
    CertifyOutcome,
    CertifyRequest,
    candidate_of,
    certify_into,
    prepare_certification,
)
from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.policy_files import policy_file_name
from polykv.schemas import CERTIFY, SELECTION
from polykv.storage import CaptureStore
from polykv.storage.artifacts import save_artifact
from polykv.storage.atomic import write_bytes
from polykv.storage.results import read_rows
from polykv.storage.run import RunDirectory
from polykv.types import Cell

__all__ = ["certify_calibration", "certify_skipped", "found_policy", "publish_certification", "write_found_policies"]

FOLDER = "certify"
_HELD = ("pass", "inconclusive", "insensitive")


def certify_skipped(with_certify: bool, capture: CaptureConfig | None) -> str | None:
    """Why a calibration ends without a certification, as run.json records it; None when it has one."""
    if capture is None:
        return "skipped: no model"
    if not with_certify:
        return "skipped: not asked for"
    if capture.layers is not None or capture.layer_stride is not None:
        return "skipped: the capture keeps some layers only, and a model is judged with all of them"
    return None


def found_policy(policy: CompressionPolicy, selection: Iterable[Mapping[str, Any]]) -> CompressionPolicy:
    """`policy` with what a sweep found (rows of `schemas.SELECTION`): candidate_k by cell.

    A cell whose budget fell on confirm, or that has none, decodes all its values.
    """
    cells = dict(policy.cells)
    for row in selection:
        if row["policy"] != policy.name:
            continue
        some = row["candidate_k"] is not None and not row["is_full"] and row["verdict"] in _HELD
        key = Cell(row["layer"], row["kv_head"]).key
        cells[key] = {**cells.get(key, {}), "candidate_k": int(row["candidate_k"]) if some else "full"}
    return replace(policy, cells=cells)


def write_found_policies(out: str | Path, store: CaptureStore, policies: Sequence[str]) -> list[Path]:
    """NAME.policy.json for every policy of the finished sweep in `out`, mean keys among its artifacts.

    `policies`: what was swept, names or .json files. Raises InputError when two names fold to one file.
    """
    run = RunDirectory.open(out)
    selection = read_rows(run.table_path(SELECTION.name), SELECTION)
    written: list[Path] = []
    for text in policies:
        candidate = candidate_of(text, store)
        policy, digests = found_policy(candidate.policy, selection), list(candidate.policy.artifacts)
        for digest in digests:
            save_artifact(run.artifacts, candidate.artifacts(digest))
        if candidate.means:
            digests.append(save_artifact(run.artifacts, means_to_arrays(candidate.means)))
        path = run.path / policy_file_name(policy.name)
        if path in written:
            raise InputError(f"policy {policy.name!r} would be written to {path.name}, as another one is: rename it")
        replace(policy, artifacts={digest: f"artifacts/{digest}.npz" for digest in digests}).save(path)
        written.append(path)
    return written


def certify_calibration(
    out: str | Path,
    store: str,
    capture: CaptureConfig,
    policies: Sequence[str],
    shared_tokens: int | None = None,
    progress: Progress | None = None,
) -> CertifyOutcome:
    """Certify what the sweep in `out` found on the confirm passages of `store`, captured by `capture`.

    shared_tokens: tokens in the pool, as in the sweep (None: half of a passage).
    """
    found = write_found_policies(out, CaptureStore.open(store), policies)
    request = CertifyRequest(
        model=capture.model,
        policies=tuple(str(path) for path in found),
        store=store,
        config=CertifyConfig(n_tokens=capture.n_tokens, shared_tokens=shared_tokens),
        model_cache=capture.model_cache,
    )
    outcome, _ = certify_into(str(Path(out) / FOLDER), prepare_certification(request), progress)
    publish_certification(out)
    return outcome


def publish_certification(out: str | Path) -> list[Path]:
    """Copy table and receipt of the certification in `out`/certify beside the other tables of the run `out`."""
    names = (f"{CERTIFY.name}.parquet", f"{CERTIFY.name}.json")
    return [write_bytes(Path(out) / name, (Path(out) / FOLDER / name).read_bytes()) for name in names]
