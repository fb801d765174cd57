"""Yesterday's codes: what every codec mode stored and decoded when tests/golden/own_codecs.json was written.

python tests/codecs/own_codes.py        rewrites the file; do it only when a change of codes is meant
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from codec_contract import CODEC_CASES

from polykv.codecs.base import Codes

PATH = Path(__file__).parents[1] / "golden" / "own_codecs.json"
HEAD_DIMS = (8, 20)


def pinned_vectors(n: int, head_dim: int, salt: int) -> np.ndarray:
    """[n, head_dim] float32 from integer arithmetic alone: the same on every machine."""
    index = np.arange(n * head_dim, dtype=np.uint64) + np.uint64(salt)
    mixed = (index * np.uint64(2654435761)) % np.uint64(2**32)
    mixed = (mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519) % np.uint64(2**32)
    return ((mixed.astype(np.float64) / 2**31 - 1) * (1 + index % np.uint64(7))).reshape(n, head_dim).astype(np.float32)


def pack(codes: Codes) -> dict[str, Any]:
    """Codes as JSON: dtype, shape and little-endian bytes of each array."""
    arrays = {
        name: [a.dtype.name, list(a.shape), a.astype(a.dtype.newbyteorder("<")).tobytes().hex()]
        for name, a in codes.arrays.items()
    }
    return {"n_vectors": codes.n_vectors, "head_dim": codes.head_dim, "arrays": arrays}


def unpack(raw: dict[str, Any]) -> Codes:
    arrays = {
        name: np.frombuffer(bytes.fromhex(data), np.dtype(dtype).newbyteorder("<")).reshape(shape).astype(dtype)
        for name, (dtype, shape, data) in raw["arrays"].items()
    }
    return Codes(raw["n_vectors"], raw["head_dim"], arrays)


def entry(name: str, head_dim: int) -> dict[str, Any]:
    codec = CODEC_CASES[name].build(head_dim)
    codes = codec.encode(pinned_vectors(6, head_dim, 1))
    scores = codec.scores(pinned_vectors(2, head_dim, 1000), codes)
    floats = {"decoded": codec.decode(codes), "scores": scores}
    return {
        "config": codec.config(),
        "digest": codec.digest(),
        "nbytes": codec.nbytes(codes),
        "codes": pack(codes),
        **{key: [[float(f"{x:.7g}") for x in row] for row in array] for key, array in floats.items()},
    }


def main() -> None:
    entries = {f"{name}/{head_dim}": entry(name, head_dim) for name in CODEC_CASES for head_dim in HEAD_DIMS}
    body = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
    PATH.write_text("{\n" + body + "\n}\n")


if __name__ == "__main__":
    main()
