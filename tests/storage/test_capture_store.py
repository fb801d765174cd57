"""A store gives back what was written, and only that."""

import json
import os
import stat
import uuid

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from store_samples import fill_store, layer_constants, make_meta, make_passage, make_store, projection

from polykv.errors import InputError
from polykv.storage import CaptureStore, CaptureWriter
from polykv.types import LayerSpec

PLACES = ("path", "file_url", "memory")


def place(kind, tmp_path):
    return {
        "path": str(tmp_path / "store"),
        "file_url": f"file://{tmp_path}/store",
        "memory": f"memory://{tmp_path.name}/store",
    }[kind]


def expect_cell(data, meta, passages, spec, kv_head, dtype):
    """`data` holds exactly the written vectors (rounded to `dtype`), NaN and −1 beyond them."""
    group = slice(kv_head * spec.group_size, (kv_head + 1) * spec.group_size)
    chosen = [passages[i] for i in meta.passages(data.split)]
    assert data.passages.tolist() == [p.index for p in chosen]
    assert data.documents.tolist() == [meta.passage_document[p.index] for p in chosen]
    assert data.lengths.tolist() == [p.length for p in chosen]
    for row, passage in enumerate(chosen):
        n, length = len(passage.query_position), passage.length
        layer = passage.layers[spec.layer]
        for got, written in ((data.keys[row], layer.k[kv_head]), (data.values[row], layer.v[kv_head])):
            np.testing.assert_array_equal(got[:length], written.astype(dtype).astype(np.float32))
            assert np.isnan(got[length:]).all()
        for got, written in ((data.queries[row], layer.q[group]), (data.outputs[row], layer.out[group])):
            np.testing.assert_array_equal(got[:, :n], written.astype(dtype).astype(np.float32))
            assert np.isnan(got[:, n:]).all()
        assert data.query_position[row].tolist() == [*passage.query_position, *[-1] * (meta.n_queries - n)]


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_round_trip_of_every_cell_and_split(kind, dtype, tmp_path):
    url = place(kind, tmp_path)
    meta, passages = make_store(url, make_meta(dtype=dtype, labels=4))
    store = CaptureStore.open(url)
    assert store.meta == meta
    assert store.url == url
    for layer, kv_head in meta.cells:
        for split in ("calibrate", "select", "confirm"):
            data = store.cell(layer, kv_head, split)
            assert {a.dtype.name for a in (data.keys, data.values, data.queries, data.outputs)} == {"float32"}
            expect_cell(data, meta, passages, meta.layer(layer), kv_head, dtype)


@st.composite
def metas(draw):
    small = st.integers(1, 4)
    layers = []
    for number in draw(st.lists(st.integers(0, 40), min_size=1, max_size=3, unique=True)):
        heads, group = draw(small), draw(st.integers(1, 3))
        sinks = draw(st.booleans())
        layers.append(LayerSpec(number, heads * group, heads, draw(small), draw(small), 0.5, has_sink_logits=sinks))
    return make_meta(
        dtype=draw(st.sampled_from(["float32", "float16"])),
        labels=draw(st.sampled_from([0, 1, 3])),
        layers=layers,
        splits=draw(st.lists(st.sampled_from(["calibrate", "select", "confirm"]), min_size=1, max_size=4)),
        n_tokens=draw(st.integers(1, 6)),
        n_queries=draw(small),
        hidden=draw(small),
    )


@settings(deadline=None, max_examples=10)
@given(meta=metas(), data=st.data())
def test_round_trip_of_any_shape(meta, data):
    """Ragged lengths, K and V of different widths, MQA, GQA, MHA, passages without queries."""
    passages = []
    for i in range(meta.n_passages):
        length = data.draw(st.integers(1, meta.n_tokens))
        n_queries = data.draw(st.integers(0, meta.n_queries))
        passages.append(make_passage(meta, i, length=length, n_queries=n_queries))
    url = f"memory://any/{uuid.uuid4()}"
    digest = fill_store(CaptureWriter.create(url, meta), meta, passages)
    store = CaptureStore.open(url)
    assert store.digest == digest
    for layer, kv_head in meta.cells:
        for split in set(meta.passage_split):
            cell = store.cell(layer, kv_head, split)
            expect_cell(cell, meta, passages, meta.layer(layer), kv_head, meta.store_dtype)
    assert store.verify().ok


