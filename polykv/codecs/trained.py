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
from polykv.errors import CodecError, DimensionMismatch, NonFiniteError

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TrainedCodec(Codec):
    """`artifact`: blake3 of the fitted arrays' file, 64 hex digits; `arrays` are its contents.

    `array_shapes` names the arrays a subclass needs and their axes; the axis "head_dim" must be
    the codec's own, equal axis names must agree, an axis named by a digit string is that number.
    """

    artifact: str
    arrays: InitVar[Mapping[str, np.ndarray] | None] = field(default=None, kw_only=True)

    array_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __post_init__(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        super().__post_init__()
        if not isinstance(self.artifact, str) or not _DIGEST.fullmatch(self.artifact):
            raise CodecError(
                f"{self.codec_id}: artifact is {self.artifact!r}, must be a blake3 digest of 64 hex digits"
            )
        if arrays is None:
            raise CodecError(f"{self.codec_id}: needs the arrays of artifact {self.artifact[:12]}…; pass a loader")
        object.__setattr__(self, "arrays", self._checked(arrays))

    def _checked(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        sizes, found = {"head_dim": self.head_dim}, {}
        for name, axes in self.array_shapes.items():
            where = f"{self.codec_id}: artifact {self.artifact[:12]}…, array {name!r}"
            if name not in arrays:
                raise CodecError(f"{where} is missing; it holds {', '.join(sorted(arrays)) or 'nothing'}")
            array = np.ascontiguousarray(arrays[name])
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
