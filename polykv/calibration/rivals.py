"""What the dictionary has to beat: fair codecs at equal bits, everything they store charged.

    int8            one float16 scale a vector, 8 bits a number
    uniform         all 2^bits levels around zero, the clip and scale best for each vector
    channel         per channel of 32 or 128 consecutive tokens, low and step (as KIVI codes keys)
    turbo_scalar    norm, random rotation, Lloyd-Max levels of a Gaussian (as TurboQuant)
    fib             the project's fib codec with 16, 32 and 256 codewords

`uniform`, `turbo_scalar` and `fib` come a second time as `…_centered`, applied to vectors minus
the calibration mean of their head: that is 256 bytes a head once, and keys are half mean. Each family is
anchored at zero bits, where it sends nothing (or only the mean).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from polykv.codecs.arrays import small_floats
from polykv.codecs.fib import FibCodec
from polykv.codecs.lloyd_max import lloyd_max_levels
from polykv.codecs.rotation import dense_rotation
from polykv.codecs.uniform import int8
from polykv.errors import CodecError, NonFiniteError
from polykv.receipts import to_plain

CLIP_RATIOS = tuple(float(r) for r in np.linspace(0.28, 1.0, 10))
RIVAL_BITS = (1, 2, 3, 4, 6, 8)
FIB_CODEBOOK_SIZES = (16, 32, 256)


class Rows(NamedTuple):
    """Vectors to code, and what a codec may know about them.

    vectors [n, head_dim] float32; head [n] int64 indexes means [head, head_dim] float32, the
    calibration means; runs [n] int64: equal labels mark consecutive tokens of one head, which
    channel groups may not cross.
    """

    vectors: np.ndarray
    head: np.ndarray
    means: np.ndarray
    runs: np.ndarray

    def shifted(self, centered: bool) -> np.ndarray:
        """[n, head_dim]: the vectors, minus their head's mean when `centered`."""
        return self.vectors - self.means[self.head] if centered else self.vectors

    def restored(self, decoded: np.ndarray, centered: bool) -> np.ndarray:
        """[n, head_dim]: undoes `shifted`."""
        return decoded + self.means[self.head] if centered else decoded

    def side_nbytes(self, centered: bool) -> int:
        """Bytes of the means, when they are used."""
        return self.means.nbytes if centered else 0


class Coded(NamedTuple):
    """decoded [n, head_dim] float32; bits stored for all n vectors; side_nbytes stored once."""

    decoded: np.ndarray
    bits: int
    side_nbytes: int


@dataclass(frozen=True)
class Rival(ABC):
    """One point of a rival's rate curve. Subclasses are frozen; their fields are the configuration."""

    family: ClassVar[str]

    @property
    def name(self) -> str:
        """The family, with `_centered` when the calibration mean is taken off first."""
        return self.family + ("_centered" if getattr(self, "centered", False) else "")

    def config(self) -> dict[str, Any]:
        return {"id": self.family, **{f.name: to_plain(getattr(self, f.name)) for f in fields(self)}}

    @abstractmethod
    def code(self, rows: Rows) -> Coded:
        """Encode and decode."""


@dataclass(frozen=True)
class Nothing(Rival):
    """Zero bits: every vector decodes to zero, or to its head's mean."""

    centered: bool = False
    family: ClassVar[str] = "nothing"

    def code(self, rows: Rows) -> Coded:
        nothing = np.zeros_like(rows.vectors)
        return Coded(rows.restored(nothing, self.centered), 0, rows.side_nbytes(self.centered))


@dataclass(frozen=True)
class Int8(Rival):
    """8 bits symmetric per vector, the project's own codec."""

    family: ClassVar[str] = "int8"

    def code(self, rows: Rows) -> Coded:
        codec = int8(rows.vectors.shape[1])
        codes = codec.encode(rows.vectors)
        return Coded(codec.decode(codes), 8 * codec.nbytes(codes), codec.side_nbytes())


