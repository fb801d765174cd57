"""Capture store: seconds to write a passage of SmolLM2's shape, to read a cell, to verify, on local disk."""

import tempfile
import time

import numpy as np

from polykv.storage import CaptureStore, CaptureWriter
from polykv.types import CaptureMeta, Document, LayerCapture, LayerSpec, PassageCapture

LAYERS, TOKENS, QUERIES, PASSAGES = 30, 512, 16, 6


def main() -> None:
    specs = tuple(LayerSpec(i, 9, 3, 64, 64, 0.125) for i in range(LAYERS))
    meta = CaptureMeta(
        "bench",
        "",
        "",
        "",
        "",
        (Document("a", "", 0),),
        ("confirm",) * PASSAGES,
        (0,) * PASSAGES,
        specs,
        TOKENS,
        QUERIES,
    )
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as directory:
        writer = CaptureWriter.create(directory, meta)
        seconds = [_timed(lambda i=i: writer.write_passage(_passage(meta, rng, i))) for i in range(PASSAGES)]
        print(
            f"write one passage {np.median(seconds):8.3f} s   ({LAYERS} layers, {TOKENS} tokens, drawing it included)"
        )
        print(f"seal              {_timed(writer.seal):8.3f} s")
        print(f"open              {_timed(lambda: CaptureStore.open(directory)):8.3f} s")
        store = CaptureStore.open(directory)
        seconds = [_timed(lambda c=cell: store.cell(*c, "confirm")) for cell in meta.cells]
        print(f"read one cell     {np.median(seconds):8.3f} s   ({PASSAGES} passages)")
        print(f"verify            {_timed(store.verify):8.3f} s   ({store.verify().n_slabs} slabs)")
        stored = store.inspect()["bytes"]
        print(f"size              {stored['stored'] / 1e6:8.1f} MB  of {stored['uncompressed'] / 1e6:.1f} MB")


def _passage(meta: CaptureMeta, rng: np.random.Generator, index: int) -> PassageCapture:
    def draw(heads: int, rows: int) -> np.ndarray:
        return rng.standard_normal((heads, rows, 64), dtype=np.float32)

    layers = {
        s.layer: LayerCapture(draw(3, TOKENS), draw(3, TOKENS), draw(9, QUERIES), draw(9, QUERIES)) for s in meta.layers
    }
    return PassageCapture(index, np.arange(TOKENS), np.arange(QUERIES), layers)


def _timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
