"""Receipts say what was done, hold against it, and fail when a digit is changed; clocks do not count."""

from dataclasses import fields, replace

import numpy as np
import pytest

from polykv.errors import InputError, ReceiptError
from polykv.pool import (
    CompressedAttentionSelectionReceipt,
    InjectionReceipt,
    PoolBuildReceipt,
    SharedKVPool,
    ShellMaterializeReceipt,
)
from polykv.receipts import parse_json, pretty_json
from tests.pool.test_pool import SHAPE, rows, small
from tests.replay.seed_samples import golden_pool_and_shell

QUERY = np.linspace(-1, 1, 16).astype(np.float32)


class Cache:
    """A KV cache that remembers its blocks."""

    def __init__(self):
        self.blocks = {}

    def write(self, layer, position, keys, values):
        self.blocks[layer, position] = keys, values


@pytest.fixture(scope="module")
def made():
    pool, shell, built, materialized = golden_pool_and_shell()
    selection = shell.attention_topk_compressed(pool, 1, 0, QUERY, 7).receipt
    cache = Cache()
    injection = pool.inject_into_cache(shell, cache)
    return {
        "pool": (built, (pool,)),
        "shell": (materialized, (shell,)),
        "selection": (selection, (pool, shell, QUERY)),
        "injection": (injection, (pool, shell)),
        "cache": cache,
        "tiers": (pool, shell),
    }


KINDS = {
    "pool": PoolBuildReceipt,
    "shell": ShellMaterializeReceipt,
    "selection": CompressedAttentionSelectionReceipt,
    "injection": InjectionReceipt,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_receipt_holds_and_comes_back_from_its_json(made, kind):
    receipt, evidence = made[kind]
    assert receipt.verify()
    assert len(receipt.verify(*evidence)) > len(receipt.verify())
    again = KINDS[kind].from_dict(parse_json(pretty_json(receipt.to_dict())))
    assert again == receipt
    assert again.digest() == receipt.digest()
    assert next(iter(receipt.to_dict())) == "schema_version"


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_is_not_a_clock_is_checked(made, kind):
    """Change one field at a time: a receipt held against its evidence must fail, whatever field it was."""
    receipt, evidence = made[kind]
    unchecked = []
    for item in fields(receipt):
        changed = _changed(receipt, item)
        if changed is None:
            continue
        try:
            changed.verify(*evidence)
        except (ReceiptError, InputError):
            continue
        unchecked.append(item.name)
    # constants of the code, not findings of the run
    assert set(unchecked) <= {"backend", "key_centering"}


@pytest.mark.parametrize("kind", KINDS)
def test_clocks_take_no_part(made, kind):
    receipt, _ = made[kind]
    later = replace(receipt, **{f.name: 7 for f in fields(receipt) if f.metadata.get("clock")})
    assert later.digest() == receipt.digest()
    assert later == receipt
    assert later.to_dict() != receipt.to_dict()


def test_the_same_input_gives_the_same_digests():
    first, second = golden_pool_and_shell(), golden_pool_and_shell()
    for one, two in zip(first[2:], second[2:], strict=True):
        assert one.digest() == two.digest()
    assert first[0].manifest.pool_id == second[0].manifest.pool_id
    assert first[1].manifest.shell_digest == second[1].manifest.shell_digest


def test_seed_policy_and_tokens_change_the_pools_digest():
    base = SharedKVPool.build(rows(4), SHAPE, 1)[0].digest()
    assert SharedKVPool.build(rows(4), SHAPE, 2)[0].digest() != base
    assert SharedKVPool.build(rows(4, seed=3), SHAPE, 1)[0].digest() != base
    assert small()[0].digest() != base


def test_sizes_and_ratio_count_what_is_needed(made):
    receipt, _ = made["pool"]
    # 24 tokens × 2 layers × 2 heads × K and V; 4 indices of 5 bits in 3 bytes, and a float16 norm
    assert receipt.pool_size_bytes == 24 * 2 * 2 * 2 * (3 + 2)
    assert receipt.raw_size_bytes == 24 * 2 * 2 * 2 * 16 * 4
    assert receipt.compression_ratio == receipt.raw_size_bytes / receipt.pool_size_bytes


def test_the_selections_counts(made):
    receipt, _ = made["selection"]
    assert (receipt.candidate_count, receipt.pool_candidate_count, receipt.shell_candidate_count) == (30, 24, 6)
    assert receipt.selected_count == receipt.decoded_value_vectors == 7
    assert receipt.full_layer_decoded is False
    assert receipt.exact_fallback_required is True
    assert receipt.scoring_path == "fib_pool_and_turbo_shell_compressed_score_topk_value_decode"


def test_another_query_is_noticed(made):
    receipt, (pool, shell, query) = made["selection"]
    with pytest.raises(ReceiptError, match="query_digest"):
        receipt.verify(pool, shell, query + 1)


def test_the_cache_holds_both_tiers_decoded(made):
    pool, shell = made["tiers"]
    blocks = made["cache"].blocks
    assert sorted(blocks) == [(0, 0), (0, 24), (1, 0), (1, 24)]
    np.testing.assert_array_equal(blocks[1, 0][0], pool.decompress_layer(1).keys)
    np.testing.assert_array_equal(blocks[1, 24][1][1], shell.layers[1].values(1))


def _changed(receipt, item):
    """The receipt with one field altered, or None for a clock, the schema, or one that refuses the change itself."""
    if item.metadata.get("clock") or item.name == "schema_version":
        return None
    value = getattr(receipt, item.name)
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, int):
        other = value + 1
    elif isinstance(value, float):
        other = value * 1.01
    elif isinstance(value, str):
        other = value + "0"
    elif isinstance(value, tuple):
        other = value[1:]
    elif value is None:
        other = "0" * 64
    else:
        other = replace(value, seed=value.seed + 1)
    return replace(receipt, **{item.name: other})