@dataclass(frozen=True)
class Uniform(Rival):
    """All 2^bits levels ±½, ±1½ … times a float16 scale, the best of ten clips for each vector, refitted."""

    bits: int
    centered: bool = False
    family: ClassVar[str] = "uniform"

    def code(self, rows: Rows) -> Coded:
        scales, levels = self._best(rows.shifted(self.centered))
        decoded = rows.restored(levels * scales.astype(np.float32)[:, None], self.centered)
        return Coded(decoded, levels.size * self.bits + scales.nbytes * 8, rows.side_nbytes(self.centered))

    def _best(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(scales [n] as stored, levels [n, head_dim] float32) of least squared error over the clips."""
        half, largest = 2 ** (self.bits - 1), np.abs(rows).max(axis=1)
        best, levels = np.full(len(rows), -1.0), np.zeros(rows.shape, np.float32)
        for ratio in CLIP_RATIOS:
            step = largest * np.float32(ratio / half)
            tried = np.floor(np.divide(rows, step[:, None], out=np.zeros_like(rows), where=step[:, None] > 0))
            tried = np.clip(tried, -half, half - 1) + np.float32(0.5)
            explained = _explained(rows, tried)
            better = explained > best
            best[better], levels[better] = explained[better], tried[better]
            if self.bits == 1:
                break  # signs do not depend on the clip
        return _stored(_gains(rows, levels)), levels


@dataclass(frozen=True)
class ChannelGroups(Rival):
    """2^bits levels per channel of `group_tokens` consecutive rows; float16 low and step, best of ten clips."""

    bits: int
    group_tokens: int = 32
    family: ClassVar[str] = "channel"

    def code(self, rows: Rows) -> Coded:
        groups = channel_groups(rows.runs, self.group_tokens)
        blocks = rows.vectors[groups]
        least, most = blocks.min(axis=1), blocks.max(axis=1)
        middle, reach = (least + most) / 2, (most - least) / 2
        best = np.full(least.shape, np.inf)
        low, step = (np.zeros(least.shape, np.float16) for _ in range(2))
        for ratio in CLIP_RATIOS:
            tried_low = small_floats((middle - ratio * reach).astype(np.float64), "float16", span=2 * reach)
            tried_step = small_floats((2 * ratio * reach / self._top).astype(np.float64), "float16")
            error = np.square(self._decoded(blocks, tried_low, tried_step) - blocks).sum(axis=1)
            better = error < best
            best = np.where(better, error, best)
            low, step = np.where(better, tried_low, low), np.where(better, tried_step, step)
        decoded = np.empty_like(rows.vectors)
        decoded[groups] = self._decoded(blocks, low, step)
        return Coded(decoded, decoded.size * self.bits + (low.nbytes + step.nbytes) * 8, 0)

    @property
    def _top(self) -> int:
        return 2**self.bits - 1

    def _decoded(self, blocks: np.ndarray, low: np.ndarray, step: np.ndarray) -> np.ndarray:
        """[group, token, head_dim] float32 after rounding to the grid low + step · 0 … top."""
        low, step = (a.astype(np.float32)[:, None, :] for a in (low, step))
        level = np.divide(blocks - low, step, out=np.zeros_like(blocks), where=step > 0)
        return low + step * np.clip(np.rint(level), 0, self._top)


@dataclass(frozen=True)
class TurboScalar(Rival):
    """Random rotation, then Lloyd-Max levels of a standard normal times one float16 gain a vector.

    The gain is the least-squares one (it takes the place of the norm at the same cost). The
    rotation comes from the seed and the levels from the normal law: nothing is stored once.
    """

    bits: int
    seed: int = 0
    centered: bool = False
    family: ClassVar[str] = "turbo_scalar"

    def code(self, rows: Rows) -> Coded:
        shifted = rows.shifted(self.centered)
        rotation = dense_rotation(shifted.shape[1], self.seed).astype(np.float32)
        rotated = shifted @ rotation.T
        rms = np.sqrt(np.mean(np.square(rotated, dtype=np.float64), axis=1)).astype(np.float32)
        unit = np.divide(rotated, rms[:, None], out=np.zeros_like(rotated), where=rms[:, None] > 0)
        levels = lloyd_max_levels(self.bits).astype(np.float32)
        chosen = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, unit)]
        gains = _stored(_gains(rotated, chosen))
        decoded = rows.restored((chosen * gains.astype(np.float32)[:, None]) @ rotation, self.centered)
        return Coded(decoded, decoded.size * self.bits + gains.nbytes * 8, rows.side_nbytes(self.centered))


@dataclass(frozen=True)
class Fib(Rival):
    """The fib codec, a zero vector coded as zero."""

    codebook_size: int = 32
    seed: int = 0
    centered: bool = False
    family: ClassVar[str] = "fib"

    def code(self, rows: Rows) -> Coded:
        codec = FibCodec(rows.vectors.shape[1], seed=self.seed, codebook_size=self.codebook_size)
        codes = codec.encode(rows.shifted(self.centered))
        decoded = rows.restored(codec.decode(codes), self.centered)
        return Coded(decoded, 8 * codec.nbytes(codes), codec.side_nbytes() + rows.side_nbytes(self.centered))


def rival_curves(head_dim: int, seed: int) -> tuple[dict[str, tuple[Rival, ...]], dict[str, str]]:
    """(curves, absent): the points of every family by name, and why a family cannot code this head_dim."""
    curves: dict[str, tuple[Rival, ...]] = {
        "int8": (Nothing(), Int8()),
        "channel": (
            Nothing(centered=True),
            *(ChannelGroups(bits, tokens) for tokens in (32, 128) for bits in RIVAL_BITS),
        ),
    }
    absent = {}
    for centered in (False, True):
        start = Nothing(centered=centered)
        points = {
            "uniform": tuple(Uniform(bits, centered) for bits in RIVAL_BITS),
            "turbo_scalar": tuple(TurboScalar(bits, seed, centered) for bits in RIVAL_BITS),
        }
        try:
            FibCodec.check_head_dim(head_dim)
            points["fib"] = tuple(Fib(size, seed, centered) for size in FIB_CODEBOOK_SIZES)
        except CodecError as error:
            absent["fib"] = str(error)
        curves |= {rivals[0].name: (start, *rivals) for rivals in points.values()}
    return curves, absent


def channel_groups(runs: np.ndarray, group_tokens: int) -> np.ndarray:
    """[group, group_tokens] row indices; a run's last group repeats its last row to fill up."""
    starts = np.flatnonzero(np.diff(runs, prepend=runs[0] - 1))
    stops = np.append(starts[1:], len(runs))
    firsts = np.concatenate([np.arange(a, b, group_tokens) for a, b in zip(starts, stops, strict=True)])
    ends = np.repeat(stops, -(-(stops - starts) // group_tokens))
    return np.minimum(firsts[:, None] + np.arange(group_tokens), ends[:, None] - 1)


def _explained(rows: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """[n] float64: how much of ‖row‖² the best multiple of `levels` explains."""
    along = np.einsum("nd,nd->n", rows, levels, dtype=np.float64)
    return np.square(along) / np.einsum("nd,nd->n", levels, levels, dtype=np.float64)


def _gains(rows: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """[n] float64: the multiple of `levels` [n, head_dim] nearest to each row."""
    along = np.einsum("nd,nd->n", rows, levels, dtype=np.float64)
    return along / np.einsum("nd,nd->n", levels, levels, dtype=np.float64)


def _stored(gains: np.ndarray) -> np.ndarray:
    stored = small_floats(gains, "float16")
    if not np.isfinite(stored).all():
        row = int(np.argmin(np.isfinite(stored)))
        raise NonFiniteError(f"row {row} needs a scale of {gains[row]:.4g}, beyond float32: scale the vectors down")
    return stored
