"""Base of codecs whose state was fitted to data and lives in an artifact.

The configuration holds the artifact's blake3 digest; whoever builds the codec passes the arrays
(`build_codec(..., artifacts=loader)`). The loader checks the digest of what it reads.

    @dataclass(frozen=True)
    class MeanCodec(TrainedCodec):
        bits: int = 4
        codec_id: ClassVar[str] = "mean"
        array_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = {"mean": ("head_dim",)}

    MeanCodec(head_dim=64, artifact="9f…", arrays={"mean": mean}).arrays["mean"]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import ClassVar

import numpy as np

from polykv.codecs.base import Codec
from polykv.errors import CodecError, DimensionMismatch, InputError, NonFiniteError

SCALE = "_scale"

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TrainedCodec(Codec):
    """`artifact`: blake3 of the fitted arrays' file, 64 hex digits; `arrays` are its contents.

    `array_shapes` names the arrays a subclass needs and their axes; the axis "head_dim" must be
    the codec's own, equal axis names must agree, an axis named by a digit string is that number.
    `scalable` names those that may be stored as int8 or int16 beside a `NAME_scale` (`as_integers`): they stand in
    `arrays` as the product.
    """

    artifact: str
    arrays: InitVar[Mapping[str, np.ndarray] | None] = field(default=None, kw_only=True)

    array_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    scalable: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        super().__post_init__()
        if not isinstance(self.artifact, str) or not _DIGEST.fullmatch(self.artifact):
            raise CodecError(
                f"{self.codec_id}: artifact is {self.artifact!r}, must be a blake3 digest of 64 hex digits"
            )
        if arrays is None:
            raise CodecError(f"{self.codec_id}: needs the arrays of artifact {self.artifact[:12]}…; pass a loader")
        object.__setattr__(self, "arrays", self._checked(arrays))
        object.__setattr__(self, "_stored_nbytes", {name: np.asarray(array).nbytes for name, array in arrays.items()})

    def stored_nbytes(self, *names: str) -> int:
        """Bytes of these arrays as they are stored, scales included."""
        return sum(self._stored_nbytes[name] + self._stored_nbytes.get(name + SCALE, 0) for name in names)

    def _checked(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        sizes, found = {"head_dim": self.head_dim}, {}
        for name, axes in self.array_shapes.items():
            where = f"{self.codec_id}: artifact {self.artifact[:12]}…, array {name!r}"
            if name not in arrays:
                raise CodecError(f"{where} is missing; it holds {', '.join(sorted(arrays)) or 'nothing'}")
            array = np.ascontiguousarray(_product(arrays, name, where) if name in self.scalable else arrays[name])
            if array.ndim != len(axes):
                raise DimensionMismatch(f"{where} has {array.ndim} axes, expected {len(axes)}: {', '.join(axes)}")
            for axis, size in zip(axes, array.shape, strict=True):
                expected = int(axis) if axis.isdigit() else sizes.setdefault(axis, size)
                if size != expected:
                    raise DimensionMismatch(f"{where}, axis {axis}: expected {expected}, got {size}")
            if not np.isfinite(array).all():
                raise NonFiniteError(f"{where} holds NaN or infinity")
            found[name] = array.view()
            found[name].setflags(write=False)
        return found


def as_integers(name: str, array: np.ndarray, axis: int, dtype: type = np.int8) -> dict[str, np.ndarray]:
    """{name: dtype, name_scale: float32} of an array: one scale for all numbers along `axis`.

    dtype: int8 (an error is at most 1/254 of the largest number along the axis) or int16 (1/65,534).
    Numbers that float32 holds only as subnormals become 0. Raises InputError for numbers it does not hold.
    """
    array = np.asarray(array, np.float64)
    most, limits = np.iinfo(dtype).max, np.finfo(np.float32)
    largest = np.abs(array).max(axis=axis, keepdims=True, initial=0.0)
    if not largest.max(initial=0.0) <= 0.99 * limits.max:
        raise InputError(f"{name} has numbers up to {largest.max():.3g}, float32 holds them up to {limits.max:.3g}")
    scale = np.where(largest >= most * limits.tiny, largest / most, 1.0).astype(np.float32)
    # rounded, a scale may be too small by a hair
    levels = np.clip(np.rint(array / scale.astype(np.float64)), -most, most)
    return {name: levels.astype(dtype), name + SCALE: scale}


def from_integers(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """float32: what `as_integers` stands for."""
    return arrays[name].astype(np.float32) * arrays[name + SCALE]


def _product(arrays: Mapping[str, np.ndarray], name: str, where: str) -> np.ndarray:
    """The array, times its scale when it is of integers; raises CodecError for a scale that is missing or no scale."""
    array = np.asarray(arrays[name])
    if array.dtype.kind != "i":
        return array
    if array.dtype.itemsize > 2:
        raise CodecError(f"{where} is {array.dtype}, must be floats, int8 or int16; fit the codec again")
    scale = arrays.get(name + SCALE)
    if scale is None:
        raise CodecError(f"{where} is {array.dtype} and its {name}{SCALE} is missing; fit the codec again")
    wanted = [(1, size) for size in array.shape]
    fits = scale.ndim == array.ndim and all(size in sizes for size, sizes in zip(scale.shape, wanted, strict=True))
    if scale.dtype != np.float32 or not fits:
        raise CodecError(
            f"{where} is {array.dtype} of shape {array.shape}, its scale {scale.dtype} of {scale.shape}: must be "
            "float32, each axis 1 or as long; fit the codec again"
        )
    most = np.finfo(np.float32).max / np.iinfo(array.dtype).max
    usable = (scale > 0) & (scale <= most)
    if not usable.all():
        raise CodecError(
            f"{where} has a scale of {scale[~usable][0]}, must be above 0 and at most {most:.1e}; fit the codec again"
        )
    return from_integers(arrays, name)
