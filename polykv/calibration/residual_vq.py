"""Fitting residual VQ on the split calibrate: k-means by stage, in a metric that attention cares about.

settings = ResidualVqSettings(stages=16, bits=8)
arrays = fit_residual_vq(rows, settings)                    # one stream of one cell
policy, artifacts = residual_vq_policy(cells, settings)     # every cell; see policy_files.write_policy
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from polykv.calibration.sample import Sample, sample_of_cells
from polykv.codecs.base import checked_vectors
from polykv.codecs.lloyd import assign, lloyd_step
from polykv.codecs.residual_vq import residual_vq_codec
from polykv.codecs.trained import as_integers, from_integers
from polykv.errors import InputError
from polykv.policy import CompressionPolicy
from polykv.types import STREAMS, CellData

METRICS = ("output_error", "plain")
# A dimension that no query of the sample looked at may matter to the next one.
WEIGHT_FLOOR = 0.05


@dataclass(frozen=True)
class ResidualVqSettings:
    """`stages` codebooks of 2^bits codewords (5 to 8 bits); `iterations` of k-means a stage.

    metric "output_error": keys weighted by what an error in each dimension does to the attention
    output (values need no weights: their errors reach the output as they are); "plain": none.
    gain: rows coded at unit norm with a gain of 2 bytes each. beam: candidates when encoding.
    """

    stages: int = 16
    bits: int = 8
    iterations: int = 8
    metric: str = "output_error"
    gain: bool = False
    beam: int = 4
    seed: int = 0
    sink_tokens: int = 4
    recent_window: int = 32

    def __post_init__(self) -> None:
        limits = {"stages": (1, 64), "bits": (5, 8), "iterations": (1, 1000), "beam": (1, 64)}
        limits |= {"seed": (0, 2**63), "sink_tokens": (0, 2**31), "recent_window": (0, 2**31)}
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InputError(f"residual VQ: {name} is {value!r}, must be an integer from {least} to {most}")
        if self.metric not in METRICS:
            raise InputError(f"residual VQ: metric is {self.metric!r}; known: {', '.join(METRICS)}")

    def check_rows(self, n_rows: int) -> None:
        """Raises InputError when so few calibration vectors cannot fit the codewords of a stage."""
        if n_rows < 2**self.bits:
            raise InputError(
                f"{n_rows} calibration vectors cannot fit {2**self.bits} codewords; capture more passages of split "
                "calibrate, or ask for fewer bits"
            )


def fit_residual_vq(
    rows: np.ndarray, settings: ResidualVqSettings, weights: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """The arrays of a `ResidualVqCodec` artifact fitted to rows [n, head_dim].

    weights [head_dim] > 0: the metric (None: all equal). Codewords are stored as int8. The same rows and seed give
    the same bytes.
    Raises InputError when there are fewer rows than codewords.
    """
    rows = checked_vectors(rows, np.shape(rows)[1] if np.ndim(rows) == 2 else 0, "rows").astype(np.float64)
    n_words = 2**settings.bits
    settings.check_rows(len(rows))
    weights = np.ones(rows.shape[1]) if weights is None else np.asarray(weights, np.float64)
    if weights.shape != rows.shape[1:] or not (np.isfinite(weights) & (weights > 0)).all():
        raise InputError(f"weights must be {rows.shape[1]} positive numbers, got shape {weights.shape}")
    mean, root = rows.mean(axis=0).astype(np.float32), np.sqrt(weights)
    left = (rows - mean) * root
    if settings.gain:
        norms = np.linalg.norm(left, axis=1, keepdims=True)
        left = np.divide(left, norms, out=np.zeros_like(left), where=norms > 0)
    books = []
    for stage in range(settings.stages):
        words = _kmeans(left, n_words, settings.iterations, np.random.default_rng([settings.seed, stage]))
        books.append(as_integers("codebooks", words / root, axis=0))
        # coding sees what is stored, so that a later stage can take an earlier one's rounding back; so does fitting
        kept = from_integers(books[-1], "codebooks").astype(np.float64) * root
        left = left - kept[assign(left, kept)]
    return {
        **{name: np.stack([book[name] for book in books]) for name in books[0]},
        "mean": mean,
        "weights": weights.astype(np.float32),
        "has_gain": np.array([settings.gain], np.uint8),
    }


def key_weights(sample: Sample) -> np.ndarray:
    """[head_dim] float64, mean 1: what an error in each dimension of a key does to the attention output.

    To first order a key error Δk_j moves the output by scale · p_j (v_j − o)(q·Δk_j), so with errors
    uncorrelated across dimensions ‖Δo‖² gains Σ_j (scale · p_j ‖v_j − o‖)² q_d² per dimension d.
    Each query counts relative to its own ‖o‖²; pairs attended exactly do not count. The least weight
    is WEIGHT_FLOOR of the mean. Raises InputError when no query attends to any coded key.
    """
    total = np.zeros(sample.rows.shape[1])
    for probe in sample.probes:
        moved = np.square(probe.values).sum(axis=1)[None, :] - 2 * probe.outputs @ probe.values.T
        size = np.square(probe.outputs).sum(axis=1)
        reach = np.where(probe.exact, 0.0, np.exp(2 * probe.log_weights)) * np.maximum(moved + size[:, None], 0.0)
        seen = size > 0
        total += (reach.sum(axis=1)[seen] / size[seen]) @ np.square(probe.queries[seen])
    if not total.sum() > 0:
        raise InputError("no captured query attends to a coded key: the output-error metric has nothing to weigh")
    return np.maximum(total / total.mean(), WEIGHT_FLOOR)


def residual_vq_policy(
    cells: Iterable[CellData], settings: ResidualVqSettings, name: str = "residual_vq"
) -> tuple[CompressionPolicy, dict[str, dict[str, np.ndarray]]]:
    """(policy, {digest: arrays}) with codebooks of its own for every cell and stream, in both tiers.

    `cells`: the split calibrate, cell by cell; another split is refused. Cells not given stay int8.
    `policy_files.write_policy` writes both.
    """
    artifacts: dict[str, dict[str, np.ndarray]] = {}
    overrides = {}
    for data in cells:
        if data.split != "calibrate":
            raise InputError(
                f"codebooks are fitted on split calibrate alone, got {data.split!r} of cell {data.cell.key}"
            )
        tier = {}
        for stream in STREAMS:
            weighted = stream == "key" and settings.metric == "output_error"
            sample = sample_of_cells(
                [data], stream, settings.sink_tokens, settings.recent_window, 16 if weighted else 0
            )
            arrays = fit_residual_vq(sample.rows, settings, key_weights(sample) if weighted else None)
            codec = residual_vq_codec(arrays, settings.stages, settings.beam)
            artifacts[codec.artifact] = arrays
            tier[stream] = {
                "id": codec.codec_id,
                "artifact": codec.artifact,
                "stages": codec.stages,
                "beam": codec.beam,
            }
        overrides[data.cell.key] = {"pool": tier, "shell": tier}
    if not overrides:
        raise InputError("no cell was given: nothing to fit")
    int8 = CompressionPolicy.int8()
    policy = CompressionPolicy(
        name,
        sink_tokens=settings.sink_tokens,
        recent_window=settings.recent_window,
        pool=int8.pool,
        shell=int8.shell,
        cells=overrides,
        artifacts={digest: f"artifacts/{digest}.npz" for digest in artifacts},
    )
    return policy, artifacts


def _kmeans(rows: np.ndarray, n_words: int, iterations: int, rng: np.random.Generator) -> np.ndarray:
    """[n_words, d] float64 centroids, the first held at zero; starts from rows drawn without repeat."""
    words = np.vstack([np.zeros((1, rows.shape[1])), rows[rng.choice(len(rows), n_words - 1, replace=False)]])
    for _ in range(iterations):
        words, _ = lloyd_step(rows, words)
        words[0] = 0.0
    return words
