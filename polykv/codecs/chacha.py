"""ChaCha with 8 rounds, seeded from one u64: the reference system's only source of randomness.

The u64 seed is stretched to the 256-bit key by PCG32; block counter and nonce start at 0 and
the output words are read in order (Bernstein 2008 for ChaCha, O'Neill 2014 for PCG). The same
seed gives the same words on every machine: all arithmetic is unsigned integer.
"""

from __future__ import annotations

import numpy as np

from polykv.errors import InputError

U64_MASK = (1 << 64) - 1
WORDS_PER_BLOCK = 16
_DOUBLE_ROUNDS = 4
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_PCG_MULTIPLIER = 6364136223846793005
_PCG_INCREMENT = 11634580027462260723


def check_seed(seed: int, what: str = "seed") -> int:
    """`seed` itself; raises InputError unless it is an integer in [0, 2^64)."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed <= U64_MASK:
        raise InputError(f"{what} is {seed!r}: a seed is an integer from 0 to 2^64 - 1 = {U64_MASK}")
    return int(seed)


def add_seed(seed: int, offset: int) -> int:
    """`seed` + `offset` modulo 2^64: how one seed yields the seeds of several streams."""
    return (seed + offset) & U64_MASK


def key_words(seed: int) -> list[int]:
    """The eight u32 words of the key made from a u64 seed."""
    state, words = check_seed(seed), []
    for _ in range(8):
        state = (state * _PCG_MULTIPLIER + _PCG_INCREMENT) & U64_MASK
        shifted = (((state >> 18) ^ state) >> 27) & 0xFFFFFFFF
        turn = state >> 59
        words.append(((shifted >> turn) | (shifted << (32 - turn))) & 0xFFFFFFFF)
    return words


def chacha8_blocks(seed: int, first_block: int, n_blocks: int) -> np.ndarray:
    """u32 [n_blocks * 16]: the key stream from block `first_block` on."""
    counter = np.arange(first_block, first_block + n_blocks, dtype=np.uint64)
    start = np.zeros((4, 4, n_blocks), dtype=np.uint32)
    start[0] = np.array(_CONSTANTS, dtype=np.uint32)[:, None]
    start[1:3] = np.array(key_words(seed), dtype=np.uint32).reshape(2, 4, 1)
    start[3, 0] = (counter & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    start[3, 1] = (counter >> np.uint64(32)).astype(np.uint32)
    state = start.copy()
    for _ in range(_DOUBLE_ROUNDS):
        _quarter_rounds(state)
        _rotate_lanes(state, -1)
        _quarter_rounds(state)
        _rotate_lanes(state, 1)
    state += start
    return np.ascontiguousarray(state.reshape(WORDS_PER_BLOCK, n_blocks).T).reshape(-1)


def _quarter_rounds(state: np.ndarray) -> None:
    """Four quarter rounds at once, one per column of the 4×4 state."""
    a, b, c, d = state
    for first, second in ((16, 12), (8, 7)):
        a += b
        d ^= a
        _rotate_left(d, first)
        c += d
        b ^= c
        _rotate_left(b, second)


def _rotate_lanes(state: np.ndarray, sign: int) -> None:
    """Shift rows 1, 2, 3 by 1, 2, 3 places, so that diagonals become columns (sign −1) or back."""
    for row in (1, 2, 3):
        state[row] = np.roll(state[row], sign * row, axis=0)


def _rotate_left(words: np.ndarray, bits: int) -> None:
    high = words << np.uint32(bits)
    words >>= np.uint32(32 - bits)
    words |= high


class ChaCha8:
    """One stream of words, read in order.

    >>> stream = ChaCha8(seed=42)
    >>> stream.u64(3)                       # the first three u64, low word first
    """

    def __init__(self, seed: int) -> None:
        self._seed = check_seed(seed)
        self._word = 0

    def u32(self, n: int) -> np.ndarray:
        """The next `n` words, uint32 [n]."""
        first, skip = divmod(self._word, WORDS_PER_BLOCK)
        n_blocks = -(-(skip + n) // WORDS_PER_BLOCK)
        self._word += n
        return chacha8_blocks(self._seed, first, n_blocks)[skip : skip + n]

    def u64(self, n: int) -> np.ndarray:
        """The next `n` numbers, uint64 [n]; each takes two words, the low one first."""
        pairs = self.u32(2 * n).reshape(n, 2).astype(np.uint64)
        return pairs[:, 0] | (pairs[:, 1] << np.uint64(32))

    def bools(self, n: int) -> np.ndarray:
        """The next `n` booleans: the top bit of one word each."""
        return (self.u32(n) >> np.uint32(31)).astype(bool)

    def open_uniform(self, n: int) -> np.ndarray:
        """float64 [n] strictly inside (0, 1); each takes one u64."""
        return open_uniform(self.u64(n))


def open_uniform(numbers: np.ndarray) -> np.ndarray:
    """u64 → float64 in (0, 1): 52 bits, moved half a step away from 0."""
    return (numbers >> np.uint64(12)) * 2.0**-52 + 2.0**-53


def half_open_uniform(numbers: np.ndarray) -> np.ndarray:
    """u64 → float64 in [0, 1): 53 bits."""
    return (numbers >> np.uint64(11)) * 2.0**-53
