"""Transform PQ: the contract, what it charges, and that a bad artifact is refused."""

from functools import partial

import codec_contract
import numpy as np
import pytest

from polykv.codecs.registry import build_codec
from polykv.codecs.transform_pq import transform_pq_codec
from polykv.errors import CodecError, DimensionMismatch


def make_arrays(seed=0, head_dim=16, group=(0, 0, 1, 1, 1, 2), mean=0.5, dtype=np.float32):
    """A rotation's first rows as the transform, random codewords."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(head_dim, head_dim)))[0][: len(group)]
    return {
        "mean": np.full(head_dim, mean, np.float32),
        "analysis": turn.astype(dtype),
        "synthesis": turn.T.astype(dtype),
        "group": np.array(group, np.uint8),
        "codewords": rng.normal(size=(256, len(group))).astype(dtype),
    }


@pytest.mark.parametrize("head_dim", [16, 80])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_contract(head_dim, dtype, monkeypatch):
    arrays = make_arrays(head_dim=head_dim, group=np.arange(head_dim) // 2, dtype=dtype, mean=0.0)
    arrays["codewords"][0] = 0  # so that it has a code for a zero vector
    codec = transform_pq_codec(arrays)
    monkeypatch.setattr(codec_contract, "build_codec", partial(build_codec, artifacts=lambda digest: arrays))
    for check in codec_contract.CHECKS:
        check(codec, codec_contract.Case(codec.config()))


def test_a_vector_takes_a_byte_a_group_and_everything_kept_once_is_charged():
    arrays = make_arrays()
    codec = transform_pq_codec(arrays)
    codes = codec.encode(np.zeros((7, 16), np.float32))
    assert codec.nbytes(codes) == 7 * 3
    assert codec.side_nbytes() == sum(arrays[name].nbytes for name in ("mean", "analysis", "synthesis", "codewords"))


def test_each_group_takes_its_nearest_codeword():
    arrays = make_arrays(mean=0.0)
    x = np.random.default_rng(1).normal(size=(40, 16)).astype(np.float32)
    indices = transform_pq_codec(arrays).encode(x)["indices"]
    z = x.astype(np.float64) @ arrays["analysis"].T.astype(np.float64)
    for number, place in enumerate((slice(0, 2), slice(2, 5), slice(5, 6))):
        words = arrays["codewords"][:, place].astype(np.float64)
        distances = np.square(z[:, None, place] - words[None]).sum(axis=2)
        np.testing.assert_array_equal(indices[:, number], distances.argmin(axis=1))


@pytest.mark.parametrize("group", [(1, 1), (0, 2), (1, 0), (0, 1, 0)])
def test_groups_out_of_order_are_refused(group):
    with pytest.raises(CodecError, match="groups must run"):
        transform_pq_codec(make_arrays(group=group))


@pytest.mark.parametrize("name", ["analysis", "synthesis", "codewords", "mean"])
def test_arrays_that_do_not_fit_are_refused(name):
    arrays = make_arrays()
    with pytest.raises((CodecError, DimensionMismatch)):
        transform_pq_codec(arrays | {name: arrays[name][:-1]})
