"""A capture's arguments are checked when they are given."""

import numpy as np
import pytest

from polykv.capture.config import CaptureConfig, select_layers
from polykv.capture.queries import query_positions
from polykv.errors import InputError


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": ""}, "model is empty"),
        ({"corpus": ()}, "corpus is \\(\\)"),
        ({"corpus": "a.txt"}, "give a tuple"),
        ({"n_tokens": 3}, "n_tokens is 3, must be an integer ≥ 4"),
        ({"n_passages": 0}, "n_passages is 0"),
        ({"n_queries": 0}, "n_queries is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"n_labels": -1}, "n_labels is -1"),
        ({"n_labels": 5}, "n_labels is 5, fewer than the 8 next tokens it must hold: ask for --labels 8 or more"),
        ({"layer_stride": 0}, "layer_stride is 0"),
        ({"shared_tokens": 0}, "shared_tokens is 0"),
        ({"store_dtype": "int8"}, "known: float32, float16"),
        ({"compute_dtype": "float16"}, "known: float32, bfloat16"),
        ({"split_by": "token"}, "known: auto, document, region"),
        ({"split_fractions": (0.5, 0.5)}, "has 2 numbers, needs 3"),
        ({"split_fractions": (0.5, 0.5, 0.5)}, "sum to 1"),
        ({"split_fractions": (float("nan"), 0.5, 0.5)}, "sum to 1"),
        ({"min_tokens": 300}, r"256 tokens \(--tokens\) are shorter than the 300 .* ask for --tokens 300 or more"),
        ({"layers": (1,), "layer_stride": 2}, "choose one"),
    ],
)
def test_arguments_that_cannot_be_meant(change, told):
    with pytest.raises(InputError, match=told):
        CaptureConfig(**{"model": "m", "corpus": ("a.txt",), **change})


@pytest.mark.parametrize(
    ("layers", "stride", "expected"),
    [(None, None, (0, 1, 2, 3, 4)), (None, 2, (0, 2, 4)), ((3, 1, 3), None, (1, 3)), (None, 9, (0,))],
)
def test_layers_kept(layers, stride, expected):
    assert select_layers(5, layers, stride) == expected


@pytest.mark.parametrize(("layers", "told"), [((5,), "layer 5 does not exist"), ((-1,), "layer -1"), ((), "empty")])
def test_layers_the_model_lacks(layers, told):
    with pytest.raises(InputError, match=told):
        select_layers(5, layers)


@pytest.mark.parametrize(
    ("length", "n_queries", "arguments", "expected"),
    [
        (128, 4, {}, [96, 106, 116, 126]),
        (256, 3, {}, [160, 207, 254]),
        (128, 1, {}, [111]),
        (128, 3, {"shared_tokens": 20, "recent_window": 10}, [30, 78, 126]),
        (64, 2, {}, [47, 62]),
        (20, 4, {}, [14, 15, 17, 18]),
        (6, 8, {}, [3, 4]),
        (4, 8, {}, [2]),
        (3, 8, {}, [1]),
    ],
)
def test_query_positions_lie_evenly_and_have_a_next_token(length, n_queries, arguments, expected):
    np.testing.assert_array_equal(query_positions(length, n_queries, **arguments), expected)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((2, 1), "no place for a query: a passage of 2 tokens with 1 shared"),
        ((100, 4, 100), "with 100 shared"),
        ((100, 4, 0), "with 0 shared"),
        ((128, 40, None, 32, True), "40 queries asked, but a passage of 128 tokens has 31 places"),
    ],
)
def test_query_positions_that_do_not_exist(arguments, told):
    with pytest.raises(InputError, match=told):
        query_positions(*arguments)


@pytest.mark.parametrize("length", range(3, 140))
def test_query_positions_are_distinct_and_inside(length):
    positions = query_positions(length, 8)
    assert len(set(positions.tolist())) == len(positions) >= 1
    assert positions.min() >= length // 2
    assert positions.max() <= length - 2
