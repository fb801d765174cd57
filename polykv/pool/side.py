"""Digests of what a pool's codecs derive from their seed: codebooks and rotations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from polykv.codecs.base import Codec
from polykv.codecs.fib import FibCodec
from polykv.codecs.rotation import dense_rotation, dense_rotation_f32, hadamard_signs, is_power_of_two
from polykv.codecs.turbo import TurboCodec
from polykv.pool.encoding import TierLayer
from polykv.receipts import digest_array, digest_json


def side_digests(layers: Sequence[TierLayer]) -> tuple[str, str]:
    """(codebook, rotation) digests: blake3 of the float bytes, "" where there is none.

    Where codecs differ between cells or streams, blake3 over the list of distinct ones.
    """
    codecs: list[Codec] = []
    for layer in layers:
        codecs += [codec for codec in layer.key_codecs + layer.value_codecs if codec not in codecs]
    books = [codec.codewords() for codec in codecs if isinstance(codec, FibCodec)]
    turns = [turn for turn in map(_rotation, codecs) if turn is not None]
    return _joint(books), _joint(turns)


def _rotation(codec: Codec) -> np.ndarray | None:
    if isinstance(codec, FibCodec):
        return dense_rotation(codec.head_dim, codec.seed)
    if isinstance(codec, TurboCodec):
        derive = hadamard_signs if is_power_of_two(codec.head_dim) else dense_rotation_f32
        return derive(codec.head_dim, codec.seed)
    return None


def _joint(arrays: Iterable[np.ndarray]) -> str:
    digests = list(dict.fromkeys(digest_array(array) for array in arrays))
    if len(digests) <= 1:
        return digests[0] if digests else ""
    return digest_json(digests)
