"""The Fisher information of a search, measured once: kept as an artifact, found again by what it was measured on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np

from polykv.capture.models import LoadedModel
from polykv.certify.fisher import FisherConfig, Metrics, measured_fisher
from polykv.receipts import NUMERICS_VERSION, digest_array, digest_json
from polykv.rotation import Rotation
from polykv.search.ledger import Ledger
from polykv.storage.artifacts import artifact_path, load_artifact, save_artifact
from polykv.types import Cell

# Forward passes that one passage is counted as: its own, and two for each way back.
PASSES_A_DRAW = 2


def passes_of(config: FisherConfig) -> int:
    """Forward passes that one passage is counted as."""
    return 1 + PASSES_A_DRAW * config.n_draws


def kept_fisher(
    ledger: Ledger,
    folders: Sequence[Path],
    loaded: LoadedModel,
    passages: Sequence[np.ndarray],
    config: FisherConfig,
    rotations: Mapping[int, Rotation] | None,
    allowed: Callable[[int], bool],
    tick: Callable[[], None],
) -> Metrics | None:
    """`measured_fisher`, or what the ledger says it was; None when `allowed` (passes) says no.

    folders: of artifacts, the search's own first; one found elsewhere is copied to it.
    """
    turned = None if rotations is None else [rotations[layer].frequencies.tolist() for layer in sorted(rotations)]
    about = [NUMERICS_VERSION, loaded.weight_digest, *map(digest_array, passages), *astuple(config), turned]
    key = f"fisher {digest_json(about)}"
    digest = ledger.get(key)
    if digest is not None:
        for folder in folders:
            if artifact_path(folder, digest).is_file():
                arrays = load_artifact(folder, digest)
                save_artifact(folders[0], arrays)
                return {_place(name): matrix for name, matrix in arrays.items()}
    if not allowed(passes_of(config) * len(passages)):
        return None
    found = measured_fisher(loaded, passages, config, rotations, tick)
    arrays = {f"{cell.layer}_{cell.kv_head}_{stream}": matrix for (cell, stream), matrix in found.items()}
    ledger.put(key, save_artifact(folders[0], arrays))
    return found


def _place(name: str) -> tuple[Cell, str]:
    layer, head, stream = name.split("_")
    return Cell(int(layer), int(head)), stream
