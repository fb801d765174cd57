"""Random numbers, rotations, Lloyd's algorithm and the caches behind them."""

import numpy as np
import pytest

from polykv.codecs.arrays import pairwise_dot, rows_times, small_floats
from polykv.codecs.chacha import ChaCha8, add_seed, chacha8_blocks, check_seed, key_words
from polykv.codecs.codebook import coarse_beta_quantile, codebook, directions, train_codebook, training_source
from polykv.codecs.fib import FibCodec, nearest_codewords
from polykv.codecs.lloyd import assign, lloyd, lloyd_step, mean_error
from polykv.codecs.normals import NormalStream, normals
from polykv.codecs.rotation import (
    dense_rotation,
    dense_rotation_f32,
    gaussian_projection,
    hadamard_signs,
    walsh_hadamard,
)
from polykv.errors import InputError


def scalar_chacha8(key, counter):
    """One block, written from the definition."""

    def turn(x, n):
        return ((x << n) | (x >> (32 - n))) & 0xFFFFFFFF

    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key, counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    s = list(start)
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for _ in range(4):
        for a, b, c, d in columns + diagonals:
            for x, y, z, n in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[x] = (s[x] + s[y]) & 0xFFFFFFFF
                s[z] = turn(s[z] ^ s[x], n)
    return [(x + y) & 0xFFFFFFFF for x, y in zip(s, start, strict=True)]


@pytest.mark.parametrize("seed", [0, 42, 2**64 - 1])
def test_chacha_blocks_match_the_definition_also_past_32_bits_of_counter(seed):
    for counter in (0, 1, 2**32 - 1, 2**32):
        blocks = chacha8_blocks(seed, counter, 2)
        assert blocks[:16].tolist() == scalar_chacha8(key_words(seed), counter)
        assert blocks[16:].tolist() == scalar_chacha8(key_words(seed), counter + 1)


def test_stream_is_read_in_order_whatever_the_cuts():
    whole = ChaCha8(5).u32(200)
    cut = ChaCha8(5)
    np.testing.assert_array_equal(np.concatenate([cut.u32(n) for n in (3, 0, 50, 1, 146)]), whole)
    pairs = whole.astype(np.uint64).reshape(-1, 2)
    np.testing.assert_array_equal(ChaCha8(5).u64(100), pairs[:, 0] + (pairs[:, 1] << np.uint64(32)))
    np.testing.assert_array_equal(ChaCha8(5).bools(200), whole >= 2**31)
    uniform = ChaCha8(5).open_uniform(100)
    assert ((uniform > 0) & (uniform < 1)).all()


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "3", None, True])
def test_seeds_outside_u64_are_refused(seed):
    with pytest.raises(InputError, match="seed is .* 2\\^64 - 1"):
        check_seed(seed)


def test_seed_sums_wrap():
    assert add_seed(2**64 - 1, 3) == 2


def test_normals_in_one_go_equal_normals_one_by_one():
    whole = normals(9, 5000)
    stream = NormalStream(9, expected_u64=1)
    np.testing.assert_array_equal([stream.normal() for _ in range(5000)], whole)
    mixed = NormalStream(9)
    parts = [mixed.normals(1000), [mixed.normal()], mixed.normals(0), mixed.normals(3999)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_normals_and_gammas_follow_their_laws():
    from scipy.stats import kstest

    sample = normals(1, 60000)
    assert kstest(sample, "norm").pvalue > 0.01
    assert (np.abs(sample) > 3.66).any()  # the tail beyond the last layer is reached
    for shape in (1.5, 2.0, 30.0):
        stream = NormalStream(2)
        assert kstest([stream.gamma(shape) for _ in range(4000)], "gamma", args=(shape,)).pvalue > 0.01
    with pytest.raises(InputError, match="gamma shape is 1"):
        NormalStream(2).gamma(1.0)


@pytest.mark.parametrize(("head_dim", "samples"), [(8, 700), (64, 700), (64, 1), (128, 333)])
def test_training_source_equals_its_scalar_definition(head_dim, samples):
    got = training_source(head_dim, 4, samples, codebook_seed=77)
    stream = NormalStream(77 ^ 0x465155414E54)
    expected = []
    for _ in range(samples):
        a, b = stream.gamma(2.0), stream.gamma((head_dim - 4) / 2)
        direction = np.array([stream.normal() for _ in range(4)])
        expected.append(direction / np.linalg.norm(direction) * np.sqrt(a / (a + b)))
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_coarse_beta_quantile_is_the_quantile_to_its_grid():
    from scipy.special import betaincinv

    quantile = (np.arange(32) + 0.5) / 32
    got = coarse_beta_quantile(quantile, 2.0, 20 + 1 / 3)
    assert np.abs(got - betaincinv(2.0, 20 + 1 / 3, quantile)).max() <= 3.1e-5
    steps = got * 2**17 / 4
    np.testing.assert_array_equal(steps % 2, 1)


def test_directions_are_unit_and_spread():
    unit = directions(4, 256)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1)
    assert np.abs(unit.mean(axis=0)).max() < 0.05


