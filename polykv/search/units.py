"""The units a search shares bytes over: one stream of one cell, what each rate is expected to cost it.

unit = fit_unit(data, "key", rotation, FIXED, settings)   # data: the cell's split calibrate
unit.sizes, unit.costs                                    # of every option of the rate, as expected here
unit.fit(9)                                               # the arrays of the tenth option's codec
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.calibration.sample import Probe, Sample, sample_of_cells
from polykv.calibration.transform import Basis, blended_metric, fit_basis, key_metric, value_metric
from polykv.codecs.registry import build_codec
from polykv.errors import InputError
from polykv.rotation import Rotation
from polykv.search.rates import Arrays, Rate, reaching
from polykv.types import Cell, CellData

# The disturbance that sensitivities are measured with: the same for all units and fitted to none, so
# that what differs is how much a unit matters, not how well a codec suits it. Coarser ones leave the range of errors
# in which gradients say what they cost.
DISTURBANCE = {"id": "rotated_scalar", "bits": 3}
_QUERIES_PER_PASSAGE = 16
_BYTES_OF_NOTHING = 0.05  # an option that codes nothing still has a place in a stream
# A stream that costs less when it is dropped costs nothing: squares of such numbers are lost in float32.
_NO_COST = 1e-20


@dataclass(frozen=True)
class UnitSettings:
    """What stays exact, whatever is searched, and the seed of the codewords."""

    sink_tokens: int = 4
    recent_window: int = 32
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Proxies:
    """What DISTURBANCE does to one unit, by measures that need no model.

    output_error: mean over queries of (‖Δo‖/‖o‖)²; output_cosine_loss: 1 − mean cosine of the
    attention output; relative_mse: Σ‖error‖² / Σ‖vector‖²; expected_kl: nats a predicted token, by
    the model's gradients, each token's own (None: they were not taken).
    """

    output_error: float
    output_cosine_loss: float
    relative_mse: float
    expected_kl: float | None


@dataclass(frozen=True, eq=False)
class Unit:
    """rows [n, head_dim] float32 are what its codec sees: without sinks, keys before RoPE where it is undone.

    sizes, costs [option] float64: bytes a vector, and the squared relative error of the attention
    output (with a Fisher information: nats a predicted token), expected of every option of the rate and
    corrected by what one of them really did; costs are 0 where no error of the stream reaches anything.
    """

    cell: Cell
    stream: str
    rate: Rate
    basis: Basis
    rows: np.ndarray
    sizes: np.ndarray
    costs: np.ndarray
    proxies: Proxies
    seed: int

    @property
    def key(self) -> str:
        """The unit's name: "layer/kv_head/stream"."""
        return f"{self.cell.key}/{self.stream}"

    def fit(self, option: int) -> Arrays:
        """The arrays of the codec of one option (its index)."""
        return self.rate.fit(self.basis, self.rows, self.rate.options[option], self.seed)


def fit_unit(
    data: CellData,
    stream: str,
    rotation: Rotation | None,
    rate: Rate,
    settings: UnitSettings,
    nats: np.ndarray | None = None,
    expected_kl: float | None = None,
    floor_bytes: float = 0.0,
) -> Unit:
    """Basis, expectations and proxies of one stream of a cell. `rotation`: undone before keys are coded.

    nats [head_dim, head_dim]: the unit's Fisher information (`polykv.certify.fisher`), None: the metric is
    the output's alone. expected_kl: of the same source, for the proxies. floor_bytes: what the largest
    option has to take, where the rate's own are all smaller its steps are made finer. A stream that nothing
    depends on (every query reaches it within the recent window, or the model drops what is read) is coded by how
    it varies, at no cost.

    Raises InputError for another split than calibrate, or a capture without queries.
    """
    if data.split != "calibrate":
        raise InputError(f"codecs are fitted on split calibrate alone, got {data.split!r} of cell {data.cell.key}")
    sample = sample_of_cells([data], stream, settings.sink_tokens, settings.recent_window, _QUERIES_PER_PASSAGE)
    if not sample.probes:
        raise InputError(f"cell {data.cell.key} has no captured query in split calibrate; capture with --queries")
    turned = rotation if stream == "key" else None
    positions = np.concatenate([np.arange(settings.sink_tokens, length) for length in data.lengths])
    rows = sample.rows if turned is None else turned.undo(sample.rows, positions)
    metric = _metric(sample, stream, turned, nats, rows)
    basis = fit_basis(rows, np.eye(rows.shape[1]) if metric is None else metric)
    sizes, costs = _expectations(basis, rows, rate, settings.seed)
    if metric is None or sizes.max() < floor_bytes:
        rate = reaching(rate, basis)
        sizes, costs = _expectations(basis, rows, rate, settings.seed)
    if metric is None:
        costs = np.zeros_like(costs)
    return Unit(data.cell, stream, rate, basis, rows, sizes, costs, _proxies(sample, expected_kl), settings.seed)


