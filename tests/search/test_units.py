"""What a stream's options are expected to take and cost, and streams that nothing depends on."""

from dataclasses import replace

import numpy as np
import pytest

from polykv.errors import InputError
from polykv.search.allocation import allocations
from polykv.search.rates import ENTROPY, FIXED, rate_named
from polykv.search.units import UnitSettings, fit_unit
from polykv.types import STREAMS
from tests.calibration.gonogo_samples import cell

SETTINGS = UnitSettings(sink_tokens=2, recent_window=8)
FLOOR = 3.0


def unit_of(rate, stream="value", nats=None, floor_bytes=FLOOR, **spec):
    if rate.name == ENTROPY.name:
        pytest.importorskip("constriction")
    return fit_unit(
        cell("calibrate", range(6), **spec),
        stream,
        None,
        rate,
        SETTINGS,
        nats,
        None if nats is None else float(nats.trace()),
        floor_bytes,
    )


def error_of(unit, option):
    """Squared error of a codec over the variance of what it codes."""
    codec = unit.rate.codec(unit.fit(option))
    left = codec.decode(codec.encode(unit.rows)) - unit.rows
    return float(np.square(left).sum() / np.square(unit.rows - unit.rows.mean(axis=0)).sum())


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("rate", [FIXED, rate_named("entropy", in_nats=True)], ids=lambda rate: rate.name)
@pytest.mark.parametrize("why", ["no gradient", "a window within the exact one", "both"])
def test_a_stream_that_nothing_depends_on_costs_nothing_and_is_coded_all_the_same(why, rate, stream):
    nats = None if why.startswith("a window") else np.zeros((8, 8))
    window = {} if why == "no gradient" else {"sliding_window": SETTINGS.recent_window}
    unit = unit_of(rate, stream, nats, **window)
    assert (unit.costs == 0).all()
    chosen = allocations(unit.costs[None], unit.sizes[None], FLOOR)
    assert len(chosen) == 1
    assert FLOOR <= chosen[0].total_bytes < 5
    assert error_of(unit, int(chosen[0].options[0])) < 0.2
    assert unit.proxies.expected_kl == (None if nats is None else 0.0)


@pytest.mark.parametrize("stream", STREAMS)
def test_steps_are_finer_where_all_of_a_rate_would_code_next_to_nothing(stream):
    rate, nats = rate_named("entropy", in_nats=True), np.eye(8)
    own, faint = (unit_of(rate, stream, size * nats) for size in (1e-2, 1e-12))
    assert own.rate.options == rate.options
    assert unit_of(rate, stream, 1e-12 * nats, floor_bytes=0.0).sizes.max() < FLOOR
    assert faint.sizes.max() > FLOOR
    assert 0 < faint.costs.min() < faint.costs.max() < 1e-10
    option = int(np.flatnonzero(faint.sizes >= FLOOR)[0])
    assert error_of(faint, option) < 0.2


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("rate", [FIXED, rate_named("entropy", in_nats=True)], ids=lambda rate: rate.name)
def test_costs_are_in_the_nats_of_the_information(rate, stream):
    nats = np.diag(np.linspace(1, 3, 8)) * 1e-3
    one, twice = (unit_of(rate, stream, size * nats) for size in (1, 2))
    dropped = float((one.rows.var(axis=0) * np.diag(nats)).sum())
    assert one.basis.costs.sum() == pytest.approx(1.1 * dropped, rel=0.05)  # METRIC_FLOOR on top
    assert twice.basis.costs == pytest.approx(2 * one.basis.costs)
    assert (np.diff(one.costs) <= 0).all()


@pytest.mark.parametrize("stream", STREAMS)
def test_a_capture_without_queries_is_refused(stream):
    data = cell("calibrate", range(6))
    unasked = replace(data, query_position=np.full_like(data.query_position, -1))
    with pytest.raises(InputError, match="no captured query"):
        fit_unit(unasked, stream, None, FIXED, SETTINGS)
