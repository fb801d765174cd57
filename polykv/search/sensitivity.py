"""What a codec costs one stream of one cell, by the error of the attention output: no model needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from polykv.calibration.sample import Sample
from polykv.codecs.base import Codec
from polykv.errors import DimensionMismatch, InputError


def output_cost(sample: Sample, codec: Codec) -> float:
    """Mean over queries of (‖Δo‖/‖o‖)², the sample's rows coded and all else exact; sinks and window stay exact.

    Errors of different cells add up in squares, so this is what an allocation may sum. Raises
    InputError for a sample without probes.
    """
    if not sample.probes:
        raise InputError("the sample has no probes: a sensitivity needs captured queries")
    decoded = codec.decode(codec.encode(sample.rows))
    errors = np.concatenate([probe.errors(decoded)[0] for probe in sample.probes])
    if len(errors) == 0:
        raise InputError("every captured query has an attention output of zero: there is no relative error")
    return float(np.square(errors).mean())


def cost_table(samples: Sequence[Sample], options: Sequence[Sequence[Codec]]) -> tuple[np.ndarray, np.ndarray]:
    """(costs, bytes a row), each [unit, option] float64: `options[unit]` codecs tried on `samples[unit]`."""
    if len(samples) != len(options) or len({len(row) for row in options}) != 1:
        raise DimensionMismatch(
            f"{len(samples)} samples, {len(options)} lists of {[len(row) for row in options]} codecs"
        )
    costs, sizes = np.empty((len(samples), len(options[0]))), np.empty((len(samples), len(options[0])))
    for unit, (sample, codecs) in enumerate(zip(samples, options, strict=True)):
        for place, codec in enumerate(codecs):
            costs[unit, place] = output_cost(sample, codec)
            sizes[unit, place] = codec.nbytes(codec.encode(sample.rows)) / len(sample.rows)
    return costs, sizes


def rank_agreement(proxy: np.ndarray, truth: np.ndarray) -> float:
    """Spearman's correlation of a proxy [unit] with what it stands for [unit], in [−1, 1].

    Raises InputError for fewer than three units, or when one side is constant or not finite.
    """
    proxy, truth = np.asarray(proxy, np.float64), np.asarray(truth, np.float64)
    if proxy.shape != truth.shape or proxy.ndim != 1 or len(proxy) < 3:
        raise InputError(
            f"ranks of {proxy.shape} and {truth.shape} units cannot be compared; both need the same 3 or more"
        )
    for name, values in (("proxy", proxy), ("truth", truth)):
        if not np.isfinite(values).all() or np.ptp(values) == 0:
            raise InputError(f"the {name} is constant or not finite: it ranks nothing")
    return float(spearmanr(proxy, truth).statistic)