@pytest.mark.parametrize("head_dim", [5, 64, 80])
def test_dense_rotations_are_orthogonal(head_dim):
    for rotation, tolerance in ((dense_rotation(head_dim, 3), 1e-13), (dense_rotation_f32(head_dim, 3), 2e-6)):
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(head_dim), atol=tolerance)
    assert dense_rotation_f32(head_dim, 3).dtype == np.float32
    assert not np.array_equal(dense_rotation(head_dim, 3), dense_rotation(head_dim, 4))


def test_walsh_hadamard_is_the_matrix_and_its_own_inverse():
    from scipy.linalg import hadamard

    vectors = np.random.default_rng(0).normal(size=(7, 32)).astype(np.float32)
    got = walsh_hadamard(vectors)
    np.testing.assert_allclose(got, vectors @ hadamard(32) / np.sqrt(32), atol=1e-5)
    np.testing.assert_allclose(walsh_hadamard(got), vectors, atol=1e-5)
    np.testing.assert_array_equal(walsh_hadamard(vectors[:, :1]), vectors[:, :1])


def test_what_caches_hand_out_is_shared_read_only_and_bounded():
    arguments = (16, 3, 4, 32, 256, 1, 2)
    arrays = [
        (codebook, arguments),
        (dense_rotation, (16, 3)),
        (dense_rotation_f32, (16, 3)),
        (hadamard_signs, (16, 3)),
        (gaussian_projection, (8, 16, 3)),
    ]
    for function, args in arrays:
        assert function(*args) is function(*args)
        assert function.cache_info().maxsize is not None
        with pytest.raises(ValueError, match="read-only"):
            function(*args)[0] = 1


def test_codebook_is_trained_once_for_all_codecs_of_a_seed():
    codebook.cache_clear()
    vectors = np.ones((3, 16), np.float32)
    for query_mode in ("gram", "asymmetric"):
        for _ in range(3):
            codec = FibCodec(16, 2, query_mode=query_mode)
            codec.scores(vectors, codec.encode(vectors))
    assert codebook.cache_info().misses == 1


