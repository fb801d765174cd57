"""Rows of a search: nats of heads add up, shares are averaged, and ranks are compared among their own."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch and transformers: make hf")

from polykv.search.rows import proxy_agreement, sensitivity_rows
from polykv.search.run import Sensitivity
from polykv.search.units import Proxies
from polykv.types import Cell

pytestmark = pytest.mark.hf


class Part(SimpleNamespace):
    """Hashed by what it is, as units are."""

    __hash__ = object.__hash__


def unit(head, nats, share):
    return Part(cell=Cell(0, head), stream="key", proxies=Proxies(share, share, share, nats), sizes=np.array([4.0 + head]))  # fmt: skip


def test_a_layer_is_its_heads_and_a_head_itself():
    asked = [Sensitivity(0, None, "key", 0.5), Sensitivity(0, 1, "key", 0.1)]
    search = SimpleNamespace(units=[unit(0, 0.1, 0.2), unit(1, 0.3, 0.6)], sensitivities=asked)
    layer, head = sensitivity_rows(search, None, "run")
    assert (layer["expected_kl"], layer["output_error"]) == pytest.approx((0.4, 0.4))
    assert (head["expected_kl"], head["output_error"]) == pytest.approx((0.3, 0.6))
    assert layer["bytes_per_vector"] is None
    untold = SimpleNamespace(units=[unit(0, None, 0.2), unit(1, None, 0.6)], sensitivities=asked)
    assert sensitivity_rows(untold, None, "run")[0]["expected_kl"] is None


def test_layers_and_heads_are_ranked_apart():
    def row(head, proxy, kl):
        return {"stream": "key", "kv_head": head, "true_kl": kl} | dict.fromkeys(
            ("expected_kl", "output_error", "output_cosine_loss", "relative_mse"), proxy
        )

    rows = [row(None, proxy, proxy) for proxy in (1.0, 2.0, 3.0)] + [row(0, proxy, -proxy) for proxy in (1.0, 2.0, 3.0)]
    found = proxy_agreement(rows)["output_error"]
    assert (found["key"], found["pooled"]) == pytest.approx((1, 1))
    assert (found["key heads"], found["pooled heads"]) == pytest.approx((-1, -1))
    assert found["value"] is None
