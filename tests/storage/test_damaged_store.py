"""Whatever happened to a store's files, a reader says so by array, passage, layer and head; on disk and on S3."""

import json

import fsspec
import numpy as np
import pytest
from moto.server import ThreadedMotoServer
from store_samples import fill_store, make_meta, make_passage, make_store

from polykv.errors import DamagedStoreError, InputError, PolykvError, SchemaVersionError, StoreError, UnsealedStoreError
from polykv.storage import CaptureStore, CaptureWriter

META = make_meta(labels=4)

# file of one chunk -> the words that must name it; each lies on the way of cell (5, 0, "confirm")
CHUNKS = {
    "layers/005/k/c.2.0.0.0": "array layers/005/k, passage 2, layer 5, kv_head 0",
    "layers/005/v/c.3.0.0.0": "array layers/005/v, passage 3, layer 5, kv_head 0",
    "layers/005/q/c.2.0.0.0": "array layers/005/q, passage 2, layer 5, kv_head 0",
    "layers/005/out/c.3.0.0.0": "array layers/005/out, passage 3, layer 5, kv_head 0",
    "layers/005/sink_logits/c.0": "array layers/005/sink_logits, layer 5, kv_head 0",
    "layers/005/w_o/c.0.0": "array layers/005/w_o, layer 5, kv_head 0",
    "length/c.2": "array length, passage 2",
    "query_position/c.3.0": "array query_position, passage 3",
    "document/c.0": "array document",
    "logits/label_set/c.2.0": "array logits/label_set, passage 2",
    "logits/full/c.2.0.0": "array logits/full, passage 2",
    "logits/final_rms/c.3.0": "array logits/final_rms, passage 3",
    "logits/label_token/c.3.0": "array logits/label_token, passage 3",
    "projection/label_id/c.0": "array projection/label_id",
    "projection/wlm_gamma/c.0.0": "array projection/wlm_gamma",
}


def flip(data, position=-20, bit=0):
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


