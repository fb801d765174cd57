"""transform_ecsq: a trained transform, one uniform step for every coordinate, and an entropy coder.

Coordinates are in units of what their errors cost, so that the same step is the best one in all of
them, and what a coordinate is worth shows in how many bits its symbols take: a fraction of a bit
where little is at stake, many where much is. At high rates this comes within ¼ bit a coordinate of
the rate-distortion bound (Gish & Pierce 1968). Fitting: `polykv.calibration.transform_ecsq`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from polykv.codecs.arrays import (
    check_at_least,
    check_integer_head_dim,
    checked_codes,
    checked_rows,
    finite_scores,
    pairwise_dot,
    row_chunks,
    rows_times,
)
from polykv.codecs.base import Codes, checked_vectors
from polykv.codecs.entropy import (
    MOST_SHARE,
    MOST_SYMBOL,
    N_WIDTHS,
    STRIDES,
    BlockModels,
    block_models,
    decode_block,
    encode_block,
    stream_bits,
)
from polykv.codecs.trained import TrainedCodec
from polykv.errors import CodecError
from polykv.npz import npz_bytes
from polykv.receipts import digest_bytes


@dataclass(frozen=True)
class TransformEcsqCodec(TrainedCodec):
    """Artifact: mean [head_dim]; analysis [coordinate, head_dim] and synthesis [head_dim, coordinate];
    step [1]; widths and shares [round, coordinate] uint8: how far symbols lie from where their neighbours say, and
    how much these say, in each round of coding a block (`polykv.codecs.entropy`). Transforms may be floats, or
    integers with a scale (`as_integers`), which take one or two bytes a number.

    A vector x is coded as round(analysis · (x − mean) / step), decoded as synthesis · (step · symbols)
    + mean. Codes: words uint32, the bits of blocks of `block_tokens` vectors one after the other,
    and offsets [block + 1] uint32 into them; neither has an axis of
    vectors. Chosen rows are read by decoding the blocks they are in, and nothing else.

    Vectors of a block share their bits, and help to tell each other's, not their values: what a vector decodes to
    depends on that vector alone, so no query sees a code made from later tokens and `coupled_tokens` is 1. A cache
    that grows keeps the vectors of its last, unfinished block as they are until it is full. Coding a block takes
    memory in proportion to it and to its widest tables, a few MB at 64 tokens and a GB at some thousands.
    Encoding and decoding need the extra `entropy` and raise MissingExtraError without it.
    """

    block_tokens: int = 64

    codec_id: ClassVar[str] = "transform_ecsq"
    array_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "mean": ("head_dim",),
        "analysis": ("coordinate", "head_dim"),
        "synthesis": ("head_dim", "coordinate"),
        "step": ("1",),
        "widths": ("round", "coordinate"),
        "shares": ("round", "coordinate"),
    }
    scalable: ClassVar[tuple[str, ...]] = ("analysis", "synthesis")

    def __post_init__(self, arrays: Mapping[str, np.ndarray] | None) -> None:
        super().__post_init__(arrays)
        check_at_least(self.codec_id, "block_tokens", self.block_tokens, 1)
        for name, limit in (("widths", N_WIDTHS - 1), ("shares", MOST_SHARE)):
            array = self.arrays[name]
            if array.dtype != np.uint8 or len(array) != len(STRIDES) or array.max(initial=0) > limit:
                raise CodecError(
                    f"transform_ecsq: {name} are {array.dtype} of {len(array)} rounds up to {array.max(initial=0)}, must "
                    f"be uint8 of {len(STRIDES)} rounds up to {limit}"
                )
        if self.arrays["shares"][0].any():
            raise CodecError("transform_ecsq: shares of the first round must be 0: its tokens have no neighbours yet")
        if not self.step > 0:
            raise CodecError(f"transform_ecsq: step is {self.step}, must be above 0")

    @classmethod
    def check_head_dim(cls, head_dim: int) -> None:
        check_integer_head_dim(head_dim, cls.codec_id)

    @property
    def step(self) -> float:
        """The quantiser's step, in the units of `analysis`."""
        return float(self.arrays["step"][0])

    @property
    def n_coordinates(self) -> int:
        """Coordinates that are coded; with 0 every vector decodes to the mean."""
        return self.arrays["widths"].shape[1]

    def symbols(self, vectors: np.ndarray) -> np.ndarray:
        """int64 [n, coordinate] of vectors [n, head_dim]: what the bits stand for.

        Raises CodecError naming the vector that is too far out to have a symbol.
        """
        array = checked_vectors(vectors, self.head_dim)
        turn = np.ascontiguousarray(self.arrays["analysis"].T.astype(np.float64))
        mean = self.arrays["mean"].astype(np.float64)
        found = np.zeros((len(array), self.n_coordinates), np.int64)
        for part in row_chunks(len(array)):
            steps = np.rint(rows_times(array[part].astype(np.float64) - mean, turn) / self.step)
            beyond = np.argwhere(~(np.abs(steps) <= MOST_SYMBOL))
            if len(beyond):
                row, coordinate = beyond[0]
                raise CodecError(
                    f"transform_ecsq: vectors[{part.start + row}] lies {abs(steps[row, coordinate]):.3g} steps from "
                    f"the mean in coordinate {coordinate}, at most {MOST_SYMBOL} can be coded; fit the codec to "
                    "vectors like this one"
                )
            found[part] = steps.astype(np.int64)
        return found

    def entropy_bytes(self, vectors: np.ndarray) -> float:
        """What the symbols of vectors [n, head_dim] take by their chances alone: no words to fill, seals and offsets."""
        symbols, models = self.symbols(vectors), self._models()
        starts = range(0, len(symbols), self.block_tokens)
        return sum(float(stream_bits(symbols[i : i + self.block_tokens], models).sum()) for i in starts) / 8

    def encode(self, vectors: np.ndarray) -> Codes:
        symbols = self.symbols(vectors)
        models = self._models()
        starts = range(0, len(symbols), self.block_tokens)
        blocks = [encode_block(symbols[start : start + self.block_tokens], models) for start in starts]
        offsets = np.array(np.cumsum([0, *map(len, blocks)]), np.uint32)
        words = np.concatenate(blocks) if blocks else np.empty(0, np.uint32)
        return Codes(len(symbols), self.head_dim, {"words": words, "offsets": offsets})

    def decode(self, codes: Codes, rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        checked_codes(codes, self.head_dim)
        chosen = checked_rows(rows, len(codes))
        words, offsets = self._checked_stream(codes)
        models = self._models()
        blocks, place = np.unique(chosen // self.block_tokens, return_inverse=True)
        most = min(self.block_tokens, len(codes))  # rows of a block, however long one may be
        symbols = np.zeros((len(blocks) * most, self.n_coordinates), np.int64)
        for at, block in enumerate(blocks.tolist()):
            n = min(most, len(codes) - block * self.block_tokens)
            start = at * most
            symbols[start : start + n] = decode_block(words[offsets[block] : offsets[block + 1]], n, models)
        z = symbols[place * most + chosen % self.block_tokens] * self.step
        turn = np.ascontiguousarray(self.arrays["synthesis"].T.astype(np.float32))
        return rows_times(z.astype(np.float32), turn) + self.arrays["mean"].astype(np.float32)

    def scores(self, queries: np.ndarray, codes: Codes) -> np.ndarray:
        """Inner products with the decoded vectors: bits have no meaning of their own to score from."""
        checked_codes(codes, self.head_dim)
        queries = checked_vectors(queries, self.head_dim, "queries")
        return finite_scores(pairwise_dot(queries, self.decode(codes)))

    def nbytes(self, codes: Codes) -> int:
        """The bitstream, and an offset of 4 bytes a block (where the last block ends is its length)."""
        return codes["words"].nbytes + 4 * self._n_blocks(codes)

    def side_nbytes(self) -> int:
        """Mean, both transforms, step, widths and shares as stored."""
        return self.stored_nbytes(*self.array_shapes)

    def _models(self) -> BlockModels:
        return block_models(self.arrays["widths"], self.arrays["shares"])

    def _n_blocks(self, codes: Codes) -> int:
        return -(-len(codes) // self.block_tokens)

    def _checked_stream(self, codes: Codes) -> tuple[np.ndarray, np.ndarray]:
        """(words uint32, offsets int64); raises CodecError when offsets do not cut the words into the blocks."""
        words, n_blocks = codes["words"], self._n_blocks(codes)
        for name in ("words", "offsets"):
            if codes[name].dtype != np.uint32 or codes[name].ndim != 1:
                raise CodecError(
                    f"transform_ecsq: {name} are {codes[name].ndim} axes of {codes[name].dtype}, must be one axis of uint32"
                )
        offsets = codes["offsets"].astype(np.int64)
        if offsets.shape != (n_blocks + 1,):
            raise CodecError(
                f"transform_ecsq: {len(codes)} vectors are {n_blocks} blocks of {self.block_tokens} and need "
                f"{n_blocks + 1} offsets, got {offsets.shape}"
            )
        if offsets[0] != 0 or offsets[-1] != len(words) or (np.diff(offsets) < 0).any():
            raise CodecError(
                f"transform_ecsq: offsets run from {offsets[0]} to {offsets[-1]}, must rise from 0 to the "
                f"{len(words)} words there are; the codes are damaged, encode the vectors again"
            )
        return words, offsets


def transform_ecsq_codec(arrays: Mapping[str, np.ndarray], block_tokens: int = 64) -> TransformEcsqCodec:
    """The codec of an artifact's arrays, its digest computed."""
    digest = digest_bytes(npz_bytes(arrays))
    return TransformEcsqCodec(len(arrays["mean"]), digest, block_tokens, arrays=arrays)
