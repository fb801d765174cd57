"""The named policies that certification compares: what they are and what they cost."""

import numpy as np
import pytest

from polykv.certify.cells import plan_cells
from polykv.codecs.scalar import RotatedScalarCodec
from polykv.errors import CodecError, PolicyError
from polykv.policy import NAMED_POLICIES, CompressionPolicy
from tests.certify.certify_samples import means, spec


@pytest.mark.parametrize("name", NAMED_POLICIES)
def test_every_named_policy_bears_its_name_and_can_be_laid_over_a_model(name):
    policy = CompressionPolicy.named(name)
    assert policy.name == name
    assert CompressionPolicy.from_dict(policy.to_dict()) == policy
    assert len(plan_cells(policy, {0: spec(value_dim=16)}, means(spec()))) == 2


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [("kivi4", 6840), ("kivi3", 5400), ("kivi2", 3960), ("turboquant4", 6120), ("turboquant2", 3240)],
)
def test_bytes_per_token_of_thirty_layers_of_three_heads(name, n_bytes):
    """SmolLM2's shape: 90 cells of 64 numbers for K and for V."""
    policy = CompressionPolicy.named(name)
    vectors = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
    codecs = [policy.codec("pool", stream, 0, 0, 64) for stream in ("key", "value")]
    assert 90 * sum(codec.nbytes(codec.encode(vectors)) for codec in codecs) / 128 == n_bytes


def test_bits_beyond_the_codec_are_refused():
    with pytest.raises(PolicyError, match="unknown policy 'kivi5'"):
        CompressionPolicy.named("kivi5")
    with pytest.raises(CodecError, match="bits is 9"):
        CompressionPolicy.turboquant(9).codec("pool", "key", 0, 0, 64)


@pytest.mark.parametrize(("bits", "distortion"), [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)])
def test_rotated_scalar_reaches_the_distortion_of_lloyd_and_max(bits, distortion):
    """Relative MSE on normal vectors (Max 1960, table 1); norm and gain, fitted to 256 numbers, win a little."""
    vectors = np.random.default_rng(1).standard_normal((1500, 256)).astype(np.float32)
    codec = RotatedScalarCodec(256, bits=bits)
    missed = codec.decode(codec.encode(vectors)) - vectors
    found = float(np.square(missed).sum() / np.square(vectors).sum())
    assert found == pytest.approx(distortion, rel=0.03)


def test_rotation_spreads_an_outlier():
    """One huge channel costs a per-vector grid everything, a rotated one nothing."""
    vectors = np.random.default_rng(2).standard_normal((500, 64)).astype(np.float32)
    vectors[:, 7] *= 30
    codec = RotatedScalarCodec(64, bits=4)
    missed = codec.decode(codec.encode(vectors)) - vectors
    assert np.square(missed).sum() / np.square(vectors).sum() < 0.011
