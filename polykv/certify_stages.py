"""The stage `certify`: from names and files to a table and a receipt; what command line and flows call.

prepared = prepare_certification(request)     # everything that can be refused, before the model is loaded
outcome = run_certification(prepared)         # rows of schemas.CERTIFY and the receipt
write_certification(run, outcome)             # certify.parquet and certify.json in a run directory
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polykv.capture.corpus import TextDocument, read_corpus
from polykv.capture.models import LoadedModel, load_model
from polykv.certify import (
    Budget,
    Candidate,
    CertifyConfig,
    EvaluationText,
    certify_policies,
    certify_receipt,
    certify_rows,
    evaluation_text,
)
from polykv.certify.cells import Artifacts, cell_rotations, centred_cells
from polykv.certify.means import fit_key_means, means_from_arrays
from polykv.certify.passages import spread_over_documents
from polykv.certify.run import Progress
from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.policy_files import load_policy
from polykv.receipts import digest_array, digest_json, pretty_json
from polykv.schemas import CERTIFY
from polykv.storage import CaptureStore
from polykv.storage.atomic import write_bytes
from polykv.storage.results import write_table
from polykv.storage.run import RUN_ID_HEX_DIGITS, RunDirectory, refuse_no_place_for_a_run
from polykv.types import Cell

__all__ = [
    "Budget",
    "CertifyConfig",
    "CertifyOutcome",
    "CertifyRequest",
    "PreparedCertification",
    "candidate_of",
    "certify_into",
    "check_same_model",
    "own_means",
    "prepare_certification",
    "run_certification",
    "write_certification",
]

UNCENTRED = "not centred, as asked"


@dataclass(frozen=True)
class CertifyRequest:
    """A certification as a person asks for it.

    policies: names or .json files. corpus: texts to evaluate on (see `read_corpus`; a document
    assigned to calibrate or select is left out); empty: the confirm passages of `store`. store:
    the capture whose split calibrate gives mean keys. uncentred: leave keys as they are where a
    policy would centre them.
    """

    model: str
    policies: tuple[str, ...]
    corpus: tuple[str, ...] = ()
    store: str | None = None
    config: CertifyConfig = CertifyConfig()
    text_field: str = "text"
    uncentred: bool = False
    model_cache: str | None = None


@dataclass(frozen=True, eq=False)
class PreparedCertification:
    """A request held against its files; `notes` are what a reader of the result must know."""

    request: CertifyRequest
    candidates: tuple[Candidate, ...]
    documents: tuple[TextDocument, ...]
    store: CaptureStore | None
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CertifyOutcome:
    """Rows of `schemas.CERTIFY` (run_id included), the receipt, and notes."""

    rows: list[dict[str, Any]]
    receipt: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def summary(self) -> list[dict[str, Any]]:
        """The rows of whole policies, in the order asked."""
        return [row for row in self.rows if row["slice_kind"] == "all"]


def prepare_certification(
    request: CertifyRequest, storage_options: Mapping[str, Any] | None = None, out: str | None = None
) -> PreparedCertification:
    """Resolve policies, read the corpus, fit mean keys; raises before any model is loaded.

    `out`: the run directory it is meant for, refused here when none can stand there.
    """
    if out is not None:
        refuse_no_place_for_a_run(out)
    if not request.policies:
        raise InputError("no policy to certify; for example --policy two_tier")
    if not request.corpus and request.store is None:
        raise InputError("nothing to evaluate on: give --corpus FILE, or --store STORE with a split confirm")
    store = None if request.store is None else CaptureStore.open(request.store, storage_options)
    documents = tuple(read_corpus(request.corpus, request.text_field)) if request.corpus else ()
    candidates = tuple(candidate_of(text, store, request.uncentred) for text in request.policies)
    return PreparedCertification(request, candidates, documents, store, _notes(documents, store))


def run_certification(
    prepared: PreparedCertification,
    progress: Progress | None = None,
    loaded: LoadedModel | None = None,
    run_id: str | None = None,
) -> CertifyOutcome:
    """Load the model (unless given), cut the passages, certify every policy.

    `progress(done, failed, total)` counts forward passes. `run_id` None: derived from the inputs.
    """
    request = prepared.request
    loaded = loaded or load_model(request.model, "float32", request.model_cache)
    check_same_model(prepared.store, loaded)
    text, config = _text(prepared, loaded)
    certification = certify_policies(loaded, text, prepared.candidates, config, progress)
    receipt = certify_receipt(certification, loaded, prepared.notes)
    identity = digest_json(run_config(prepared, loaded, text, config))[:RUN_ID_HEX_DIGITS]
    rows = [{"run_id": run_id or identity, **row} for row in certify_rows(certification)]
    return CertifyOutcome(rows, receipt, prepared.notes)


def run_config(
    prepared: PreparedCertification, loaded: LoadedModel, text: EvaluationText, config: CertifyConfig
) -> dict[str, Any]:
    """All that decides the figures, as plain JSON: digests of model, policies, mean keys and tokens."""
    return {
        "kind": "certify",
        "weight_digest": loaded.weight_digest,
        "policies": [candidate.policy.digest() for candidate in prepared.candidates],
        "key_means": [candidate.means_source for candidate in prepared.candidates],
        "passages": [digest_array(ids) for ids in text.token_ids],
        "config": config.to_dict(),
    }


def write_certification(folder: Path, outcome: CertifyOutcome) -> list[Path]:
    """Write certify.parquet and certify.json into `folder`; returns their paths."""
    table = write_table(folder / f"{CERTIFY.name}.parquet", CERTIFY, outcome.rows)
    receipt = write_bytes(folder / f"{CERTIFY.name}.json", pretty_json(outcome.receipt).encode())
    return [table, receipt]


def certify_into(
    out: str, prepared: PreparedCertification, progress: Progress | None = None
) -> tuple[CertifyOutcome, Path]:
    """`run_certification` in a run directory of its own; returns the outcome and the directory."""
    loaded = load_model(prepared.request.model, "float32", prepared.request.model_cache)
    text, config = _text(prepared, loaded)
    with RunDirectory.create_or_resume(out, run_config(prepared, loaded, text, config)) as run:
        run.record("request", asdict(prepared.request))
        outcome = run_certification(prepared, progress, loaded, run.run_id)
        for path in write_certification(run.path, outcome):
            run.record_output(path)
        run.record("certify", {"policies": [row["policy"] for row in outcome.summary], "notes": outcome.notes})
    return outcome, run.path


def candidate_of(text: str, store: CaptureStore | None, uncentred: bool = False) -> Candidate:
    """A named policy or a .json file with its artifacts and mean keys: its own, else of `store`'s split calibrate.

    Raises InputError when the policy centres keys and there is nothing to take their means from.
    """
    policy, artifacts = load_policy(text)
    centres = policy.center_keys != "off" or any("center_keys" in cell for cell in policy.cells.values())
    if not centres:
        return Candidate(policy, artifacts=artifacts)
    if uncentred:
        return Candidate(policy, means_source=UNCENTRED, artifacts=artifacts)
    own = own_means(policy, artifacts)
    if own is not None:
        return Candidate(policy, own[1], f"artifact {own[0]}", artifacts)
    if store is None:
        raise InputError(
            f"policy {policy.name!r} subtracts mean keys, and none are given: pass --store STORE (a capture of this "
            "model with a split calibrate), or --uncentred to leave keys as they are"
        )
    specs = {spec.layer: spec for spec in store.meta.layers}
    rotations = cell_rotations(policy, specs, artifacts)
    means = fit_key_means(lambda *cell: store.cell(*cell, with_logits=False), centred_cells(policy, specs), rotations)
    return Candidate(policy, means, f"split calibrate of the capture {store.digest}", artifacts)


def own_means(policy: CompressionPolicy, artifacts: Artifacts) -> tuple[str, Mapping[Cell, np.ndarray]] | None:
    """(digest, means) of the policy's artifact that holds mean keys, if one does."""
    for digest in policy.artifacts:
        means = means_from_arrays(artifacts(digest))
        if means is not None:
            return digest, means
    return None


