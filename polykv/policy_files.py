"""A policy together with the trained artifacts that lie beside its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from polykv.errors import PolicyError
from polykv.policy import CompressionPolicy
from polykv.storage.artifacts import artifact_path, load_artifact

Artifacts = Callable[[str], Mapping[str, np.ndarray]]


def load_policy(text: str) -> tuple[CompressionPolicy, Artifacts]:
    """A named policy or a .json file, and the loader of its artifacts."""
    policy = CompressionPolicy.resolve(text)
    return policy, policy_artifacts(policy, Path(text).parent)


def policy_artifacts(policy: CompressionPolicy, folder: Path) -> Artifacts:
    """A loader of the policy's artifacts, whose paths are relative to `folder`; digests are checked."""

    def load(digest: str) -> Mapping[str, np.ndarray]:
        if digest not in policy.artifacts:
            raise PolicyError(f"policy {policy.name!r} uses artifact {digest} but its artifacts do not list it")
        path = folder / policy.artifacts[digest]
        if path != artifact_path(path.parent, digest):
            raise PolicyError(f"policy {policy.name!r}: artifact {digest} is listed as {path.name}, not {digest}.npz")
        return load_artifact(path.parent, digest)

    return load
