"""Saved pools and shells: back as they were, or refused with what is wrong."""

import json

import numpy as np
import pytest

from polykv.errors import DamagedStoreError, InputError, PolykvError, StoreError
from polykv.policy import CompressionPolicy
from polykv.pool import SharedKVPool, open_pool, open_shell, save_pool, save_shell
from tests.pool.test_pool import SHAPE, rows, small

POLICIES = ("reference", "two_tier", "int8", "exact")


@pytest.mark.parametrize("name", POLICIES)
def test_what_was_saved_comes_back(name, tmp_path):
    pool, shell, built, made = small(CompressionPolicy.named(name))
    save_pool(pool, tmp_path / "p")
    save_shell(shell, tmp_path / "s")
    again = open_pool(tmp_path / "p")
    shell_again = open_shell(tmp_path / "s", again)
    assert again.manifest == pool.manifest
    assert shell_again.manifest == shell.manifest
    built.verify(again)
    made.verify(shell_again)
    query = np.ones(8, np.float32)
    one, two = (s.attention_topk_compressed(p, 1, 1, query, 6) for s, p in ((shell, pool), (shell_again, again)))
    assert one.receipt == two.receipt
    np.testing.assert_array_equal(one.value, two.value)


@pytest.fixture
def saved(tmp_path):
    pool, shell, _, _ = small(CompressionPolicy.reference())
    save_pool(pool, tmp_path)
    save_shell(shell, tmp_path)
    return tmp_path, pool


def test_every_flipped_byte_of_the_codes_is_noticed(saved):
    folder, pool = saved
    for name, opened in (("pool", lambda: open_pool(folder)), ("shell", lambda: open_shell(folder, pool))):
        path = folder / f"{name}.codes"
        whole = path.read_bytes()
        for place in range(0, len(whole), 7):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(DamagedStoreError, match=r"layers\[\d\]: block_digest"):
                opened()
        path.write_bytes(whole[:-1])
        with pytest.raises(DamagedStoreError, match="end beyond the file's"):
            opened()
        path.write_bytes(whole)
        opened()


CHANGES = {
    "another id": (lambda raw: raw["manifest"].update(pool_id="0" * 64), "pool_id is stated as 000"),
    "another seed": (lambda raw: raw["manifest"].update(build_seed=9), "block_digest"),
    "no shape": (lambda raw: raw["manifest"].pop("shape"), "lacks the field 'shape'"),
    "an extra key": (lambda raw: raw.update(x=1), "no field 'x'"),
    "a layer short": (lambda raw: raw["layers"].pop(), "pool_id"),
    "a head short": (lambda raw: raw["layers"][0]["key"].pop(), "key has 1 heads, the manifest says 2"),
    "an object dtype": (lambda raw: raw["layers"][0]["key"][0]["norms"].update(dtype="|O"), "not a number's"),
    "no dtype": (lambda raw: raw["layers"][0]["key"][0]["norms"].update(dtype="zz"), "unknown dtype 'zz'"),
    "a huge shape": (
        lambda raw: raw["layers"][0]["key"][0]["norms"].update(shape=[2**40, 2**20]),
        "end beyond the file's",
    ),
    "a negative offset": (lambda raw: raw["layers"][0]["key"][0]["norms"].update(offset=-4), "offset is -4"),
    "a list for a head": (lambda raw: raw["layers"][0].update(key=[[], []]), r"key\[0\] must be a JSON object"),
    "another schema": (lambda raw: raw["manifest"].update(schema_version="pool_manifest_v9"), "expected schema"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_manifest_is_refused(saved, name):
    folder, _ = saved
    change, text = CHANGES[name]
    raw = json.loads((folder / "pool.json").read_text())
    change(raw)
    (folder / "pool.json").write_text(json.dumps(raw))
    with pytest.raises(DamagedStoreError, match=text):
        open_pool(folder)


def test_what_is_not_there_or_not_json(tmp_path, saved):
    with pytest.raises(StoreError, match="holds no saved pool"):
        open_pool(tmp_path / "none")
    folder, _ = saved
    (folder / "pool.json").write_text('{"manifest": NaN}')
    with pytest.raises(DamagedStoreError, match="NaN"):
        open_pool(folder)


def test_a_shell_is_opened_with_its_own_pool_only(saved):
    folder, _ = saved
    other, _ = SharedKVPool.build(rows(4, seed=9), SHAPE, 1)
    with pytest.raises(InputError, match="digest mismatch"):
        open_shell(folder, other)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PolykvError, match="cannot be written"):
        save_pool(small()[0], tmp_path / "file" / "pool")
