"""What the writer refuses, and what is left when it is stopped."""

import errno
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import zarr.storage
from store_samples import fill_store, layer_constants, make_meta, make_passage, projection

from polykv.errors import (
    DimensionMismatch,
    InputError,
    NonFiniteError,
    StorageFullError,
    StoreError,
    UnsealedStoreError,
)
from polykv.storage import CaptureStore, CaptureWriter
from polykv.types import LayerSpec


@pytest.fixture
def meta():
    return make_meta(dtype="float16", labels=4)


@pytest.fixture
def writer(meta, tmp_path):
    return CaptureWriter.create(tmp_path / "s", meta)


def files(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def with_value(passage, layer, stream, index, value):
    """`passage` with one element changed."""
    capture = passage.layers[layer]
    values = getattr(capture, stream).copy()
    values[index] = value
    return replace(passage, layers={**passage.layers, layer: replace(capture, **{stream: values})})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stream", ["k", "v", "q", "out"])
def test_a_non_finite_number_is_named_and_nothing_is_written(writer, meta, tmp_path, stream, value):
    before = files(tmp_path)
    bad = with_value(make_passage(meta, 1), 2, stream, (1, 0, 3), value)
    head = "kv_head" if stream in "kv" else "q_head"
    with pytest.raises(
        NonFiniteError, match=rf"passage 1, layer 2, {stream}, {head} 1, index \[0, 3\]: {value} is not"
    ):
        writer.write_passage(bad)
    assert files(tmp_path) == before


def test_float16_overflow_is_named_with_its_value(writer, meta):
    bad = with_value(make_passage(meta, 0), 5, "k", (0, 4, 1), 70000.0)
    with pytest.raises(
        NonFiniteError, match=r"passage 0, layer 5, k, kv_head 0, index \[4, 1\]: 70000.0 overflows float16.*65504"
    ):
        writer.write_passage(bad)
    writer.write_passage(with_value(make_passage(meta, 0), 5, "k", (0, 4, 1), 65504.0))


def changed_layer(passage, layer, **arrays):
    return replace(passage, layers={**passage.layers, layer: replace(passage.layers[layer], **arrays)})


def bad_logits(passage, **arrays):
    return replace(passage, logits=replace(passage.logits, **arrays))


BAD_PASSAGES = {
    "index": (lambda p: replace(p, index=4), InputError, "passage 4 is not in the capture, which has passages 0 to 3"),
    "too long": (lambda p: replace(p, token_ids=np.arange(10)), DimensionMismatch, "10 tokens, the store holds 1 to 9"),
    "no tokens": (
        lambda p: replace(p, token_ids=np.array([], int)),
        DimensionMismatch,
        "0 tokens, the store holds 1 to 9",
    ),
    "float tokens": (lambda p: replace(p, token_ids=np.ones(9)), InputError, "token_ids must be one row of integers"),
    "negative token": (lambda p: replace(p, token_ids=np.full(9, -1)), InputError, "token id -1 is negative"),
    "too many queries": (
        lambda p: replace(p, query_position=np.arange(4)),
        DimensionMismatch,
        "4 queries, the store holds 3",
    ),
    "query outside": (
        lambda p: replace(p, query_position=np.array([1, 2, 9])),
        InputError,
        "query position 9 lies outside its 9",
    ),
    "layer missing": (
        lambda p: replace(p, layers={2: p.layers[2]}),
        InputError,
        r"layers missing \[5\], not announced \[\]",
    ),
    "layer unknown": (
        lambda p: replace(p, layers={**p.layers, 7: p.layers[5]}),
        InputError,
        r"missing \[\], not announced \[7\]",
    ),
    "k shape": (
        lambda p: changed_layer(p, 2, k=np.zeros((2, 9, 4), "f4")),
        DimensionMismatch,
        r"layer 2, k: shape \[2, 9, 4\], expected \[2, 9, 8\]",
    ),
    "v length": (
        lambda p: changed_layer(p, 2, v=np.zeros((2, 8, 4), "f4")),
        DimensionMismatch,
        r"layer 2, v: shape \[2, 8, 4\], expected \[2, 9, 4\]",
    ),
    "q heads": (
        lambda p: changed_layer(p, 5, q=np.zeros((4, 3, 4), "f4")),
        DimensionMismatch,
        r"layer 5, q: shape \[4, 3, 4\], expected \[3, 3, 4\]",
    ),
    "no logits": (
        lambda p: replace(p, logits=None),
        InputError,
        "no logits given, the store was laid out for 4 labels",
    ),
    "labels": (
        lambda p: bad_logits(p, label_set=np.arange(5)),
        DimensionMismatch,
        r"logits label_set: shape \[5\], expected \[4\]",
    ),
    "label twice": (lambda p: bad_logits(p, label_set=np.array([1, 2, 2, 3])), InputError, "label 2 stands 2 times"),
    "label outside": (
        lambda p: bad_logits(p, label_token=np.array([0, 4, 1])),
        InputError,
        "label_token 4 lies outside the label set: it is an index 0 to 3",
    ),
    "logit nan": (
        lambda p: bad_logits(p, full=np.full((3, 4), np.nan)),
        NonFiniteError,
        r"logits full, query 0, index \[0\]: nan",
    ),
    "rms zero": (lambda p: bad_logits(p, final_rms=np.zeros(3)), InputError, "final_rms 0.0 is not positive"),
}


@pytest.mark.parametrize("kind", BAD_PASSAGES)
def test_a_passage_that_does_not_fit_is_refused_with_both_numbers(writer, meta, tmp_path, kind):
    harm, error, words = BAD_PASSAGES[kind]
    before = files(tmp_path)
    with pytest.raises(error, match=words):
        writer.write_passage(harm(make_passage(meta, 0)))
    assert files(tmp_path) == before


def test_a_passage_is_written_once(writer, meta):
    writer.write_passage(make_passage(meta, 0))
    with pytest.raises(InputError, match="passage 0 was written already"):
        writer.write_passage(make_passage(meta, 0))


@pytest.mark.parametrize("occupied", ["store", "file inside", "is a file"])
def test_nothing_is_ever_overwritten(tmp_path, meta, occupied):
    target = tmp_path / "target"
    if occupied == "store":
        CaptureWriter.create(target, meta)
    elif occupied == "file inside":
        target.mkdir()
        (target / "thesis.txt").write_text("x")
    else:
        target.write_text("x")
    before = files(tmp_path)
    with pytest.raises(InputError, match="target.*(not empty|is a file)"):
        CaptureWriter.create(target, meta)
    assert files(tmp_path) == before


def test_an_empty_directory_is_a_fine_target(tmp_path, meta):
    (tmp_path / "s").mkdir()
    CaptureWriter.create(tmp_path / "s", meta)


BAD_METAS = {
    "no passages": (lambda m: replace(m, passage_split=(), passage_document=()), "n_passages is 0"),
    "no layers": (lambda m: replace(m, layers=()), "names no layers"),
    "no tokens": (lambda m: replace(m, n_tokens=0), "n_tokens is 0"),
    "no hidden": (lambda m: replace(m, hidden_size=0), "n_labels is 4 but hidden_size is 0"),
    "layer twice": (lambda m: replace(m, layers=(m.layers[0], m.layers[0])), r"layers \[2, 2\] must be distinct"),
    "document": (
        lambda m: replace(m, passage_document=(0, 1, 2, 0)),
        "passage_document 2 lies outside the 2 documents",
    ),
}


@pytest.mark.parametrize("kind", BAD_METAS)
def test_a_meta_that_cannot_be_laid_out_is_refused(tmp_path, meta, kind):
    change, words = BAD_METAS[kind]
    with pytest.raises(InputError, match=words):
        CaptureWriter.create(tmp_path / "s", change(meta))
    assert not (tmp_path / "s").exists()


def test_constants_are_wanted_exactly_where_announced(writer, meta):
    with pytest.raises(InputError, match="layer 2: sink_logits given, but the capture's meta announces none"):
        writer.write_layer_constants(2, sink_logits=np.zeros(4))
    with pytest.raises(InputError, match=r"layer 3 is not in the capture"):
        writer.write_layer_constants(3)
    with pytest.raises(DimensionMismatch, match=r"layers/005/w_o: shape \[12, 6\], expected \[6, 12\]"):
        writer.write_layer_constants(5, w_o=np.zeros((12, 6)))
    with pytest.raises(NonFiniteError, match="layers/005/sink_logits, row 1"):
        writer.write_layer_constants(5, sink_logits=np.array([0, np.nan, 0]))


def test_projection_is_checked(writer, meta, tmp_path):
    with pytest.raises(InputError, match="distinct ids"):
        writer.write_projection(np.array([1, 1]), np.zeros((2, 6)))
    with pytest.raises(DimensionMismatch, match=r"wlm_gamma: shape \[2, 5\], expected \[2, 6\]"):
        writer.write_projection(np.array([1, 2]), np.zeros((2, 5)))
    with pytest.raises(NonFiniteError, match=r"wlm_gamma, row 0, index \[1\]: 100000.0 overflows float16"):
        writer.write_projection(np.array([1, 2]), np.eye(2, 6, 1) * 1e5)
    writer.write_projection(*projection(meta))
    with pytest.raises(InputError, match="written already"):
        writer.write_projection(*projection(meta))
    bare = CaptureWriter.create(tmp_path / "bare", make_meta())
    with pytest.raises(InputError, match="announces no labels"):
        bare.write_projection(np.array([1]), np.zeros((1, 6)))


def test_an_incomplete_store_is_not_sealed(writer, meta, tmp_path):
    with pytest.raises(InputError, match=r"passages \[0, 1, 2, 3\] of 4 are missing"):
        writer.seal()
    for i in range(4):
        writer.write_passage(make_passage(meta, i))
    with pytest.raises(
        InputError, match="layers/002/w_o, layers/005/sink_logits, layers/005/w_o, projection/wlm_gamma not"
    ):
        writer.seal()
    for spec in meta.layers:
        writer.write_layer_constants(spec.layer, **layer_constants(meta, spec))
    writer.write_projection(np.arange(3), np.zeros((3, 6)))
    with pytest.raises(InputError, match="have no row in projection/wlm_gamma"):
        writer.seal()
    with pytest.raises(UnsealedStoreError):
        CaptureStore.open(tmp_path / "s")


def test_a_sealed_store_is_never_written_again(writer, meta):
    fill_store(writer, meta, [make_passage(meta, i) for i in range(4)])
    for write in (
        writer.seal,
        lambda: writer.write_passage(make_passage(meta, 0)),
        lambda: writer.write_layer_constants(2),
        lambda: writer.write_projection(*projection(meta)),
    ):
        with pytest.raises(InputError, match="is sealed"):
            write()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_what_is_written_and_can_be_resumed(writer, meta, tmp_path, monkeypatch, code):
    """The third write fails: an error of its own, earlier passages whole, no seal; with space again it goes on."""
    writer.write_passage(make_passage(meta, 0))
    before = files(tmp_path)
    real, calls = zarr.storage.LocalStore.set, []

    async def full(self, key, value):
        calls.append(key)
        if len(calls) > 2:
            raise OSError(code, "planned")
        await real(self, key, value)

    monkeypatch.setattr(zarr.storage.LocalStore, "set", full)
    with pytest.raises(StorageFullError, match=r"no space left while writing .*array query_position, passage 1"):
        writer.write_passage(make_passage(meta, 1))
    after = files(tmp_path)
    assert {k: after[k] for k in before} == before
    with pytest.raises(UnsealedStoreError):
        CaptureStore.open(tmp_path / "s")
    with pytest.raises(InputError, match=r"passages \[1, 2, 3\] of 4 are missing"):
        writer.seal()
    monkeypatch.undo()
    fill_store(writer, meta, [make_passage(meta, i) for i in (1, 2, 3)])
    assert CaptureStore.open(tmp_path / "s").verify().ok


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs privileges")
    try:
        meta = make_meta(n_tokens=2000, splits=("confirm",) * 20)
        writer = CaptureWriter.create(disk / "s", meta)
        with pytest.raises(StorageFullError, match="no space left while writing"):
            fill_store(writer, meta, (make_passage(meta, i, length=2000) for i in range(20)))
        with pytest.raises(UnsealedStoreError):
            CaptureStore.open(disk / "s")
        assert not list(disk.rglob("*.partial"))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk_at_the_seal_leaves_no_half_seal(writer, meta, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "planned")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageFullError, match=r"file seal\.json"):
        fill_store(writer, meta, [make_passage(meta, i) for i in range(4)])
    assert [p.name for p in (tmp_path / "s").iterdir() if "seal" in p.name] == []
    monkeypatch.undo()
    writer.seal()
    assert CaptureStore.open(tmp_path / "s").verify().ok


def test_any_other_failure_to_write_is_a_store_error_with_its_place(writer, meta, monkeypatch):
    async def broken(self, key, value):
        raise PermissionError(errno.EACCES, "planned")

    monkeypatch.setattr(zarr.storage.LocalStore, "set", broken)
    with pytest.raises(StoreError, match="array token_ids, passage 0 cannot be written: PermissionError") as caught:
        writer.write_passage(make_passage(meta, 0))
    assert not isinstance(caught.value, StorageFullError)


def test_every_chunk_is_written_even_when_it_is_all_padding_or_zero(tmp_path):
    meta = make_meta(layers=(LayerSpec(0, 1, 1, 2, 2, 1.0),), splits=("confirm",))
    passage = make_passage(meta, 0, n_queries=0)
    passage.layers[0].k[:] = 0
    fill_store(CaptureWriter.create(tmp_path / "s", meta), meta, [passage])
    for stream in ("k", "v", "q", "out"):
        assert (tmp_path / f"s/layers/000/{stream}/c.0.0.0.0").is_file()
    assert not CaptureStore.open(tmp_path / "s").cell(0, 0, "confirm").keys[0, : passage.length].any()
