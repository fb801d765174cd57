"""Codes written earlier are written again today, byte for byte, and decode as they did."""

import json

import numpy as np
import pytest
from codec_contract import CODEC_CASES
from own_codes import HEAD_DIMS, PATH, entry, unpack

from polykv.codecs.registry import build_codec

KEYS = [f"{name}/{head_dim}" for name in CODEC_CASES for head_dim in HEAD_DIMS]


@pytest.fixture(scope="module")
def stored():
    return json.loads(PATH.read_text())


def test_every_mode_is_pinned(stored):
    assert list(stored) == KEYS


@pytest.mark.parametrize("key", KEYS)
def test_codes_are_what_they_were(stored, key):
    name, head_dim = key.split("/")
    old, new = stored[key], entry(name, int(head_dim))
    for field in ("config", "digest", "nbytes"):
        assert new[field] == old[field]
    assert new["codes"]["arrays"].keys() == old["codes"]["arrays"].keys()
    got, expected = unpack(new["codes"]), unpack(old["codes"])
    for array, values in expected.arrays.items():
        assert got[array].dtype == values.dtype
        if values.dtype == np.float32:
            # logarithms and roots may differ in the last bit between machines
            np.testing.assert_allclose(got[array], values, rtol=3e-7, atol=3e-7)
        else:
            np.testing.assert_array_equal(got[array], values)


@pytest.mark.parametrize("key", KEYS)
def test_old_codes_decode_as_they_did(stored, key):
    old = stored[key]
    codec, codes = build_codec(old["config"], old["config"]["head_dim"]), unpack(old["codes"])
    decoded = np.array(old["decoded"])
    np.testing.assert_allclose(codec.decode(codes), decoded, rtol=0, atol=2e-6 * np.abs(decoded).max())
