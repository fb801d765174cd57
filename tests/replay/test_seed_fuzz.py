"""Whatever is done to a fixture, it is replayed whole or refused by a polykv error: never a crash, never in silence."""

import copy
import json
import math
import random
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.errors import PolykvError
from polykv.policy import CompressionPolicy
from polykv.receipts import parse_json, pretty_json
from polykv.replay.captured import run_captured_model_replay
from polykv.replay.fixtures import CapturedReplayFixture
from polykv.replay.seed_config import CapturedReplayConfig
from polykv.replay.seed_records import CapturedReplayReceipt
from polykv.replay.softmax_scale import SoftmaxScaleWarning
from tests.replay.seed_samples import small_fixture

CASES_IN_FULL = 20_000
SEED = small_fixture(head_dim=2, lengths=(3, 4), shared=2, n_labels=3)
RAW = SEED.to_dict()
TEXT = json.dumps(RAW).encode()
POISON = (math.nan, math.inf, -math.inf, 1e39, -1e39, 10**400, True, None, "1", [], {}, [[]], "\ud800", -1, 2**64)
FINE = (0, 1, -0.0, 0.5, 1e38, -3e38, 1e-45, 1e-320, 7, 2)


def replay(raw):
    """(fixture, receipt) of a parsed fixture; raises whatever reading or replaying it raises."""
    fixture = CapturedReplayFixture.from_dict(raw)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SoftmaxScaleWarning)
        return fixture, run_captured_model_replay(fixture, CapturedReplayConfig((1, 9)), CompressionPolicy.exact())


def accepted_whole(raw):
    """What was accepted is all there: it comes back from its JSON, and so does its receipt, without a NaN."""
    fixture, receipt = replay(raw)
    again = CapturedReplayFixture.from_dict(parse_json(json.dumps(fixture.to_dict(), allow_nan=False)))
    assert again.digest() == fixture.digest()
    assert CapturedReplayReceipt.from_dict(parse_json(pretty_json(receipt.to_dict()))) == receipt
    receipt.verify()


def places(value, path=()):
    """The path of every entry of a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in pairs for found in ((*path, key), *places(item, (*path, key)))]


PLACES = places(RAW)


def mutate(choose, raw):
    """Change one entry of a fixture; returns whether it must be refused then (if not, it may be)."""
    *parents, key = choose(PLACES)
    holder = raw
    for parent in parents:
        holder = holder[parent]
    old, action = holder[key], choose(("poison", "fine", "drop", "repeat"))
    if action == "poison":
        holder[key] = new = choose(POISON)
        good = (isinstance(old, float) and new in (-1, 2**64)) or (isinstance(old, str) and new == "1")
        return not good
    if action == "fine":
        holder[key] = choose(FINE)
        return False
    if action == "drop":
        del holder[key]
        return isinstance(holder, dict)
    if isinstance(holder, list):
        holder.append(copy.deepcopy(old))
        return False
    holder[f"{key}x"] = old
    return True


def check_mutated(choose):
    raw = copy.deepcopy(RAW)
    must_fail = mutate(choose, raw)
    try:
        accepted_whole(raw)
    except PolykvError:
        return
    assert not must_fail, raw


def check_text(data):
    """Bytes of a fixture, damaged: parsed and replayed whole, or refused."""
    try:
        accepted_whole(parse_json(data))
    except PolykvError:
        return


@settings(max_examples=200)
@given(st.data())
def test_mutated_fixtures(data):
    check_mutated(lambda choices: data.draw(st.sampled_from(choices)))


@settings(max_examples=100)
@given(st.integers(0, len(TEXT) - 1), st.binary(max_size=6), st.integers(0, 6))
def test_damaged_text(place, inserted, removed):
    check_text(TEXT[:place] + inserted + TEXT[place + removed :])


@pytest.mark.slow
def test_fuzz_twenty_thousand_fixtures():
    """Half of them objects with one change, half bytes with flips, cuts and insertions."""
    rng = random.Random(20_000)
    for _ in range(CASES_IN_FULL // 2):
        check_mutated(rng.choice)
    for _ in range(CASES_IN_FULL // 2):
        data = bytearray(TEXT)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data))
            kind = rng.randrange(3)
            if kind == 0:
                data[place] = rng.randrange(256)
            elif kind == 1:
                del data[place : place + rng.randint(1, 40)]
            else:
                data[place:place] = bytes(rng.choices(b'0123456789.eE+-,:[]{}"nul', k=rng.randint(1, 5)))
            if not data:
                data = bytearray(b"{")
        check_text(bytes(data))
