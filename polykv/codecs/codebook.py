"""The fib codec's codebook: a pure function of (head_dim, seed), nothing learned from keys or values.

The rotated unit vector is cut into blocks; a block of k coordinates of a uniform unit vector in
R^d has radius² ~ Beta(k/2, (d−k)/2) and a uniform direction. The codebook starts from well-spread
directions with companded radii and is trained on samples of that law.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import betainc, ndtri

from polykv.codecs.chacha import add_seed
from polykv.codecs.lloyd import LloydResult, lloyd
from polykv.codecs.normals import NormalStream, gamma_constants
from polykv.codecs.rotation import dense_rotation, frozen

_CODEBOOK_SEED_OFFSET = 0x9E3779B97F4A7C15
_SOURCE_SEED_MASK = 0x465155414E54
_RESTART_SEED_STEP = 0x9E3779B9


@lru_cache(maxsize=512)
def codebook(
    head_dim: int, seed: int, block_dim: int, codebook_size: int, training_samples: int, restarts: int, iterations: int
) -> np.ndarray:
    """Codewords [codebook_size, block_dim] float32, read-only; `seed` is the codec's own seed."""
    arguments = (head_dim, seed, block_dim, codebook_size, training_samples, restarts, iterations)
    return frozen(train_codebook(*arguments).codewords.astype(np.float32))


@lru_cache(maxsize=512)
def gram_matrix(*codebook_arguments: int) -> np.ndarray:
    """G [codebook_size, codebook_size] float32: inner products of the codewords of `codebook(...)`."""
    words = codebook(*codebook_arguments)
    gram = np.zeros((len(words), len(words)), dtype=np.float32)
    for column in words.T:
        gram += column[:, None] * column[None, :]
    return frozen(gram)


def train_codebook(
    head_dim: int, seed: int, block_dim: int, codebook_size: int, training_samples: int, restarts: int, iterations: int
) -> LloydResult:
    """Train one codebook; restart 0 starts from the initial codewords, the others from rotated copies."""
    codebook_seed = add_seed(seed, _CODEBOOK_SEED_OFFSET)
    initial = initial_codewords(head_dim, block_dim, codebook_size)
    samples = training_source(head_dim, block_dim, training_samples, codebook_seed)
    starts = [initial]
    for restart in range(1, restarts):
        turn = dense_rotation(block_dim, add_seed(codebook_seed, restart * _RESTART_SEED_STEP))
        starts.append(initial @ turn.T)
    return lloyd(samples, initial, starts, iterations)


def initial_codewords(head_dim: int, block_dim: int, codebook_size: int) -> np.ndarray:
    """[codeword, coordinate] float64: direction n of the sequence at radius quantile n, radii growing."""
    quantile = (np.arange(codebook_size) + 0.5) / codebook_size
    beta = block_dim / (block_dim + 2) * (head_dim - block_dim - 2) / 2 + 1
    radius = np.sqrt(coarse_beta_quantile(quantile, block_dim / 2, beta))
    return directions(block_dim, codebook_size) * radius[:, None]


def directions(block_dim: int, n: int) -> np.ndarray:
    """[n, block_dim] float64 unit vectors: the Roberts-Kronecker sequence through the inverse normal."""
    root = _sequence_root(block_dim)
    fraction = ((np.arange(n)[:, None] + 0.5) * root ** -np.arange(1.0, block_dim + 1)) % 1.0
    gaussian = ndtri(np.clip(fraction, 1e-12, 1 - 1e-12))
    return gaussian / np.linalg.norm(gaussian, axis=1, keepdims=True)


