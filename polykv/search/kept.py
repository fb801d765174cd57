"""What a search measures of its model once: kept as artifacts, found again by what they were measured on.

A measurement's last bits depend on the threads it ran on, and every later answer is kept under a digest that
they are part of: what was measured is read back, not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from polykv.capture.models import LoadedModel
from polykv.certify.fisher import Fisher, FisherConfig, FisherSums, Place, add_passage
from polykv.certify.rotation import measured_rotation
from polykv.codecs.registry import build_codec
from polykv.receipts import NUMERICS_VERSION, digest_array, digest_json
from polykv.rotation import Rotation, rotation_from_arrays, rotation_to_arrays
from polykv.search.ledger import Ledger
from polykv.storage.artifacts import artifact_path, load_artifact, save_artifact
from polykv.types import Cell, LayerSpec

# Forward passes that one passage is counted as: its own, and two for each way back.
PASSES_A_DRAW = 2
# Of a long passage gradients are taken piece by piece: they cost the square of its length, and what an error
# costs depends little on how far away the text began.
GRADIENT_TOKENS = 512


def passes_of(config: FisherConfig) -> int:
    """Forward passes that one passage is counted as."""
    return 1 + PASSES_A_DRAW * config.n_draws


def pieces_of(n_tokens: int) -> int:
    """Texts that gradients may be taken of in one passage."""
    return max(1, n_tokens // GRADIENT_TOKENS)


def gradient_texts(passages: Sequence[np.ndarray], most: int) -> list[np.ndarray]:
    """At most `most` texts of GRADIENT_TOKENS tokens (all of a shorter passage), evenly from passages [token]."""
    texts = [
        token_ids[start : start + GRADIENT_TOKENS]
        for token_ids in passages
        for start in range(0, GRADIENT_TOKENS * pieces_of(len(token_ids)), GRADIENT_TOKENS)
    ]
    taken = np.linspace(0, len(texts) - 1, min(most, len(texts))).round().astype(int)
    return [texts[i] for i in taken]


def kept_fisher(
    ledger: Ledger,
    folders: Sequence[Path],
    loaded: LoadedModel,
    passages: Sequence[np.ndarray],
    config: FisherConfig,
    rotations: Mapping[int, Rotation] | None,
    disturbance: Mapping[str, Any],
    allowed: Callable[[int], bool],
    tick: Callable[[int], None],
) -> Fisher | None:
    """`measured_fisher`, or what the ledger says it was; None when `allowed` (passes) says no.

    disturbance: the codec whose errors are weighed. folders: of artifacts, the search's own first; one found
    elsewhere is copied to it. After each passage the sums so far are kept, tick(passages done) is called.
    """
    before_rope = rotations is not None
    about = [NUMERICS_VERSION, loaded.weight_digest, *map(digest_array, passages), *astuple(config), before_rope]
    about.append(disturbance)
    key = f"fisher sums {digest_json(about)}"
    known = _kept(ledger, folders, key)
    if known is not None:
        return _sums(known).fisher()

    def errors_of(vectors: np.ndarray) -> np.ndarray:
        codec = build_codec(disturbance, vectors.shape[1])
        return codec.decode(codec.encode(vectors)) - vectors

    sums = _so_far(ledger, folders, key, len(passages))
    for token_ids in passages[sums.n_passages :]:
        if not allowed(passes_of(config)):
            return None
        add_passage(sums, loaded, token_ids, config, rotations, errors_of)
        complete = sums.n_passages == len(passages)
        ledger.put(key if complete else _part(key, sums.n_passages), save_artifact(folders[0], _arrays(sums)))
        # the sums before these have served; of older ones a killed process may have left some
        for done in range(1, sums.n_passages):
            before = ledger.get(_part(key, done))
            if before is not None:
                artifact_path(folders[0], before).unlink(missing_ok=True)
        tick(sums.n_passages)
    return sums.fisher()


def kept_rotation(
    ledger: Ledger,
    folders: Sequence[Path],
    loaded: LoadedModel,
    specs: Mapping[int, LayerSpec],
    token_ids: np.ndarray,
) -> tuple[dict[int, Rotation], str]:
    """(`measured_rotation`, or what the ledger says it was; its artifact's digest); raises as that does."""
    key = f"rotation {digest_json([NUMERICS_VERSION, loaded.weight_digest, digest_array(token_ids)])}"
    known = _kept(ledger, folders, key)
    if known is not None:
        return rotation_from_arrays(known), ledger.get(key)
    rotations = measured_rotation(loaded, specs, token_ids)
    return rotations, ledger.put(key, save_artifact(folders[0], rotation_to_arrays(rotations)))


def _kept(ledger: Ledger, folders: Sequence[Path], key: str) -> dict[str, np.ndarray] | None:
    """The artifact that the ledger names, copied to the first folder; None when there is none."""
    digest = ledger.get(key)
    found = None if digest is None else next((f for f in folders if artifact_path(f, digest).is_file()), None)
    if found is None:
        return None
    arrays = load_artifact(found, digest)
    if found != folders[0]:
        save_artifact(folders[0], arrays)
    return arrays


def _part(key: str, n_passages: int) -> str:
    return f"{key} after {n_passages}"


def _so_far(ledger: Ledger, folders: Sequence[Path], key: str, n_passages: int) -> FisherSums:
    """Sums over as many of the passages as any folder holds."""
    for done in range(n_passages - 1, 0, -1):
        known = _kept(ledger, folders, _part(key, done))
        if known is not None:
            return _sums(known)
    return FisherSums()


def _name(place: Place) -> str:
    cell, stream = place
    return f"{cell.layer}_{cell.kv_head}_{stream}"


def _arrays(sums: FisherSums) -> dict[str, np.ndarray]:
    arrays = {f"metric_{_name(place)}": matrix for place, matrix in sums.metrics.items()}
    arrays |= {f"disturbed_{_name(place)}": np.array([nats]) for place, nats in sums.disturbed.items()}
    return arrays | {"counts": np.array([sums.n_passages, sums.n_scored])}


def _sums(arrays: Mapping[str, np.ndarray]) -> FisherSums:
    sums = FisherSums(*(int(count) for count in arrays["counts"]))
    for name, array in arrays.items():
        if name == "counts":
            continue
        part, layer, head, stream = name.split("_")
        place = Cell(int(layer), int(head)), stream
        if part == "metric":
            sums.metrics[place] = array
        else:
            sums.disturbed[place] = float(array[0])
    return sums
