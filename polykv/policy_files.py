"""A policy together with the trained artifacts that lie beside its file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from polykv.errors import PolicyError
from polykv.policy import CompressionPolicy, check_policy_name
from polykv.storage.artifacts import artifact_path, load_artifact, save_artifact

# File systems take 255 bytes; a file that is being written has a longer name for a moment.
_MOST_NAME_CHARACTERS = 200

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


def write_policy(
    folder: str | Path, policy: CompressionPolicy, artifacts: Mapping[str, Mapping[str, np.ndarray]]
) -> Path:
    """Write `folder`/NAME.policy.json and its artifacts, by digest, where the policy lists them; returns the file.

    Raises PolicyError when the policy lists an artifact that is not given, or its digest is another one.
    """
    folder = Path(folder)
    for digest, place in policy.artifacts.items():
        if digest not in artifacts:
            raise PolicyError(f"policy {policy.name!r} lists artifact {digest}, and its arrays are not given")
        target = (folder / place).parent
        target.mkdir(parents=True, exist_ok=True)
        found = save_artifact(target, artifacts[digest])
        if found != digest:
            raise PolicyError(f"policy {policy.name!r}: the arrays given for artifact {digest} have the digest {found}")
    path = folder / policy_file_name(policy.name)
    policy.save(path)
    return path


def policy_file_name(name: str) -> str:
    """NAME.policy.json of a policy's name, whatever a file name cannot hold folded to "_".

    Raises PolicyError for a name that no policy can have, or too long for a file.
    """
    check_policy_name(name)
    folded = re.sub(r"[^A-Za-z0-9._-]+", "_", name)
    if len(folded) > _MOST_NAME_CHARACTERS:
        raise PolicyError(
            f"policy name {name[:20]!r}… has {len(folded)} characters, a file's name can hold {_MOST_NAME_CHARACTERS}"
        )
    return f"{folded}.policy.json"