def test_logits_and_constants_of_a_cell(tmp_path):
    meta, passages = make_store(tmp_path / "s", make_meta(labels=100))
    store = CaptureStore.open(tmp_path / "s")
    ids, rows = projection(meta)
    for layer, kv_head in meta.cells:
        spec = meta.layer(layer)
        data = store.cell(layer, kv_head, "confirm")
        constants = layer_constants(meta, spec)
        group = slice(kv_head * spec.group_size, (kv_head + 1) * spec.group_size)
        w_o = constants["w_o"].reshape(meta.hidden_size, spec.n_q_heads, spec.value_dim)[:, group]
        np.testing.assert_array_equal(data.logits.w_o, w_o.transpose(1, 0, 2).astype(np.float32))
        if spec.has_sink_logits:
            np.testing.assert_array_equal(data.sink_logits, constants["sink_logits"][group].astype(np.float32))
        else:
            assert data.sink_logits is None
        for row, index in enumerate(data.passages):
            logits, n = passages[index].logits, len(passages[index].query_position)
            expected = [rows[ids.tolist().index(label)] for label in logits.label_set]
            np.testing.assert_array_equal(data.logits.wlm_gamma[row], expected)
            np.testing.assert_array_equal(data.logits.full[row, :n], logits.full)
            np.testing.assert_array_equal(data.logits.final_rms[row, :n], logits.final_rms)
            assert data.logits.label_token[row].tolist() == [*logits.label_token, *[-1] * (meta.n_queries - n)]
    assert store.cell(2, 0, "confirm", with_logits=False).logits is None


@pytest.mark.parametrize("labels", [0, 4])
@pytest.mark.parametrize("with_logits", [True, False])
def test_cell_digests_come_from_the_seal_alone(labels, with_logits, tmp_path):
    make_store(tmp_path / "s", make_meta(labels=labels))
    store = CaptureStore.open(tmp_path / "s")
    read = {cell: store.cell(*cell, "confirm", with_logits).slab_digests for cell in store.meta.cells}
    for chunk in (tmp_path / "s").rglob("c.*"):
        if chunk.is_file():
            chunk.unlink()
    for cell, digests in read.items():
        assert store.cell_digests(*cell, "confirm", with_logits) == digests
    assert len({tuple(sorted(d.items())) for d in read.values()}) == len(read)


def test_a_slab_digest_is_blake3_of_the_padded_little_endian_bytes(tmp_path):
    meta, passages = make_store(tmp_path / "s", make_meta(dtype="float16"))
    whole = np.full((meta.n_tokens, 8), np.nan, dtype="<f2")
    whole[: passages[2].length] = passages[2].layers[2].k[1]
    digests = CaptureStore.open(tmp_path / "s").cell_digests(2, 1, "confirm")
    assert digests["layers/002/k[2,1]"] == blake3(whole.tobytes()).hexdigest()


def test_the_digests_say_what_a_job_reads(tmp_path):
    make_store(tmp_path / "s", make_meta(labels=4))
    digests = CaptureStore.open(tmp_path / "s").cell_digests(5, 0, "select")
    assert sorted(digests) == [
        "document",
        "layers/005/attributes",
        "layers/005/k[1,0]",
        "layers/005/out[1,0]",
        "layers/005/q[1,0]",
        "layers/005/sink_logits[0]",
        "layers/005/v[1,0]",
        "layers/005/w_o[0]",
        "length[1]",
        "logits/final_rms[1]",
        "logits/full[1]",
        "logits/label_set[1]",
        "logits/label_token[1]",
        "projection/label_id",
        "projection/wlm_gamma",
        "query_position[1]",
        "split",
    ]


