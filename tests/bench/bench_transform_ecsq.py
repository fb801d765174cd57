"""Milliseconds that transform_ecsq takes to encode and to decode 1,000 vectors, and the bytes they take.

    python tests/bench/bench_transform_ecsq.py [--head-dim 64] [--bits 100] [--vectors 4000] [--repeats 5]

Gaussian vectors of falling variance, fitted to as many others. The best of the repeats; `rows`
decodes 16 single vectors far apart, each in a block of its own. transform_pq of about the same
bytes stands beside it.
"""

import argparse
import json
import time

import numpy as np

from polykv.calibration.transform import MOST_BYTES, fit_basis, fit_transform_pq
from polykv.calibration.transform_ecsq import expected_cost, fit_transform_ecsq, step_for_bits
from polykv.codecs.transform_ecsq import transform_ecsq_codec
from polykv.codecs.transform_pq import transform_pq_codec


def best_ms(call, repeats):
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    return min(times)


def measured(codec, basis, rows, repeats):
    codes = codec.encode(rows)
    apart = np.linspace(0, len(rows) - 1, 16).round().astype(int)
    left = basis.coordinates(codec.decode(codes)) - basis.coordinates(rows)
    return {
        "codec": codec.codec_id,
        "encode_ms_per_1000": round(best_ms(lambda: codec.encode(rows), repeats) * 1000 / len(rows), 3),
        "decode_ms_per_1000": round(best_ms(lambda: codec.decode(codes), repeats) * 1000 / len(rows), 3),
        "decode_16_rows_ms": round(best_ms(lambda: codec.decode(codes, apart), repeats), 3),
        "bytes_per_vector": round(codec.nbytes(codes) / len(rows), 3),
        "side_bytes": codec.side_nbytes(),
        "cost": float(f"{(np.square(left) @ basis.costs).mean():.4g}"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--bits", type=float, default=100, help="bits a vector")
    parser.add_argument("--vectors", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(options.head_dim, options.head_dim)) * np.geomspace(4, 0.1, options.head_dim)[:, None]
    fitted, rows = ((rng.normal(size=(options.vectors, len(mix))) @ mix).astype(np.float32) for _ in range(2))
    basis = fit_basis(fitted, np.eye(len(mix)))
    step = step_for_bits(basis, options.bits)
    codec = transform_ecsq_codec(fit_transform_ecsq(basis, fitted, step))
    entropy = codec.entropy_bytes(rows) / len(rows)
    expected = {"expected_cost": float(f"{expected_cost(basis, step):.4g}"), "entropy_bytes": round(float(entropy), 3)}
    print(json.dumps(measured(codec, basis, rows, options.repeats) | expected))
    n_bytes = max(1, min(MOST_BYTES, round(options.bits / 8)))
    print(
        json.dumps(measured(transform_pq_codec(fit_transform_pq(basis, fitted, n_bytes)), basis, rows, options.repeats))
    )


if __name__ == "__main__":
    main()