DAMAGE = {
    "missing": (lambda data: None, "its file is missing"),
    "empty": (lambda data: b"", "its file is empty (0 bytes)"),
    "truncated": (lambda data: data[: len(data) // 2], "cannot be decoded"),
    "flipped": (lambda data: flip(data), "cannot be decoded"),
}


class Place:
    """A sealed store whose files can be damaged and are put back after each test."""

    def __init__(self, url, options):
        self.url, self.options = url, options
        make_store(url, META, storage_options=options)
        self.fs, self.path = fsspec.url_to_fs(url, **options)
        self._saved = {}

    def open(self):
        return CaptureStore.open(self.url, storage_options=self.options)

    def read(self, name):
        return self.fs.cat_file(f"{self.path}/{name}")

    def put(self, name, data):
        self._saved.setdefault(name, self.read(name))
        if data is None:
            self.fs.rm_file(f"{self.path}/{name}")
        else:
            self.fs.pipe_file(f"{self.path}/{name}", data)

    def edit_json(self, name, change):
        body = json.loads(self.read(name))
        change(body)
        self.put(name, json.dumps(body).encode())

    def repair(self):
        for name, data in self._saved.items():
            self.fs.pipe_file(f"{self.path}/{name}", data)
        self._saved.clear()


@pytest.fixture(scope="module")
def s3():
    """storage_options of a real S3 server in a thread, with one bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    fsspec.filesystem("s3", **options).mkdir("captures")
    yield options
    server.stop()


@pytest.fixture(scope="module")
def disk_place(tmp_path_factory):
    return Place(str(tmp_path_factory.mktemp("damage") / "store"), {})


@pytest.fixture(scope="module")
def s3_place(s3):
    return Place("s3://captures/damage", s3)


ON_S3_SLOWLY = ["disk", pytest.param("s3", marks=pytest.mark.slow)]


@pytest.fixture(params=["disk", "s3"])
def place(request):
    found = request.getfixturevalue(f"{request.param}_place")
    yield found
    found.repair()


def expect_named(place, chunk, kind):
    harm, words = DAMAGE[kind]
    place.put(chunk, harm(place.read(chunk)))
    with pytest.raises(DamagedStoreError) as caught:
        place.open().cell(5, 0, "confirm")
    assert f"{CHUNKS[chunk]}: " in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_damaged_chunk_is_named(disk_place, chunk, kind):
    try:
        expect_named(disk_place, chunk, kind)
        if kind == "missing":
            report = disk_place.open().verify()
            assert [d.array for d in report.damage] == [chunk.split("/c.")[0]]
            assert CHUNKS[chunk] in report.damage[0].reason
    finally:
        disk_place.repair()


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize(
    "chunk", [pytest.param(c, marks=() if c.startswith("layers/005/k") else pytest.mark.slow) for c in CHUNKS]
)
def test_a_damaged_chunk_on_s3_is_named(s3_place, chunk, kind):
    try:
        expect_named(s3_place, chunk, kind)
    finally:
        s3_place.repair()


def test_a_sound_chunk_in_the_wrong_place_is_refused(place):
    place.put("layers/002/k/c.2.0.0.0", place.read("layers/002/k/c.2.1.0.0"))
    with pytest.raises(
        DamagedStoreError, match="layers/002/k, passage 2, layer 2, kv_head 0: its digest is .* the seal says"
    ):
        place.open().cell(2, 0, "confirm")
    assert place.open().cell(2, 1, "confirm").keys.shape == (2, 9, 8)


def test_a_missing_chunk_that_would_read_as_its_own_value_is_refused(tmp_path):
    """A passage without queries is all padding: the fill value would even have the right digest."""
    meta = make_meta(splits=("confirm",))
    writer = CaptureWriter.create(tmp_path / "s", meta)
    fill_store(writer, meta, [make_passage(meta, 0, n_queries=0)])
    (tmp_path / "s/layers/002/q/c.0.0.0.0").unlink()
    with pytest.raises(DamagedStoreError, match=r"layers/002/q, passage 0, layer 2, kv_head 0: its file is missing"):
        CaptureStore.open(tmp_path / "s").cell(2, 0, "confirm")


@pytest.mark.parametrize("place", ON_S3_SLOWLY, indirect=True)
def test_verify_lists_every_damage_and_counts_progress(place):
    for chunk in CHUNKS:
        place.put(chunk, flip(place.read(chunk)))
    seen = []
    report = place.open().verify(lambda done, total: seen.append((done, total)))
    assert not report.ok
    assert {d.array for d in report.damage} == {chunk.split("/c.")[0] for chunk in CHUNKS}
    places = {(d.array, d.passage, d.layer, d.kv_head) for d in report.damage}
    assert ("layers/005/k", 2, 5, 0) in places
    assert ("projection/wlm_gamma", None, None, None) in places
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (report.n_slabs, report.n_slabs)
    json.dumps(report.to_dict())


ARRAY_METADATA = {
    "missing": (lambda place, name: place.put(name, None), "its zarr.json is missing"),
    "empty": (lambda place, name: place.put(name, b""), r"its zarr.json \(0 bytes\) cannot be understood"),
    "garbage": (lambda place, name: place.put(name, b"{]"), r"its zarr.json \(2 bytes\) cannot be understood"),
    "shape": (lambda place, name: place.edit_json(name, lambda b: b.update(shape=[4, 2, 9, 99])), "its shape is"),
    "dtype": (
        lambda place, name: place.edit_json(name, lambda b: b.update(data_type="int32", fill_value=0)),
        "its dtype is",
    ),
}


@pytest.mark.parametrize("kind", ARRAY_METADATA)
def test_damaged_array_metadata_is_named(disk_place, kind):
    harm, words = ARRAY_METADATA[kind]
    harm(disk_place, "layers/002/v/zarr.json")
    try:
        with pytest.raises(DamagedStoreError, match=f"array layers/002/v is damaged: {words}"):
            disk_place.open().cell(2, 0, "confirm")
        assert {d.array for d in disk_place.open().verify().damage} == {"layers/002/v"}
    finally:
        disk_place.repair()


ROOT_FILES = {
    "no seal": (lambda p: p.put("seal.json", None), UnsealedStoreError, "no seal.json: its capture never finished"),
    "empty seal": (lambda p: p.put("seal.json", b""), DamagedStoreError, r"seal.json is damaged \(0 bytes\)"),
    "cut seal": (lambda p: p.put("seal.json", p.read("seal.json")[:-50]), DamagedStoreError, "not valid JSON"),
    "seal of lists": (lambda p: p.put("seal.json", b"[]"), DamagedStoreError, "it holds a list, not an object"),
    "seal without slabs": (
        lambda p: p.edit_json("seal.json", lambda b: b.pop("slabs")),
        DamagedStoreError,
        "lacks 'slabs'",
    ),
    "another digest": (
        lambda p: p.edit_json("seal.json", lambda b: b["slabs"]["layers/005/k"].__setitem__(1, "0" * 64)),
        DamagedStoreError,
        "its own digest is",
    ),
    "another meta": (
        lambda p: p.edit_json("zarr.json", lambda b: b["attributes"]["meta"].update(model_id="other")),
        DamagedStoreError,
        "its meta has digest .* the seal says",
    ),
    "no meta": (
        lambda p: p.edit_json("zarr.json", lambda b: b["attributes"].pop("meta")),
        DamagedStoreError,
        "no meta",
    ),
    "no zarr.json": (lambda p: p.put("zarr.json", None), DamagedStoreError, "its zarr.json is missing"),
    "empty zarr.json": (lambda p: p.put("zarr.json", b""), DamagedStoreError, r"zarr.json \(0 bytes\) is damaged"),
    "newer schema": (
        lambda p: p.edit_json("zarr.json", lambda b: b["attributes"].update(schema="polykv_capture_v2")),
        SchemaVersionError,
        "'polykv_capture_v2', this release reads 'polykv_capture_v1'",
    ),
    "newer seal": (
        lambda p: p.edit_json("seal.json", lambda b: b.update(schema="polykv_capture_v2")),
        SchemaVersionError,
        "reads 'polykv_capture_v1'",
    ),
    "another zarr": (
        lambda p: p.edit_json("zarr.json", lambda b: b["attributes"].update(schema=None)),
        InputError,
        "not a capture store",
    ),
}


@pytest.mark.parametrize("kind", ROOT_FILES)
def test_root_files_are_checked_before_anything_is_read(place, kind):
    harm, error, words = ROOT_FILES[kind]
    harm(place)
    with pytest.raises(error, match=words):
        place.open()


@pytest.mark.parametrize("flips", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_a_bit_flipped_anywhere_is_an_error_or_changes_nothing(disk_place, flips):
    """Metadata that does not matter may change unseen, data never."""
    sound = disk_place.open().cell(5, 0, "confirm")
    rng = np.random.default_rng(11)
    files = [f.removeprefix(disk_place.path + "/") for f in disk_place.fs.find(disk_place.path)]
    refused = 0
    for name in rng.choice(files, flips):
        data = disk_place.read(name)
        disk_place.put(name, flip(data, rng.integers(len(data)), rng.integers(8)))
        try:
            store = disk_place.open()
            refused += not store.verify().ok
            found = store.cell(5, 0, "confirm")
            for field in ("keys", "values", "queries", "outputs", "query_position", "lengths", "sink_logits"):
                np.testing.assert_array_equal(getattr(found, field), getattr(sound, field))
        except PolykvError:
            refused += 1
        finally:
            disk_place.repair()
    assert refused > flips / 2


NOT_STORES = {
    "nothing there": (lambda tmp: tmp / "none", InputError, "does not exist or is empty"),
    "an empty directory": (lambda tmp: tmp, InputError, "does not exist or is empty"),
    "a file": (lambda tmp: _file(tmp / "store.zarr"), InputError, "is a file, a capture store is a directory"),
    "another directory": (lambda tmp: _file(tmp / "notes.txt").parent, InputError, r"not a capture store.*notes\.txt"),
    "an unknown protocol": (lambda tmp: "gopher://x/y", InputError, "gopher"),
    "only memory": (lambda tmp: "memory://nowhere/at/all", InputError, "does not exist or is empty"),
}


def _file(path):
    path.write_text("x")
    return path


@pytest.mark.parametrize("kind", NOT_STORES)
def test_what_is_not_a_store_is_refused(kind, tmp_path):
    where, error, words = NOT_STORES[kind]
    with pytest.raises(error, match=words):
        CaptureStore.open(where(tmp_path))


def test_an_unfinished_capture_is_refused_wherever_it_stopped(tmp_path):
    meta = make_meta()
    writer = CaptureWriter.create(tmp_path / "s", meta)
    for step in range(3):
        with pytest.raises(UnsealedStoreError, match=r"no seal\.json"):
            CaptureStore.open(tmp_path / "s")
        writer.write_passage(make_passage(meta, step))


def test_a_bucket_that_is_not_there_and_a_server_that_is_not(s3):
    with pytest.raises(InputError, match="does not exist"):
        CaptureStore.open("s3://no-such-bucket/x", storage_options=s3)
    dead = {**s3, "endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    with pytest.raises(StoreError, match="cannot be read"):
        CaptureStore.open("s3://captures/x", storage_options=dead)


def test_s3_round_trip_with_options_from_the_environment(s3, s3_place, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    on_s3 = CaptureStore.open(s3_place.url)
    assert on_s3.verify().ok
    assert on_s3.inspect()["bytes"]["stored"] > 0
    with pytest.raises(InputError, match="holds a sealed store; nothing is overwritten"):
        CaptureWriter.create(s3_place.url, META)


def test_disk_and_s3_hold_the_same(disk_place, s3_place):
    here, there = disk_place.open(), s3_place.open()
    assert here.digest == there.digest
    np.testing.assert_array_equal(here.cell(2, 1, "confirm").keys, there.cell(2, 1, "confirm").keys)
