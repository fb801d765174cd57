"""Seconds and held-out error of learning a dictionary: ours, scikit-learn's, and a plain per-vector loop.

    python tests/bench/bench_dictionary.py [--store data/smollm2-sample] [--layer 7] [--skip-slow]

2,048 keys of one layer to learn from, the confirm split's to score on; 256 atoms, 4 a vector,
20 iterations. Needs one thread (OPENBLAS_NUM_THREADS=1, set before Python starts) to compare
algorithms and not machines; CPU seconds of the process beside the clock's, for a machine that is
shared. scikit-learn is compared when it is installed.
"""

import argparse
import importlib.util
import json
import os
import time

import numpy as np

from polykv.calibration import LearnerConfig, learn_dictionary
from polykv.calibration.sample import sample_of_cells
from polykv.codecs.omp import batch_omp, row_energies
from polykv.storage import CaptureStore

CONFIG = LearnerConfig(n_atoms=256, sparsity=4, iterations=20)
N_TRAIN = 2048


def held_out_error(atoms, rows):
    """Every contender's atoms are scored by the same pursuit: 4 atoms, unquantised coefficients."""
    return float(np.sqrt(batch_omp(rows, atoms, CONFIG.sparsity).residuals.sum() / row_energies(rows).sum()))


def ours(rows):
    return learn_dictionary(rows, CONFIG).atoms


def ksvd(rows):
    return learn_dictionary(rows, LearnerConfig(method="ksvd")).atoms


def scikit_learn(rows):
    """MiniBatchDictionaryLearning, 20 passes, started from the same rows, coding by OMP; the best of three penalties.

    Its fit codes with a LASSO of penalty alpha, so rows are scaled to norm 1 on average and
    alpha is picked by training error, its time not counted.
    """
    from sklearn.decomposition import MiniBatchDictionaryLearning

    scaled = rows / np.sqrt(row_energies(rows).mean())
    start = scaled[np.linspace(0, len(rows) - 1, CONFIG.n_atoms).round().astype(int)]
    start = start / np.linalg.norm(start, axis=1, keepdims=True)
    best = None
    for alpha in (0.03, 0.1, 0.3):
        began = _now()
        model = MiniBatchDictionaryLearning(
            CONFIG.n_atoms,
            alpha=alpha,
            max_iter=CONFIG.iterations,
            batch_size=256,
            dict_init=start,
            transform_algorithm="omp",
            transform_n_nonzero_coefs=CONFIG.sparsity,
            random_state=0,
        ).fit(scaled)
        model.transform(scaled)
        seconds = _now() - began
        atoms = model.components_ / np.maximum(np.linalg.norm(model.components_, axis=1, keepdims=True), 1e-12)
        error = held_out_error(atoms.astype(np.float32), rows)
        best = min(best or (np.inf,), (error, seconds, atoms.astype(np.float32)), key=lambda b: b[0])
    return best[1], best[2]


def naive_loop(rows):
    """The textbook: one least-squares fit per vector and pick, then the MOD update, all in float64 numpy."""
    rows = rows.astype(np.float64)
    atoms = rows[np.linspace(0, len(rows) - 1, CONFIG.n_atoms).round().astype(int)]
    atoms = atoms / np.linalg.norm(atoms, axis=1, keepdims=True)
    for _ in range(CONFIG.iterations):
        codes = np.zeros((len(rows), CONFIG.n_atoms))
        for i, row in enumerate(rows):
            picks, left = [], row
            for _ in range(CONFIG.sparsity):
                picks.append(int(np.argmax(np.abs(atoms @ left))))
                weights = np.linalg.lstsq(atoms[picks].T, row, rcond=None)[0]
                left = row - weights @ atoms[picks]
            codes[i, picks] = weights
        gram = codes.T @ codes
        atoms = np.linalg.solve(gram + 1e-7 * np.trace(gram) / len(gram) * np.eye(len(gram)), codes.T @ rows)
        atoms /= np.maximum(np.linalg.norm(atoms, axis=1, keepdims=True), 1e-12)
    return atoms.astype(np.float32)


def timed(learn, rows, repeats):
    """(best [wall, CPU] seconds, atoms): the first call, which compiles, is not counted when there are several."""
    times, atoms = [], None
    for _ in range(repeats):
        began = _now()
        atoms = learn(rows)
        times.append(_now() - began)
    return np.min(times[1:] or times, axis=0), atoms


def _now():
    """Seconds: [wall clock, CPU of this process]."""
    return np.array([time.perf_counter(), time.process_time()])


def real_keys(store_path, layer):
    """([2048, head_dim], [n, head_dim]) float32: keys of all heads, calibrate and confirm splits."""
    store = CaptureStore.open(store_path)
    layer = store.meta.layers[len(store.meta.layers) // 2].layer if layer is None else layer
    heads = range(store.meta.layer(layer).n_kv_heads)
    train, test = (
        sample_of_cells([store.cell(layer, h, split, False) for h in heads], "key", queries_per_passage=0).rows
        for split in ("calibrate", "confirm")
    )
    return layer, train[np.linspace(0, len(train) - 1, min(N_TRAIN, len(train))).round().astype(int)], test


def run(train, test, skip_slow=False):
    """One dict per contender: seconds, held-out relative error, and CPU time relative to ours."""
    contenders = [("polykv mod", *timed(ours, train, 6)), ("polykv ksvd", *timed(ksvd, train, 6))]
    if not skip_slow:
        if importlib.util.find_spec("sklearn"):
            contenders.append(("scikit-learn MiniBatchDictionaryLearning", *scikit_learn(train)))
        contenders.append(("naive loop", *timed(naive_loop, train, 1)))
    base = contenders[0][1]
    return [
        {
            "learner": name,
            "seconds": round(float(seconds[0]), 4),
            "cpu_seconds": round(float(seconds[1]), 4),
            "held_out_error": round(held_out_error(atoms, test), 4),
            "times_ours": round(float(seconds[1] / base[1]), 1),
        }
        for name, seconds, atoms in contenders
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="data/smollm2-sample")
    parser.add_argument("--layer", type=int)
    parser.add_argument("--skip-slow", action="store_true")
    options = parser.parse_args()
    layer, train, test = real_keys(options.store, options.layer)
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "not pinned")
    print(json.dumps({"layer": layer, "train": train.shape, "test": test.shape, "blas_threads": threads}))
    for row in run(train, test, options.skip_slow):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
