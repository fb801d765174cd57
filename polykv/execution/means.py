"""Key means as artifacts of a run: fitted once per cell, found again by what they are fitted on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polykv.errors import InputError, StoreError
from polykv.receipts import parse_json, pretty_json
from polykv.storage.artifacts import load_artifact, save_artifact
from polykv.storage.atomic import write_bytes


def save_mean(run_path: str, inputs: str, mean: np.ndarray) -> str:
    """Keep a mean [head_dim] float32 and a pointer to it by `inputs`; returns the artifact's digest."""
    folder = _folder(run_path)
    digest = save_artifact(folder, {"key_mean": np.asarray(mean, dtype=np.float32)})
    write_bytes(_pointer(folder, inputs), pretty_json({"artifact": digest}).encode())
    return digest


def load_mean(run_path: str, digest: str) -> np.ndarray:
    """The mean [head_dim] float32 of an artifact's digest; errors as in `load_artifact`."""
    return load_artifact(_folder(run_path), digest)["key_mean"]


def known_mean(run_path: str, inputs: str) -> str | None:
    """Digest of the sound artifact fitted on `inputs`; None when it has to be fitted (again)."""
    folder = _folder(run_path)
    pointer = _pointer(folder, inputs)
    if not pointer.is_file():
        return None
    try:
        digest = str(parse_json(pointer.read_bytes(), str(pointer))["artifact"])
        load_artifact(folder, digest)
    except (StoreError, InputError, KeyError, TypeError):
        return None
    return digest


def _folder(run_path: str) -> Path:
    return Path(run_path) / "artifacts"


def _pointer(folder: Path, inputs: str) -> Path:
    return folder / f"key_mean-{inputs}.json"