def _metric(
    sample: Sample, stream: str, turned: Rotation | None, nats: np.ndarray | None, rows: np.ndarray
) -> np.ndarray | None:
    """[head_dim, head_dim] float64: what errors of rows cost, by outputs or with `nats`; None: nothing."""
    if not any(_reads_coded(probe).any() for probe in sample.probes):
        metric = nats
    else:
        output = key_metric(sample, turned) if stream == "key" else value_metric(sample)
        metric = output if nats is None else blended_metric(nats, output, rows)
    if metric is None or not np.trace(metric) * rows.astype(np.float64).var(axis=0).max() > _NO_COST:
        return None
    return metric


def _reads_coded(probe: Probe) -> np.ndarray:
    """[query] bool: which have an output, and not of exact tokens alone."""
    return (probe.mask & ~probe.exact).any(axis=1) & (np.linalg.norm(probe.outputs, axis=1) > 0)


def _expectations(basis: Basis, rows: np.ndarray, rate: Rate, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(bytes a vector, cost) of every option, [option] float64."""
    sizes = np.array([rate.size(basis, option) for option in rate.options])
    costs = np.array([rate.cost(basis, option) for option in rate.options])
    codec = rate.codec(rate.fit(basis, rows, rate.options[rate.reference], seed))
    codes = codec.encode(rows)
    cost, size = basis.cost(codec.decode(codes), rows), codec.nbytes(codes) / len(rows)
    if costs[rate.reference] > 0:
        costs *= cost / costs[rate.reference]
    if sizes[rate.reference] > 0:
        sizes *= size / sizes[rate.reference]
    return np.maximum(sizes, _BYTES_OF_NOTHING), costs


def unit_entry(unit: Unit, arrays: Arrays) -> dict[str, str]:
    """The codec of fitted arrays, as a policy names it."""
    codec = unit.rate.codec(arrays)
    return {"id": codec.codec_id, "artifact": codec.artifact}


def _proxies(sample: Sample, expected_kl: float | None) -> Proxies:
    codec = build_codec(DISTURBANCE, sample.rows.shape[1])
    decoded = codec.decode(codec.encode(sample.rows))
    errors, cosines = [], []
    for probe in sample.probes:
        outputs = probe.outputs_of(decoded)
        size = np.linalg.norm(probe.outputs, axis=1)
        seen = size > 0
        errors.append(np.linalg.norm(outputs - probe.outputs, axis=1)[seen] / size[seen])
        norms = np.linalg.norm(outputs, axis=1)[seen] * size[seen]
        dots = np.einsum("qd,qd->q", outputs[seen], probe.outputs[seen])
        cosines.append(np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0))
    rows = sample.rows.astype(np.float64)
    return Proxies(
        output_error=_mean(np.square(np.concatenate(errors))),
        output_cosine_loss=_mean(1 - np.concatenate(cosines)),
        relative_mse=float(np.square(decoded - rows).sum() / max(np.square(rows).sum(), 1e-300)),
        expected_kl=expected_kl,
    )


def _mean(losses: np.ndarray) -> float:
    """0 of none: a pruned head has no output that an error could change."""
    return float(losses.mean()) if len(losses) else 0.0