def _text(prepared: PreparedCertification, loaded: LoadedModel) -> tuple[EvaluationText, CertifyConfig]:
    """The passages, and the config with the numbers that the store decides."""
    config = prepared.request.config
    if prepared.documents:
        text = evaluation_text(prepared.documents, loaded.tokenize, loaded.bos_id, config.n_passages, config.n_tokens)
        return text, config
    if prepared.store is None:
        raise InputError("nothing to evaluate on: neither a corpus nor a store was given")
    return _store_text(prepared.store, config)


def _store_text(store: CaptureStore, config: CertifyConfig) -> tuple[EvaluationText, CertifyConfig]:
    """Full-length confirm passages of a capture, at most n_passages of them, the same number a document as far as it goes."""
    meta = store.meta
    ids = {passage: store.token_ids(passage) for passage in meta.passages("confirm")}
    whole = [passage for passage, tokens in ids.items() if len(tokens) == meta.n_tokens]
    whole = spread_over_documents(whole, [meta.passage_document[passage] for passage in whole], config.n_passages)
    if not whole:
        raise InputError(f"{store.url} has no passage of {meta.n_tokens} tokens in split confirm; give --corpus FILE")
    used = sorted({meta.passage_document[passage] for passage in whole})
    owner = np.array([used.index(meta.passage_document[passage]) for passage in whole], np.int64)
    text = EvaluationText(
        tuple(ids[passage] for passage in whole), owner, tuple(meta.documents[document] for document in used)
    )
    return text, replace(config, n_tokens=meta.n_tokens, n_passages=len(whole))


def check_same_model(store: CaptureStore | None, loaded: LoadedModel) -> None:
    """Raise InputError when the capture is of other weights than the model."""
    if store is not None and store.meta.weight_digest != loaded.weight_digest:
        raise InputError(
            f"the capture {store.url} is of {store.meta.model_id} (weights {store.meta.weight_digest[:12]}…), the model "
            f"to certify is {loaded.model_id} (weights {loaded.weight_digest[:12]}…): their keys have nothing in common"
        )


def _notes(documents: tuple[TextDocument, ...], store: CaptureStore | None) -> tuple[str, ...]:
    if store is None:
        return ()
    meta = store.meta
    fitted = {meta.documents[meta.passage_document[i]].digest for i in meta.passages("calibrate")}
    seen = [document.name for document in documents if document.digest in fitted]
    if not seen:
        return ()
    return (f"calibration saw these documents, so figures on them flatter the policy: {', '.join(seen)}",)