def test_nearest_codeword_takes_the_lowest_index_on_ties():
    words = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    blocks = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [5, 5, 0, 0], [0, 0, 0, 0.1]], np.float32)
    assert nearest_codewords(blocks, words).tolist() == [0, 0, 0, 3]
    many = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)
    book = np.random.default_rng(1).normal(size=(32, 4)).astype(np.float32)
    brute = ((many[:, None, :] - book[None]) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(nearest_codewords(many, book), brute)


def test_lloyd_never_gets_worse_and_keeps_the_best_restart():
    samples = np.random.default_rng(0).normal(size=(500, 4))
    words = np.random.default_rng(1).normal(size=(8, 4))
    errors = [mean_error(samples, words)]
    for _ in range(6):
        words, repaired = lloyd_step(samples, words)
        assert repaired == 0
        errors.append(mean_error(samples, words))
    assert errors == sorted(errors, reverse=True)
    good, bad = words, words + 100.0
    assert lloyd(samples, bad, [good], 1).best_restart == 0
    kept = lloyd(samples, good, [np.zeros((8, 4))], 1)
    assert kept.best_restart is None
    np.testing.assert_array_equal(kept.codewords, good)


def test_empty_cell_takes_half_of_the_worst_cell():
    # cell 0 near the origin is tight, cell 1 near (10, 0) is wide, cell 2 is far from everything
    samples = np.array([[0.0, 0.0], [0.0, 0.2], [9.0, 0.0], [10.0, 0.0], [14.0, 0.0]])
    words = np.array([[0.0, 0.0], [10.0, 0.0], [1e6, 1e6]])
    assert assign(samples, words).tolist() == [0, 0, 1, 1, 1]
    updated, repaired = lloyd_step(samples, words)
    assert repaired == 1
    middle = np.array([11.0, 0.0])  # cell 1's new centroid; its farthest sample is (14, 0), to the right
    np.testing.assert_allclose(updated[0], [0.0, 0.1])
    np.testing.assert_allclose(updated[1], middle - [1e-6, 0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(updated[2], middle + [1e-6, 0], rtol=0, atol=1e-12)


def test_two_empty_cells_take_two_donors_and_equal_donors_the_last():
    samples = np.array([[0.0, -1.0], [0.0, 1.0], [10.0, -1.0], [10.0, 1.0]])
    words = np.array([[0.0, 0.0], [1e6, 0.0], [10.0, 0.0], [1e6, 1e6]])
    updated, repaired = lloyd_step(samples, words)
    assert repaired == 2
    # distortions are equal: the first empty cell takes from cell 2, the second from what is left
    np.testing.assert_allclose(updated[2], [10.0, 1e-6], rtol=0, atol=1e-12)
    np.testing.assert_allclose(updated[1], [10.0, -1e-6], rtol=0, atol=1e-12)
    np.testing.assert_allclose(updated[0], [0.0, 1e-6], rtol=0, atol=1e-12)
    np.testing.assert_allclose(updated[3], [0.0, -1e-6], rtol=0, atol=1e-12)


def test_repair_without_a_donor_leaves_the_codeword_and_identical_samples_are_split():
    lonely, repaired = lloyd_step(np.array([[1.0, 0.0]]), np.array([[0.0, 0.0], [50.0, 0.0]]))
    assert repaired == 1
    np.testing.assert_array_equal(lonely, [[1.0, 0.0], [50.0, 0.0]])
    same = np.ones((4, 2))
    split, _ = lloyd_step(same, np.array([[1.0, 1.0], [50.0, 0.0]]))
    np.testing.assert_allclose(split, [[1 - 1e-6, 1], [1 + 1e-6, 1]], rtol=0, atol=1e-12)


def test_training_with_more_codewords_than_the_samples_fill_still_repairs():
    trained = train_codebook(8, 0, 4, 256, 300, 2, 3)
    assert trained.repaired_cells > 0
    assert np.isfinite(trained.codewords).all()
    assert trained.error < trained.initial_error


def test_products_do_not_depend_on_the_batch():
    rng = np.random.default_rng(0)
    for head_dim in (1, 6, 64, 80, 128):
        rows, matrix = rng.normal(size=(2, 300, head_dim)).astype(np.float32), rng.normal(size=(head_dim, head_dim))
        order = rng.permutation(300)[:77]
        for dtype in (np.float32, np.float64):
            whole = rows_times(rows[0].astype(dtype), matrix.astype(dtype))
            np.testing.assert_array_equal(rows_times(rows[0][order].astype(dtype), matrix.astype(dtype)), whole[order])
            np.testing.assert_allclose(whole, rows[0] @ matrix, rtol=0, atol=1e-4)
        scores = pairwise_dot(rows[0], rows[1])
        np.testing.assert_array_equal(pairwise_dot(rows[0][order[:1]], rows[1][order]), scores[order[:1]][:, order])
        np.testing.assert_array_equal(pairwise_dot(rows[0], rows[0]), pairwise_dot(rows[0], rows[0].copy()))


def test_small_floats_round_as_told_and_widen_only_when_they_must():
    values = np.array([1.0, 0.1, 1000.3, -0.7, 0.0])
    half = small_floats(values, "float16")
    assert half.dtype == np.float16
    assert (small_floats(values, "float16", "up").astype(np.float64) >= values).all()
    assert (small_floats(values, "float16", "down").astype(np.float64) <= values).all()
    assert small_floats(values, "float32").dtype == np.float32
    for odd in (1e5, 1e-7, -7e4):
        wide = small_floats(np.append(values, odd), "float16")
        assert wide.dtype == np.float32
        np.testing.assert_array_equal(wide[:5], half.astype(np.float32))
        assert wide[5] == np.float32(odd)
    # beside a large span a small offset may be coarse
    assert small_floats(np.array([1e-7]), "float16", "down", span=1.0).dtype == np.float16
