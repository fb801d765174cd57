"""Properties of the codecs over arbitrary finite vectors (hypothesis).

Magnitudes stay below 1e6 and are either 0 or above 1e-6: what happens beyond is pinned by
examples in test_codec_contract.py. head_dims are small, so that shrunk examples can be read.
"""

import numpy as np
from codec_contract import CODEC_CASES, SEED, assert_same_codes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polykv.codecs.fib import FibCodec
from polykv.codecs.turbo import TurboCodec
from polykv.codecs.uniform import UniformCodec

PROFILE = settings(max_examples=30, deadline=None)
NUMBERS = st.one_of(
    st.just(0.0),
    st.floats(np.float32(1e-6), 1e6, width=32),
    st.floats(-1e6, np.float32(-1e-6), width=32),
    st.floats(-2, 2, width=32).filter(lambda x: abs(x) > 1e-6),
)


def batches(head_dim, max_rows=9):
    return st.integers(0, max_rows).flatmap(lambda n: hnp.arrays(np.float32, (n, head_dim), elements=NUMBERS))


def grid_step(codec, codes):
    """[n, head_dim] float64: the distance between neighbouring levels at each number."""
    rows = np.arange(len(codes)) if codec.axis == "vector" else np.arange(len(codes)) // codec.group_tokens
    return np.broadcast_to(codes["scale"][rows].astype(np.float64), (len(codes), codec.head_dim))


@PROFILE
@given(
    batches(6),
    st.integers(2, 8),
    st.sampled_from(["symmetric", "asymmetric"]),
    st.sampled_from(["vector", "channel"]),
    st.integers(1, 5),
    st.sampled_from(["float16", "float32"]),
)
def test_uniform_is_never_off_by_more_than_half_a_step(vectors, bits, mode, axis, group_tokens, scale_dtype):
    codec = UniformCodec(6, bits, mode, axis, group_tokens, scale_dtype)
    codes = codec.encode(vectors)
    step = grid_step(codec, codes)
    missed = np.abs(codec.decode(codes).astype(np.float64) - vectors)
    largest = (
        np.abs(vectors).max(axis=1, initial=0, keepdims=True) if axis == "vector" else np.abs(vectors).max(initial=0)
    )
    # the float32 arithmetic of decode, and a stored low that float16 rounds
    assert (missed <= 0.5 * step + 3e-7 * (largest + step * 2**bits)).all()
    # and the grid is no coarser than the data's range asks for
    if axis == "vector" and len(vectors):
        span = np.abs(vectors).max(axis=1) if mode == "symmetric" else np.ptp(vectors.astype(np.float64), axis=1)
        top = 2 ** (bits - 1) - 1 if mode == "symmetric" else 2**bits - 1
        slack = 0.0 if mode == "symmetric" else 2.0**-6 * largest[:, 0]
        assert (step[:, 0] <= 1.02 * (span + slack) / top + 1e-9).all()


@PROFILE
@given(batches(16), st.sampled_from([3, 4, 8]), st.sampled_from(["centre", "lower_edge"]))
def test_turbo_pairs_keep_radius_and_angle(vectors, bits, angle_point):
    codec = TurboCodec(16, SEED, bits=bits, radii="float32", angle_point=angle_point)
    decoded = codec.decode(codec.encode(vectors)).astype(np.float64)
    width = 2 * np.pi / 2 ** (bits - 1)
    off = width / 2 if angle_point == "centre" else width
    norm = np.linalg.norm(vectors.astype(np.float64), axis=1)
    missed = np.linalg.norm(decoded - vectors, axis=1)
    assert (missed <= (2 * np.sin(off / 2) + 1e-5) * norm).all()
    np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), norm, rtol=1e-5)


@PROFILE
@given(batches(16))
def test_turbo_log_radii_add_little_to_the_angle_error(vectors):
    codec = TurboCodec(16, SEED)
    decoded = codec.decode(codec.encode(vectors)).astype(np.float64)
    norm = np.linalg.norm(vectors.astype(np.float64), axis=1)
    # a byte spans at most ln 2^12 in 255 steps: half a step is 1.6 %
    assert (np.linalg.norm(decoded - vectors, axis=1) <= (2 * np.sin(np.pi / 256) + 0.018) * norm).all()


@PROFILE
@given(batches(16))
def test_fib_picks_the_nearest_codeword_of_every_block(vectors):
    codec = FibCodec(16, SEED)
    codes = codec.encode(vectors)
    norm = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit = vectors / np.where(norm > 0, norm, 1)
    blocks = (unit @ codec._rotation().T).reshape(-1, 4)
    distance = ((blocks[:, None, :] - codec.codewords()[None].astype(np.float64)) ** 2).sum(axis=2)
    chosen = distance[np.arange(len(blocks)), codes["indices"].ravel()]
    assert (chosen <= distance.min(axis=1) + 1e-6).all()
    np.testing.assert_allclose(codes["norms"].astype(np.float64), norm[:, 0], rtol=2.0**-6)


@PROFILE
@given(batches(16), st.sampled_from(sorted(CODEC_CASES)), st.randoms(use_true_random=False))
def test_rows_subsets_and_permutations(vectors, name, random):
    case = CODEC_CASES[name]
    codec = case.build(16)
    if case.refuses_zero:
        vectors = vectors[np.linalg.norm(vectors, axis=1) > 0]
        vectors = np.clip(vectors, -1e4, 1e4)
    codes = codec.encode(vectors)
    whole = codec.decode(codes)
    rows = [random.randrange(len(vectors)) for _ in range(5)] if len(vectors) else []
    np.testing.assert_array_equal(codec.decode(codes, rows), whole[rows])
    if not case.rowwise:
        return
    order = random.sample(range(len(vectors)), len(vectors))
    assert_same_codes(codec.encode(vectors[order]), codes, np.array(order, dtype=int))
    # a part decodes as it did in the whole; its arrays may be narrower than the whole's
    # (fib rotates fewer than four vectors another way, as the reference does)
    part = order[: len(order) // 2]
    if "fib" not in name or len(part) >= 4:
        np.testing.assert_array_equal(codec.decode(codec.encode(vectors[part])), whole[part])


@PROFILE
@given(
    batches(16), batches(16), st.sampled_from([n for n, case in sorted(CODEC_CASES.items()) if case.score_is_decode])
)
def test_scores_are_products_with_the_decoded_vectors(vectors, queries, name):
    codec = CODEC_CASES[name].build(16)
    codes = codec.encode(vectors)
    decoded = codec.decode(codes).astype(np.float64)
    room = np.linalg.norm(queries.astype(np.float64), axis=1)[:, None] * np.linalg.norm(decoded, axis=1)[None, :]
    assert (np.abs(codec.scores(queries, codes) - queries.astype(np.float64) @ decoded.T) <= 3e-6 * room + 1e-30).all()


@PROFILE
@given(batches(16, max_rows=6), st.sampled_from(["fib", "turbo8", "int8"]), st.integers(-6, 6))
def test_scaling_by_a_power_of_two_scales_the_decoding(vectors, name, exponent):
    codec = CODEC_CASES[name].build(16)
    factor = np.float32(2.0**exponent)
    plain, scaled = codec.decode(codec.encode(vectors)), codec.decode(codec.encode(vectors * factor))
    # log-u8 radii and float16 numbers near the ends of their range round differently
    np.testing.assert_allclose(scaled, plain * factor, atol=0.04 * np.abs(vectors * factor).max(initial=0))
