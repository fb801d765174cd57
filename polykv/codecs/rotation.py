"""Random rotations: dense from a QR, or Walsh-Hadamard with random signs.

Both are pure functions of (head_dim, seed), kept in bounded caches and returned read-only.
A rotation y = Π x spreads a vector's energy over all coordinates before they are coded.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from polykv.codecs.chacha import ChaCha8, add_seed
from polykv.codecs.normals import normals

_SIGN_SEED_OFFSET = 0xA11CE55ED5A5EED5


def frozen(array: np.ndarray) -> np.ndarray:
    """The array, contiguous and read-only: safe to hand out of a cache."""
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


@lru_cache(maxsize=256)
def dense_rotation(head_dim: int, seed: int) -> np.ndarray:
    """Π [head_dim, head_dim] float64: Q of a Gaussian matrix's QR with diag(R) ≥ 0.

    The matrix is filled column by column from ChaCha8(seed). y = Π x, inverse Πᵀ. Source: the
    reference's qr-gaussian-chacha8-sign-corrected-v1.
    """
    return frozen(_signed_q(normals(seed, head_dim * head_dim).reshape(head_dim, head_dim).T))


@lru_cache(maxsize=256)
def dense_rotation_f32(head_dim: int, seed: int) -> np.ndarray:
    """Π [head_dim, head_dim] float32, from the same normals rounded to float32 before the QR (turbo's variant)."""
    gaussian = normals(seed, head_dim * head_dim).astype(np.float32).reshape(head_dim, head_dim).T
    return frozen(_signed_q(gaussian.astype(np.float64)).astype(np.float32))


@lru_cache(maxsize=1024)
def hadamard_signs(head_dim: int, seed: int) -> np.ndarray:
    """σ [head_dim] float32 of ±1, +1 where the stream's boolean is true."""
    bools = ChaCha8(add_seed(seed, _SIGN_SEED_OFFSET)).bools(head_dim)
    return frozen(np.where(bools, np.float32(1), np.float32(-1)))


@lru_cache(maxsize=256)
def gaussian_projection(rows: int, head_dim: int, seed: int) -> np.ndarray:
    """P [rows, head_dim] float32 standard normals, row by row from ChaCha8(seed)."""
    return frozen(normals(seed, rows * head_dim).astype(np.float32).reshape(rows, head_dim))


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def walsh_hadamard(vectors: np.ndarray) -> np.ndarray:
    """(1/√d)·H·x for each row of [n, d] float32, d a power of two, natural order.

    Butterflies are element-wise, so a row's result never depends on the other rows. Overflow
    comes back as an infinity, for the caller to refuse.
    """
    n, head_dim = vectors.shape
    # coordinates first: the butterflies then run along the batch
    now, half = np.ascontiguousarray(vectors.T), 1
    after = np.empty_like(now)
    while half < head_dim:
        old, new = (a.reshape(head_dim // (2 * half), 2, half, n) for a in (now, after))
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(old[:, 0], old[:, 1], out=new[:, 0])
            np.subtract(old[:, 0], old[:, 1], out=new[:, 1])
        now, after, half = after, now, 2 * half
    return np.ascontiguousarray(now.T) * np.float32(1.0 / np.sqrt(np.float32(head_dim)))


def _signed_q(gaussian: np.ndarray) -> np.ndarray:
    """Q of the QR, columns flipped so that diag(R) ≥ 0 (then Q is unique, whoever computes it)."""
    q, r = np.linalg.qr(gaussian)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)
