"""Peak memory: a writer holds one passage, a read a few times its slabs, whatever the store's size."""

import subprocess
import sys
import tracemalloc

import pytest
from store_samples import fill_store, make_meta, make_passage

from polykv.storage import CaptureStore, CaptureWriter
from polykv.types import LayerSpec

LAYERS = tuple(LayerSpec(i, 4, 2, 64, 64, 0.125) for i in range(2))
PASSAGE_BYTES = 2 * (2 * 2 * 512 * 64 + 2 * 4 * 8 * 64) * 4


def big_meta(passages):
    return make_meta(layers=LAYERS, splits=("confirm",) * passages, n_tokens=512, n_queries=8)


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def write(url, passages):
    meta = big_meta(passages)
    writer = CaptureWriter.create(url, meta)
    fill_store(writer, meta, (make_passage(meta, i, length=512) for i in range(passages)))


def test_a_writers_peak_does_not_grow_with_the_passages(tmp_path):
    write(tmp_path / "warm", 1)
    few = peak_of(lambda: write(tmp_path / "few", 2))
    many = peak_of(lambda: write(tmp_path / "many", 6))
    assert many < few + PASSAGE_BYTES / 2


@pytest.mark.parametrize("passages", [3, 9])
def test_a_cell_read_holds_a_few_times_its_slabs(tmp_path, passages):
    write(tmp_path / "s", passages)
    store = CaptureStore.open(tmp_path / "s")
    store.cell(1, 0, "confirm")
    slabs = PASSAGE_BYTES / len(LAYERS) / 2 * passages
    assert peak_of(lambda: store.cell(1, 1, "confirm")) < 3 * slabs
    assert peak_of(store.verify) < 3 * slabs + 2**20


@pytest.mark.slow
def test_the_process_itself_stays_small(tmp_path):
    """tracemalloc does not see every buffer: the resident set of a fresh process is the last word."""
    peaks = {}
    for passages in (2, 40):
        code = (
            "import sys, resource; sys.path.insert(0, 'tests/storage'); import test_store_memory as t;"
            f"t.write({str(tmp_path / str(passages))!r}, {passages});"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
        peaks[passages] = int(run.stdout) * 1024
    assert peaks[40] < peaks[2] + 8 * PASSAGE_BYTES
