"""Normal and gamma variates in the exact order the reference draws them.

Normals come from a 256-layer ziggurat over f64 (Marsaglia and Tsang 2000, in the variant that
takes one u64 a try), gammas from Marsaglia and Tsang's squeeze (2000). Only the *sequence* is
special: rejected tries take numbers from the same stream, so nothing may be drawn out of turn.
About 99 % of the tries are accepted by one comparison; those are found for a whole stretch of
the stream at once, and only the rest goes through scalar code.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from polykv.codecs.chacha import ChaCha8, half_open_uniform, open_uniform
from polykv.errors import InputError

_TAIL_START = 3.654152885361009
_LAYER_AREA = 0.00492867323399
_ROOM = 256


@lru_cache(maxsize=1)
def _ziggurat_tables() -> tuple[np.ndarray, np.ndarray]:
    """Layer edges X [257] and densities F [257] = exp(−X²/2)."""
    density = math.exp(-_TAIL_START * _TAIL_START / 2)
    edges = [_LAYER_AREA / density, _TAIL_START]
    for _ in range(254):
        previous = edges[-1]
        edges.append(math.sqrt(-2 * math.log(_LAYER_AREA / previous + math.exp(-previous * previous / 2))))
    x = np.array([*edges, 0.0])
    return x, np.exp(-x * x / 2)


class NormalStream:
    """Draws from ChaCha8(seed), one after the other.

    `expected_u64` is how many u64 the caller thinks it needs: a hint that saves regrowing.
    """

    def __init__(self, seed: int, expected_u64: int = _ROOM) -> None:
        self._stream = ChaCha8(seed)
        self._edges, self._density = _ziggurat_tables()
        self._numbers = np.empty(0, dtype=np.uint64)
        self._tries = np.empty(0)
        self._plain = np.empty(0, dtype=bool)
        self._at = 0
        self._grow(expected_u64 + _ROOM)

    @property
    def position(self) -> int:
        """u64 numbers taken so far."""
        return self._at

    def normal(self) -> float:
        """One standard normal, float64."""
        while True:
            at = self._take()
            x = float(self._tries[at])
            if self._plain[at]:
                return x
            layer = int(self._numbers[at]) & 0xFF
            if layer == 0:
                return self._tail(negative=x < 0)
            low, high = self._density[layer + 1], self._density[layer]
            height = low + (high - low) * half_open_uniform(self._next_number())
            if height < math.exp(-x * x / 2):
                return x

    def normals(self, n: int) -> np.ndarray:
        """The next `n` standard normals, float64 [n]."""
        out = np.empty(n)
        filled = 0
        while filled < n:
            self._grow_to(self._at + n - filled)
            ahead = self._plain[self._at : self._at + n - filled]
            run = len(ahead) if ahead.all() else int(ahead.argmin())
            out[filled : filled + run] = self._tries[self._at : self._at + run]
            self._at += run
            filled += run
            if filled < n:
                out[filled] = self.normal()
                filled += 1
        return out

    def open_uniform(self) -> float:
        """One float64 strictly inside (0, 1)."""
        return float(open_uniform(self._next_number()))

    def gamma(self, shape: float) -> float:
        """One gamma variate of scale 1; `shape` must exceed 1 (InputError)."""
        d, c = gamma_constants(shape)
        while True:
            x = self.normal()
            v = 1.0 + c * x
            if v <= 0:
                continue
            v = v * v * v
            u = self.open_uniform()
            if u < 1.0 - 0.0331 * x * x * x * x or math.log(u) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
                return d * v

    def tape(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the next `n` u64 would give, without taking them.

        Returns (tries float64 [n], plain bool [n]: the try is a finished normal, uniforms
        float64 [n]: the number read as an open uniform).
        """
        self._grow_to(self._at + n)
        ahead = slice(self._at, self._at + n)
        return self._tries[ahead], self._plain[ahead], open_uniform(self._numbers[ahead])

    def skip(self, n: int) -> None:
        """Take `n` u64 that were read through `tape`."""
        self._grow_to(self._at + n)
        self._at += n

    def _tail(self, negative: bool) -> float:
        """A variate beyond the last layer edge, by two exponentials."""
        while True:
            x = math.log(self.open_uniform()) / _TAIL_START
            y = math.log(self.open_uniform())
            if -2.0 * y >= x * x:
                return x - _TAIL_START if negative else _TAIL_START - x

    def _take(self) -> int:
        self._grow_to(self._at + 1)
        self._at += 1
        return self._at - 1

    def _next_number(self) -> np.uint64:
        at = self._take()  # first: it may replace the array it indexes
        return self._numbers[at]

    def _grow_to(self, n: int) -> None:
        if n > len(self._numbers):
            self._grow(n - len(self._numbers) + _ROOM)

    def _grow(self, n: int) -> None:
        fresh = self._stream.u64(n)
        layer = (fresh & np.uint64(0xFF)).astype(np.intp)
        tries = ((fresh >> np.uint64(12)) * 2.0**-51 - 1.0) * self._edges[layer]
        self._numbers = np.concatenate([self._numbers, fresh])
        self._tries = np.concatenate([self._tries, tries])
        self._plain = np.concatenate([self._plain, np.abs(tries) < self._edges[layer + 1]])


def gamma_constants(shape: float) -> tuple[float, float]:
    """(d, c) of Marsaglia and Tsang's method; raises InputError for a shape of 1 or less."""
    if shape <= 1:
        raise InputError(f"gamma shape is {shape}, must be above 1 (shape 1 is an exponential, drawn another way)")
    d = shape - 1.0 / 3.0
    return d, 1.0 / math.sqrt(9.0 * d)


def normals(seed: int, n: int) -> np.ndarray:
    """The first `n` standard normals of a seed, float64 [n]."""
    return NormalStream(seed, expected_u64=n + n // 32).normals(n)
