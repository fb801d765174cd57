"""Rotary position embedding as plain numbers: what turns a key by its position, and back.

RoPE (Su et al. 2021) turns each pair of a key's numbers by position × frequency. A key before it
is spread far less over directions than after it, so that codes of un-rotated keys are finer at
the same size; an engine rotates what it decodes. Which numbers make a pair differs: the halves
(i, i + r/2) of the first r numbers ("half", as Llama), or neighbours (2i, 2i + 1) ("interleaved").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polykv.errors import DimensionMismatch, InputError

_NAME = re.compile("frequencies_(0|[1-9][0-9]*)")
_FLAG = "interleaved"


@dataclass(frozen=True, eq=False)
class Rotation:
    """`frequencies` [pair] float64 in radians per token; the numbers beyond the first 2·pairs stay as they are."""

    frequencies: np.ndarray
    interleaved: bool = False

    def __post_init__(self) -> None:
        found = np.asarray(self.frequencies)
        if found.ndim != 1 or not found.size or found.dtype.kind != "f" or not np.isfinite(found).all():
            raise InputError(
                f"a rotation needs its frequencies as one row of finite numbers, got {found.dtype} {found.shape}"
            )
        object.__setattr__(self, "frequencies", found.astype(np.float64))

    def apply(self, vectors: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[token, head_dim] float32: `vectors` [token, head_dim] turned by `positions` [token].

        Angles and products are float64. Raises DimensionMismatch for too few numbers a vector, or
        another count of positions.
        """
        return self._turned(vectors, positions, 1.0)

    def undo(self, vectors: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[token, head_dim] float32: `vectors` turned back by `positions` [token]; errors as in `apply`."""
        return self._turned(vectors, positions, -1.0)

    def _turned(self, vectors: np.ndarray, positions: np.ndarray, sign: float) -> np.ndarray:
        self._check(vectors, positions)
        angles = sign * np.asarray(positions, np.float64)[:, None] * self.frequencies
        cosine, sine = np.cos(angles), np.sin(angles)
        first, second = pair_places(len(self.frequencies), self.interleaved)
        out = np.array(vectors, dtype=np.float32)
        x, y = vectors[:, first].astype(np.float64), vectors[:, second].astype(np.float64)
        out[:, first] = x * cosine - y * sine
        out[:, second] = y * cosine + x * sine
        return out

    def _check(self, vectors: np.ndarray, positions: np.ndarray) -> None:
        turned = 2 * len(self.frequencies)
        if vectors.ndim != 2 or vectors.shape[1] < turned:
            raise DimensionMismatch(
                f"a rotation of {turned} dimensions needs vectors [token, head_dim ≥ {turned}], got {vectors.shape}"
            )
        if np.shape(positions) != (len(vectors),):
            raise DimensionMismatch(f"{len(vectors)} vectors need as many positions, got {np.shape(positions)}")


def pair_places(n_pairs: int, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
    """([pair], [pair]) int64: where the first and the second number of each pair stand in a vector."""
    places = np.arange(n_pairs)
    return (2 * places, 2 * places + 1) if interleaved else (places, places + n_pairs)


def rotation_to_arrays(rotations: Mapping[int, Rotation]) -> dict[str, np.ndarray]:
    """The arrays of a rotation artifact: "frequencies_LAYER" [pair] float64, and one flag "interleaved" [1] uint8.

    Raises InputError for no layer, or for layers that pair their numbers differently.
    """
    flags = {rotation.interleaved for rotation in rotations.values()}
    if len(flags) != 1:
        what = "no layer" if not flags else "layers that are interleaved and layers that are not"
        raise InputError(f"a rotation artifact holds one pairing for all its layers, and {what} was given")
    arrays = {f"frequencies_{layer}": rotations[layer].frequencies for layer in sorted(rotations)}
    return {**arrays, _FLAG: np.array([flags.pop()], np.uint8)}


def rotation_from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[int, Rotation]:
    """{layer: rotation} of a rotation artifact's arrays; raises InputError when they are anything else."""
    found = {name: _NAME.fullmatch(name) for name in arrays if name != _FLAG}
    if _FLAG not in arrays or not found or not all(found.values()):
        raise InputError(
            f"a rotation artifact holds frequencies_LAYER and interleaved, this one {', '.join(sorted(arrays))}"
        )
    flag = np.asarray(arrays[_FLAG])
    if flag.shape != (1,) or flag[0] not in (0, 1):
        raise InputError(f"a rotation artifact's interleaved is one number, 0 or 1, got {flag.tolist()}")
    return {int(match[1]): Rotation(arrays[name], bool(flag[0])) for name, match in found.items() if match}
