"""Pool, shell and selection: the reference's hits, the total order, what is refused, what is decoded."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.codecs.exact import ExactCodec
from polykv.errors import CodecError, DimensionMismatch, InputError, NonFiniteError
from polykv.policy import CompressionPolicy
from polykv.pool import SharedKVPool
from polykv.pool.selection import select
from polykv.shape import KvTensorShape
from tests.replay.seed_samples import golden, golden_pool_and_shell

SHAPE = KvTensorShape("gqa", 2, 4, 2, 8, 32)


@pytest.fixture(scope="module")
def tiers():
    return golden_pool_and_shell()


def rows(n, seed=0, shape=SHAPE):
    vectors = np.random.default_rng(seed).normal(size=(n, shape.row_length)).astype(np.float32)
    return [(f"t{i}", vector) for i, vector in enumerate(vectors)]


def small(policy=None, n_pool=4, n_shell=2):
    policy = policy or CompressionPolicy.exact()
    pool, built = SharedKVPool.build(rows(n_pool), SHAPE, 1, policy)
    shell, made = pool.materialize_shell("a", rows(n_shell, seed=1), 2)
    return pool, shell, built, made


@pytest.mark.parametrize("index", range(5))
def test_hits_are_the_references_in_order_and_score(tiers, index):
    pool, shell, _, _ = tiers
    query, expected = golden("model_replay.in")["queries"][index]["query"], golden("model_replay.hits_kmax")[index]
    found = shell.attention_topk_compressed(pool, 1, 1, query, len(expected)).hits
    assert [(hit.token_index, hit.from_shell) for hit in found] == [
        (hit["token_index"], hit["from_shell"]) for hit in expected
    ]
    np.testing.assert_allclose([hit.score for hit in found], [hit["score"] for hit in expected], atol=1e-5, rtol=0)
    np.testing.assert_allclose([hit.value for hit in found], [hit["value"] for hit in expected], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "policy", [CompressionPolicy.named(name) for name in ("reference", "two_tier", "int8", "exact")]
)
def test_every_smaller_budget_is_a_prefix(policy):
    pool, shell, _, _ = small(policy)
    query = np.random.default_rng(5).normal(size=8).astype(np.float32)
    full = shell.attention_topk_compressed(pool, 1, 0, query, 6)
    assert len(full) == 6
    for top_k in range(6):
        some = shell.attention_topk_compressed(pool, 1, 0, query, top_k)
        assert [hit[:3] for hit in some.hits] == [hit[:3] for hit in full.hits[:top_k]]
        np.testing.assert_array_equal(some.value, full.value[:top_k])
    assert len(shell.attention_topk_compressed(pool, 1, 0, query, 10**6)) == 6


def test_ties_go_to_the_pool_and_then_to_the_lower_token():
    row = rows(1)[0][1]
    pool, _ = SharedKVPool.build([("p", row)] * 3, SHAPE, 1, CompressionPolicy.exact())
    shell, _ = pool.materialize_shell("a", [("s", row)] * 2, 2)
    hits = shell.attention_topk_compressed(pool, 0, 0, np.ones(8, np.float32), 5).hits
    assert [(hit.token_index, hit.from_shell) for hit in hits] == [
        (0, False), (1, False), (2, False), (0, True), (1, True),
    ]  # fmt: skip


@settings(max_examples=40)
@given(st.data())
def test_the_order_is_the_naive_one_whatever_ties_there_are(data):
    """Vectors of small whole numbers: every score is exact, and many are equal."""
    n_pool, n_shell = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    numbers = st.lists(st.integers(-2, 2), min_size=4, max_size=4)
    vectors = np.array([data.draw(numbers) for _ in range(n_pool + n_shell)], np.float32)
    query = np.array(data.draw(numbers), np.float32)
    shape, values = KvTensorShape.single_head(4), np.arange((n_pool + n_shell) * 4, dtype=np.float32).reshape(-1, 4)
    k, v = vectors[None, None], values[None, None]
    pool, _ = SharedKVPool.from_arrays(k[:, :, :n_pool], v[:, :, :n_pool], shape, 0, CompressionPolicy.exact())
    shell, _ = pool.shell_from_arrays("a", k[:, :, n_pool:], v[:, :, n_pool:], 0)
    top_k = data.draw(st.integers(0, n_pool + n_shell + 2))
    found = shell.attention_topk_compressed(pool, 0, 0, query, top_k)
    scores = vectors @ query
    naive = sorted(range(len(vectors)), key=lambda t: (-scores[t], t >= n_pool, t))[:top_k]
    assert [t + n_pool * s for t, s in zip(found.token_index, found.from_shell, strict=True)] == naive
    np.testing.assert_array_equal(found.value, values[naive])
    assert found.receipt.selected_shell_count == sum(t >= n_pool for t in naive)


def test_only_selected_values_are_decoded(monkeypatch):
    pool, shell, _, _ = small()
    decoded = []
    decode = ExactCodec.decode
    monkeypatch.setattr(
        ExactCodec, "decode", lambda self, codes, rows=None: decoded.append(rows) or decode(self, codes, rows)
    )
    shell.attention_topk_compressed(pool, 0, 1, np.ones(8, np.float32), 3)
    assert all(rows is not None for rows in decoded)
    assert sum(len(rows) for rows in decoded) == 3


def test_candidates_restrict_the_choice_and_the_counts():
    pool, shell, _, _ = small()
    allowed = np.array([True, False, False, True, False, True])
    found = select(pool, shell, 0, 0, np.ones(8, np.float32), 9, allowed)
    assert {int(t) + 4 * bool(s) for t, s in zip(found.token_index, found.from_shell, strict=True)} == {0, 3, 5}
    assert (found.receipt.pool_candidate_count, found.receipt.shell_candidate_count) == (2, 1)
    assert found.receipt.compressed_key_scores == 6


def test_the_pool_alone_can_be_asked():
    pool, _, _, _ = small()
    found = pool.attention_topk_compressed(0, 0, np.ones(8, np.float32), 2)
    assert not found.from_shell.any()
    assert found.receipt.agent_id is None
    assert found.receipt.scoring_path == "exact_cold_pool_compressed_score_topk_value_decode"


def test_heads_and_layers_are_kept_apart():
    """A row is, for every layer and head, key then value."""
    row = np.arange(SHAPE.row_length, dtype=np.float32)
    pool, _ = SharedKVPool.build([("t", row)], SHAPE, 1, CompressionPolicy.exact())
    layer = pool.decompress_layer(1)
    np.testing.assert_array_equal(layer.keys[0, 0], np.arange(32, 40))
    np.testing.assert_array_equal(layer.values[0, 0], np.arange(40, 48))
    np.testing.assert_array_equal(layer.keys[1, 0], np.arange(48, 56))


def test_cells_of_a_policy_have_their_own_codecs():
    policy = replace(CompressionPolicy.exact(), cells={"1/0": {"pool": CompressionPolicy.int8().pool}})
    pool, _, _, _ = small(policy)
    ids = [[codec.codec_id for codec in layer.key_codecs] for layer in pool.layers]
    assert ids == [["exact_f32_fallback"] * 2, ["uniform", "exact_f32_fallback"]]
    assert pool.manifest.shared_codec == "exact_f32_fallback+uniform"


def test_a_layer_of_few_tokens_is_one_fib_batch_as_in_the_reference():
    """Two tokens × two heads are four vectors, which the reference rounds to float32 before rotating."""
    pool, _, _, _ = small(CompressionPolicy.reference(), n_pool=2)
    codec = pool.layers[0].key_codecs[0]
    stacked = np.stack([row.reshape(2, 2, 2, 8)[0, :, 0] for _, row in rows(2)]).reshape(4, 8)
    whole = codec.encode(stacked)
    for head in range(2):
        np.testing.assert_array_equal(pool.layers[0].key_codes[head]["indices"], whole["indices"][head::2])


def broken_row(index, value):
    found = rows(3)
    found[1][1][index] = value
    return found


REFUSED = {
    "no tokens": (lambda pool: SharedKVPool.build([], SHAPE, 1), InputError, "empty corpus"),
    "short row": (
        lambda pool: SharedKVPool.build([("t0", [0.0] * 63)], SHAPE, 1),
        DimensionMismatch,
        "token 't0': dimension mismatch: expected 64, got 63",
    ),
    "NaN": (
        lambda pool: SharedKVPool.build(broken_row(5, np.nan), SHAPE, 1),
        NonFiniteError,
        r"token 't1' contains non-finite values: row\[5\] is nan",
    ),
    "infinity in a shell": (
        lambda pool: pool.materialize_shell("a", broken_row(7, np.inf), 1),
        NonFiniteError,
        r"agent token 't1' contains non-finite values: row\[7\] is inf",
    ),
    "a zero vector under the reference": (
        lambda pool: SharedKVPool.build([("z", np.zeros(64))] * 4, SHAPE, 1),
        CodecError,
        "norm 0: a zero vector has no direction",
    ),
    "a negative seed": (lambda pool: SharedKVPool.build(rows(2), SHAPE, -1), InputError, "seed is -1"),
    "no agent": (lambda pool: pool.materialize_shell("", rows(1), 1), InputError, "agent_id"),
    "a layer beyond": (
        lambda pool: pool.attention_topk_compressed(2, 0, np.ones(8), 1),
        InputError,
        r"layer 2 out of range \(have 2\)",
    ),
    "a head beyond": (
        lambda pool: pool.attention_topk_compressed(0, 2, np.ones(8), 1),
        InputError,
        r"head_idx 2 out of range \(have 2\)",
    ),
    "a short query": (
        lambda pool: pool.attention_topk_compressed(0, 0, np.ones(7), 1),
        DimensionMismatch,
        "query: dimension mismatch: expected 8, got 7",
    ),
    "a negative budget": (lambda pool: pool.attention_topk_compressed(0, 0, np.ones(8), -1), InputError, "top_k is -1"),
    "arrays of another shape": (
        lambda pool: pool.shell_from_arrays("a", np.ones((2, 2, 3, 8)), np.ones((2, 2, 2, 8)), 1),
        DimensionMismatch,
        "values: dimension mismatch",
    ),
    "a head_dim that fib cannot take": (
        lambda pool: SharedKVPool.build([("t", [1.0] * 12)], KvTensorShape.single_head(6), 1),
        CodecError,
        "fib: head_dim is 6, must be a multiple of 4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_place(name):
    call, error, text = REFUSED[name]
    pool, _, _, _ = small()
    with pytest.raises(error, match=text):
        call(pool)


def test_a_shell_refuses_another_pool():
    _, shell, _, _ = small()
    other, _ = SharedKVPool.build(rows(4, seed=9), SHAPE, 1, CompressionPolicy.exact())
    with pytest.raises(InputError, match=f"digest mismatch: expected {shell.pool_digest}, got {other.digest()}"):
        shell.attention_topk_compressed(other, 0, 0, np.ones(8, np.float32), 1)


def test_an_empty_shell_exists_and_has_no_layers():
    pool, _, _, _ = small()
    shell, made = pool.materialize_shell("idle", [], 3)
    assert (made.num_unique_tokens, made.shell_size_bytes, shell.layers) == (0, 0, ())
    made.verify(shell)
    with pytest.raises(InputError, match="no shell layer 0"):
        shell.attention_topk_compressed(pool, 0, 0, np.ones(8, np.float32), 1)