def test_same_data_same_digest_and_any_change_another(tmp_path):
    meta, _ = make_store(tmp_path / "a")
    make_store(tmp_path / "b")
    assert CaptureStore.open(tmp_path / "a").digest == CaptureStore.open(tmp_path / "b").digest
    make_store(tmp_path / "c", make_meta(n_queries=2))
    assert CaptureStore.open(tmp_path / "a").digest != CaptureStore.open(tmp_path / "c").digest


def test_a_cell_reads_only_its_own_chunks(tmp_path):
    """Everything that belongs to other cells or splits may be gone."""
    make_store(tmp_path / "s", make_meta(labels=4))
    wanted = CaptureStore.open(tmp_path / "s").cell(2, 1, "confirm")
    for chunk in (tmp_path / "s").glob("layers/*/*/c.*"):
        folders = chunk.relative_to(tmp_path / "s").parts[:-1]
        parts = (*folders, *chunk.name.split("."))
        own = parts[1] == "002" and (
            parts[4:6] in (("2", "1"), ("3", "1")) or (parts[2] == "w_o" and parts[5:] == ("1",))
        )
        if chunk.is_file() and not own:
            chunk.unlink()
    again = CaptureStore.open(tmp_path / "s").cell(2, 1, "confirm")
    np.testing.assert_array_equal(again.keys, wanted.keys)
    np.testing.assert_array_equal(again.logits.w_o, wanted.logits.w_o)


def test_a_read_only_directory_can_be_read(tmp_path):
    make_store(tmp_path / "s", make_meta(labels=2))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*")}
    for path in before:
        os.chmod(path, stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    store = CaptureStore.open(tmp_path / "s")
    store.cell(2, 0, "confirm")
    assert store.verify().ok
    store.inspect()
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "s").rglob("*")} == before


def test_token_ids_without_padding(tmp_path):
    _, passages = make_store(tmp_path / "s")
    store = CaptureStore.open(tmp_path / "s")
    for passage in passages:
        np.testing.assert_array_equal(store.token_ids(passage.index), passage.token_ids)
    with pytest.raises(InputError, match=r"passage 4 .* has 4"):
        store.token_ids(4)


@pytest.mark.parametrize(
    ("layer", "kv_head", "split", "words"),
    [
        (3, 0, "confirm", r"layer 3 .*\[2, 5\]"),
        (2, 2, "confirm", r"layer 2 has KV heads 0 to 1, not 2"),
        (2, -1, "confirm", r"not -1"),
        (2, 0, "test", r"unknown split 'test'"),
    ],
)
def test_what_is_not_there_is_refused_by_name(layer, kv_head, split, words, tmp_path):
    make_store(tmp_path / "s")
    store = CaptureStore.open(tmp_path / "s")
    for read in (store.cell, store.cell_digests):
        with pytest.raises(InputError, match=words):
            read(layer, kv_head, split)


def test_a_split_without_passages_is_refused(tmp_path):
    make_store(tmp_path / "s", make_meta(splits=("select", "confirm")))
    with pytest.raises(InputError, match=r"no passage in split 'calibrate'.*'confirm': 1"):
        CaptureStore.open(tmp_path / "s").cell(2, 0, "calibrate")


def test_inspect_is_json_and_says_what_matters(tmp_path):
    meta, _ = make_store(tmp_path / "s", make_meta(labels=4))
    store = CaptureStore.open(tmp_path / "s")
    found = json.loads(json.dumps(store.inspect()))
    assert found["passages"] == {"total": 4, "calibrate": 1, "select": 1, "confirm": 2}
    assert found["digest"] == store.digest
    assert found["sealed"] is True
    assert found["layers"][1]["sliding_window"] == 4
    assert found["command"] == meta.command
    files = sum(p.stat().st_size for p in (tmp_path / "s").rglob("*") if p.is_file())
    assert 0 < found["bytes"]["stored"] <= files + 4096 * 200
    assert found["n_slabs"] == store.verify().n_slabs
    assert found["logits"]["n_unique_labels"] == 16
