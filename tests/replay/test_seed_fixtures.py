"""Fixtures and receipts as JSON, both ways; what is not a finite float32 is refused at the door, with its place."""

import copy
import json

import numpy as np
import pytest

from polykv.errors import InputError, NonFiniteError, PolykvError, ReceiptError
from polykv.policy import CompressionPolicy
from polykv.receipts import parse_json
from polykv.replay.captured import run_captured_model_replay, verify_captured_receipt
from polykv.replay.fixtures import CapturedReplayFixture, ModelReplayQuery, model_queries, read_fixture
from polykv.replay.seed_config import CapturedReplayConfig, ModelReplayConfig
from polykv.replay.seed_records import CapturedReplayReceipt
from tests.replay.seed_samples import golden, small_fixture

GOOD = small_fixture().to_dict()


def broken(*path, value):
    raw = copy.deepcopy(GOOD)
    place = raw
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return raw


REFUSED = {
    "NaN": (broken("queries", 1, "keys", 2, 5, value=np.nan), r"queries\[1\].keys\[2\]\[5\] is nan"),
    "infinity": (broken("queries", 0, "query", 3, value=np.inf), r"queries\[0\].query\[3\] is inf"),
    "beyond float32": (broken("queries", 0, "exact_logits", 0, value=1e39), r"exact_logits\[0\] is 1e\+39: must be finite and within"),
    "a long integer": (broken("queries", 0, "query", 0, value=10**400), "a whole number beyond float64"),
    "an integer beyond float32": (broken("output_projection", 0, 0, value=10**39), r"output_projection\[0\]\[0\] is 1e\+39"),
    "a bool": (broken("queries", 0, "values", 1, 1, value=True), r"values\[1\]\[1\] is True, must be a number"),
    "a string": (broken("queries", 0, "query", 2, value="1"), r"query\[2\] is '1', must be a number"),
    "null": (broken("queries", 0, "query", value=None), "query is None, must be an array"),
    "a number for a row": (broken("queries", 0, "keys", 0, value=1.0), r"keys\[0\] is 1.0, must be an array"),
    "a row deeper": (broken("queries", 0, "keys", 0, 0, value=[1.0]), r"keys\[0\]\[0\] is \[1.0\], must be a number"),
    "a negative label": (broken("queries", 0, "label_token", value=-1), "label_token is -1"),
    "a label with a point": (broken("queries", 0, "label_token", value=1.0), "label_token is 1.0, must be a whole number"),
    "a seed too large": (broken("seed", value=2**64), "seed is 18446744073709551616"),
    "a typed scale": (broken("softmax_scale", value="0.5"), "softmax_scale is '0.5', must be a number"),
    "a scale of 0": (broken("softmax_scale", value=0), "softmax_scale is 0.0, must be above 0"),
    "a scale that float32 loses": (broken("softmax_scale", value=1e-60), "within float32"),
    "a scale of NaN": (broken("softmax_scale", value=np.nan), "softmax_scale is nan"),
    "a misspelt key": (broken("softmax_scal", value=0.5), "a fixture has no field 'softmax_scal'"),
    "a key in a query": (broken("queries", 1, "mask", value=[]), r"queries\[1\].a query has no field 'mask'"),
    "a missing key": (broken("queries", 1, "values", value=KeyError), "lacks the field 'values'"),
    "no seed": (broken("seed", value=KeyError), "a fixture lacks the field 'seed'"),
    "queries as an object": (broken("queries", value={}), "queries is {}, must be an array"),
    "a query as a list": (broken("queries", 0, value=[]), r"queries\[0\].a query must be a JSON object, got list"),
    "model_id": (broken("model_id", value=7), "model_id is 7, must be a string"),
    "half a surrogate": (broken("model_id", value="\ud800"), "half of a surrogate pair"),
    "not an object": ([], "a fixture must be a JSON object, got list"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_fixture_is_refused_with_its_place(name):
    raw, text = REFUSED[name]
    with pytest.raises(InputError, match=text):
        CapturedReplayFixture.from_dict(raw)


TEXTS = {
    "NaN": ('{"queries": [NaN]}', "contains NaN"),
    "a repeated key": ('{"seed": 1, "seed": 2}', "repeats the key 'seed'"),
    "1e400": ('{"model_id": 1e400}', "lacks the field"),
    "an endless integer": ("[" + "9" * 5000 + "]", "not valid JSON"),
    "nesting": ("[" * 100_000, "not valid JSON"),
    "bad UTF-8": (b'{"model_id": "\xff"}', "not valid JSON"),
    "nothing": ("", "not valid JSON"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_no_strict_json(name, tmp_path):
    text, message = TEXTS[name]
    path = tmp_path / "f.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message):
        read_fixture(path)


def test_a_number_beyond_float64_is_infinity_to_the_parser_and_refused():
    raw = parse_json(json.dumps(GOOD).replace(str(GOOD["queries"][0]["query"][0]), "1e999", 1))
    with pytest.raises(NonFiniteError, match=r"queries\[0\].query\[0\] is inf"):
        CapturedReplayFixture.from_dict(raw)


def test_a_fixture_comes_back_to_the_bit(tmp_path):
    for fixture in (small_fixture(), small_fixture(scale=0.125), small_fixture(note="a note")):
        fixture.save(tmp_path / "f.json")
        again, config = read_fixture(tmp_path / "f.json")
        assert config is None
        assert again.digest() == fixture.digest()
        assert again.to_dict() == fixture.to_dict()


def test_the_golden_fixture_is_the_seeds_json():
    raw = golden("captured_replay.in")["fixture"]
    fixture = CapturedReplayFixture.from_dict(raw)
    assert fixture.to_dict() == raw
    assert list(fixture.to_dict()) == list(raw)


def test_the_digest_sees_every_number():
    base, seen = small_fixture(), set()
    for path, value in (
        (("queries", 1, "keys", 2, 5), 0.5),
        (("queries", 0, "label_token"), 4),
        (("output_projection", 0, 0), 0.5),
        (("seed",), 12),
        (("softmax_scale",), 1.0),
    ):
        seen.add(CapturedReplayFixture.from_dict(broken(*path, value=value)).digest())
    assert len(seen | {base.digest()}) == 6


def test_integers_and_numpy_arrays_are_numbers_too():
    query = ModelReplayQuery([1, 2, np.float32(3)], np.int64(4))
    assert query.query.dtype == np.float32
    assert model_queries([query.to_dict()])[0].to_dict() == {"query": [1.0, 2.0, 3.0], "label_token": 4}
    with pytest.raises(InputError, match=r"queries\[1\].a query lacks the field 'query'"):
        model_queries([query.to_dict(), {"label_token": 1}])


CONFIGS = {
    "a NaN gate": ({"min_output_cosine": np.nan}, "min_output_cosine is nan"),
    "a bool gate": ({"max_ppl_delta": True}, "max_ppl_delta is True"),
    "a negative budget": ({"candidate_ks": [1, -1]}, r"candidate_ks\[1\] is -1"),
    "a budget with a point": ({"candidate_ks": [2.0]}, r"candidate_ks\[0\] is 2.0"),
    "an unknown gate": ({"min_cosine": 1}, "no field 'min_cosine'"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_are_read_strictly(name):
    change, text = CONFIGS[name]
    for kind in (CapturedReplayConfig, ModelReplayConfig):
        with pytest.raises(InputError, match=text):
            kind.from_dict(kind(candidate_ks=(1, 2)).to_dict() | change)


@pytest.fixture(scope="module")
def held():
    fixture = small_fixture(head_dim=8, lengths=(9, 12), shared=4)
    config = CapturedReplayConfig((1, 3, 12), min_output_cosine=0.9)
    return fixture, run_captured_model_replay(fixture, config, CompressionPolicy.int8())


def paths(value, path=()):
    """Every leaf of a JSON value, as its path."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [leaf for key, item in pairs for leaf in paths(item, (*path, key))]
    return found or [path]


def test_every_leaf_of_a_receipt_is_checked_against_its_fixture(held):
    """Change one leaf at a time; the fixture must contradict every one of them."""
    fixture, receipt = held
    raw, unnoticed = receipt.to_dict(), []
    for path in paths(raw):
        changed = copy.deepcopy(raw)
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = _other(place[path[-1]])
        try:
            verify_captured_receipt(CapturedReplayReceipt.from_dict(changed), fixture, CompressionPolicy.int8())
        except PolykvError:
            continue
        unnoticed.append(path)
    # limits that leave every gate's answer as it is are a config like any other
    assert all(path[0] == "config" for path in unnoticed)


def test_a_receipt_of_another_fixture_or_policy_does_not_hold(held):
    fixture, receipt = held
    with pytest.raises(ReceiptError, match="provenance.policy_digest"):
        verify_captured_receipt(receipt, fixture, CompressionPolicy.exact())
    other = small_fixture(head_dim=8, lengths=(9, 12), shared=4, seed=1)
    with pytest.raises(ReceiptError, match="provenance.fixture_digest"):
        verify_captured_receipt(receipt, other, CompressionPolicy.int8())


def test_what_a_receipt_says_of_itself_is_checked_without_the_fixture(held):
    raw = held[1].to_dict()
    for change, text in (
        ({"passed": not raw["passed"]}, "passed is stated as"),
        ({"selected_candidate_k": 999}, "selected_candidate_k is stated as 999"),
        ({"candidate_results": []}, "candidate_results is empty"),
        ({"metrics": raw["metrics"] | {"output_mse_mean": 5.0}}, "metrics is stated as"),
        ({"claim_boundary": "real PPL"}, "claim_boundary"),
    ):
        with pytest.raises(ReceiptError, match=text):
            CapturedReplayReceipt.from_dict(raw | change).verify()


def _other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 0.01
    if isinstance(value, str):
        return value + "x"
    return ["x"]