def coarse_beta_quantile(quantile: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Inverse of the Beta(alpha, beta) distribution, to 3e-5: 16 bisections of [−2, 2], the last midpoint.

    The coarseness is the reference's and decides its codewords (exact quantiles move 2.7 % of
    the indices at head_dim 128), so it is kept.
    """
    low, high = np.full(len(quantile), -2.0), np.full(len(quantile), 2.0)
    middle = (low + high) / 2
    for _ in range(16):
        middle = (low + high) / 2
        above = betainc(alpha, beta, np.clip(middle, 0.0, 1.0)) >= quantile
        high, low = np.where(above, middle, high), np.where(above, low, middle)
    return (low + high) / 2


def training_source(head_dim: int, block_dim: int, samples: int, codebook_seed: int) -> np.ndarray:
    """[sample, block_dim] float64: blocks of random unit vectors of R^head_dim.

    Per sample and in this order: Gamma(k/2), Gamma((d−k)/2), then k normals for the direction;
    radius² = a / (a + b). Where every first try is accepted (seven samples of eight) a sample is
    a fixed pattern of k + 4 numbers, computed for all places of the stream at once.
    """
    width, shapes = block_dim + 4, (block_dim / 2, (head_dim - block_dim) / 2)
    expected = samples * width * 9 // 8
    stream = NormalStream(codebook_seed ^ _SOURCE_SEED_MASK, expected_u64=expected)
    gammas, gaussian = np.empty((samples, 2)), np.empty((samples, block_dim))
    done = 0
    while done < samples:
        start = stream.position
        plain, tape_gammas, tape_gaussian = _plain_samples(stream, max(expected - start, 8 * width), shapes, block_dim)
        rows, places, place = [], [], 0
        while done < samples and place < len(plain):
            if plain[place]:
                rows.append(done)
                places.append(place)
                place += width
            else:
                stream.skip(start + place - stream.position)
                gammas[done] = [stream.gamma(shape) for shape in shapes]
                gaussian[done] = [stream.normal() for _ in range(block_dim)]
                place = stream.position - start
            done += 1
        stream.skip(start + place - stream.position)
        gammas[rows], gaussian[rows] = tape_gammas[places], tape_gaussian[places]
    radius = np.sqrt(gammas[:, 0] / (gammas[:, 0] + gammas[:, 1]))
    return gaussian / np.linalg.norm(gaussian, axis=1, keepdims=True) * radius[:, None]


def _plain_samples(
    stream: NormalStream, n: int, shapes: tuple[float, float], block_dim: int
) -> tuple[list[bool], np.ndarray, np.ndarray]:
    """What a sample starting at each of the next n u64 would be, if every first try is accepted.

    Returns (whether that is so [place], gammas [place, 2], normals [place, block_dim]), for the
    places whose whole pattern lies on the tape. Example, k = 4: a sample at place p has its
    gammas' normals at p and p + 2, their uniforms at p + 1 and p + 3, its normals at p + 4 … p + 7.
    """
    tries, accepted, uniforms = stream.tape(n)
    n_places = n - block_dim - 3
    plain, gammas = np.ones(n_places, dtype=bool), np.empty((n_places, 2))
    for i, shape in enumerate(shapes):
        d, c = gamma_constants(shape)
        x, u = tries[2 * i : 2 * i + n_places], uniforms[2 * i + 1 : 2 * i + 1 + n_places]
        v = 1.0 + c * x
        v = v * v * v
        exact = np.log(u) < 0.5 * x * x + d * (1.0 - v + np.log(np.maximum(v, np.finfo(float).tiny)))
        plain &= accepted[2 * i : 2 * i + n_places] & (v > 0) & ((u < 1.0 - 0.0331 * x * x * x * x) | exact)
        gammas[:, i] = d * v
    for j in range(block_dim):
        plain &= accepted[4 + j : 4 + j + n_places]
    gaussian = np.lib.stride_tricks.sliding_window_view(tries[4:], block_dim)[:n_places]
    return plain.tolist(), gammas, gaussian


def _sequence_root(block_dim: int) -> float:
    """φ in [1, 2] with φ^(k+1) = φ + 1; for k = 4, 1.1673039782614185."""
    low, high = 1.0, 2.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle ** (block_dim + 1) < middle + 1 else (low, middle)
    return (low + high) / 2
