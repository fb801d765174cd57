"""The policy file: what it keeps, what it refuses, and that a wrong type is never a traceback."""

import itertools
import json
import math

import pytest

from polykv.errors import PolicyError, PolykvError
from polykv.policy import NAMED_POLICIES, POLICY_SCHEMA, Policy
from polykv.receipts import digest_json

UNIFORM = {"key": {"id": "uniform", "bits": 4}, "value": {"id": "uniform", "bits": 4}}
FULL = Policy(
    "full", 7, 4, 32, "calibrate_mean", UNIFORM, UNIFORM, 64, {"3/1": {"candidate_k": "full"}}, {"a" * 64: "x.npz"}
)  # fmt: skip


@pytest.mark.parametrize("policy", [FULL, *map(Policy.named, NAMED_POLICIES)], ids=lambda p: p.name)
def test_a_policy_survives_its_file(policy, tmp_path):
    path = tmp_path / "policy.json"
    policy.save(path)
    assert Policy.load(path) == policy
    assert Policy.load(path).digest() == policy.digest() == digest_json(policy.to_dict())
    assert json.loads(path.read_text())["schema_version"] == POLICY_SCHEMA


def test_policies_differ_by_digest():
    digests = {Policy.named(name).digest() for name in NAMED_POLICIES}
    assert len(digests) == len(NAMED_POLICIES)
    assert Policy.two_tier(seed=1).digest() != Policy.two_tier(seed=2).digest()


WRONG = (None, True, -1, 1.5, math.inf, "x", "", [], [1], {}, {"key": 1}, {"x": {"y": 1}})
RIGHT = {
    "name": ("x",),
    "sink_tokens": (),
    "recent_window": (),
    "seed": (),
    "center_keys": (),
    "pool": (),
    "shell": (),
    "candidate_k": (None,),
    "cells": ({},),
    "artifacts": ({},),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, value in itertools.product(RIGHT, WRONG) if value not in RIGHT[name]],
)
def test_a_field_of_the_wrong_kind_is_refused_by_name(name, value):
    raw = {"schema_version": POLICY_SCHEMA, "name": "x", name: value}
    if value == "x" and name == "artifacts":
        raw[name] = {"d": 1}
    with pytest.raises(PolicyError):
        Policy.from_dict(raw)


@pytest.mark.parametrize("name", [name for name in RIGHT if name not in ("name", "seed", "cells", "artifacts")])
@pytest.mark.parametrize("value", [True, -1, 1.5, "x", [], {"key": 1}])
def test_an_override_is_held_to_the_same_rules(name, value):
    with pytest.raises(PolicyError):
        Policy("x", cells={"0/1": {name: value}})


@pytest.mark.parametrize("key", ["", "1", "a/b", "1/", "-1/0", "1/0/2", "01/0", "1/00", "²/0"])
def test_a_cell_has_a_layer_and_a_head(key):
    with pytest.raises(PolicyError, match="layer/kv_head"):
        Policy("x", cells={key: {"candidate_k": 4}})


@pytest.mark.parametrize("field", ["name", "seed", "cells", "artifacts", "colour"])
def test_what_a_cell_cannot_override_is_named(field):
    with pytest.raises(PolicyError, match=field):
        Policy("x", cells={"0/0": {field: 1}})


@pytest.mark.parametrize(
    "raw",
    [
        [],
        {},
        {"schema_version": POLICY_SCHEMA},
        {"schema_version": "polykv_policy_v2", "name": "x"},
        {"schema_version": POLICY_SCHEMA, "name": "x", "colour": 1},
        {"schema_version": POLICY_SCHEMA, "name": "x"},
        {k: v for k, v in Policy.int8().to_dict().items() if k != "pool"},
        {k: v for k, v in Policy.int8().to_dict().items() if k != "shell"},
        Policy.int8().to_dict() | {"name": " "},
        Policy.int8().to_dict() | {"name": "a\nb"},
    ],
)
def test_what_is_no_policy_is_refused(raw):
    with pytest.raises(PolicyError):
        Policy.from_dict(raw)


@pytest.mark.parametrize(
    "argument", ["bits", "seed", "head_dim", "mode", "axis", "group_tokens", "scale_dtype", "colour"]
)
@pytest.mark.parametrize("value", [None, "many", -3, 1.5, [], {}])
def test_a_codec_argument_of_the_wrong_kind_is_refused(argument, value):
    codec = {"id": "uniform", argument: value}
    policy = Policy("x", pool={"key": codec, "value": codec})
    with pytest.raises(PolykvError):
        policy.codec("pool", "key", 0, 0, 16)


@pytest.mark.parametrize("codec", ["fib_k4_n32", "turbo_8bit"])
@pytest.mark.parametrize(
    "argument", ["seed", "bits", "projections", "qjl", "radii", "angle_point", "training_samples", "restarts", "query_mode", "zero_vectors", "lloyd_iterations", "block_dim", "codebook_size"]
)  # fmt: skip
@pytest.mark.parametrize("value", [None, "many", -3, 1.5, [], {}])
def test_an_argument_of_the_other_codecs_too(codec, argument, value):
    policy = Policy("x", pool={stream: {"id": codec, argument: value} for stream in ("key", "value")})
    with pytest.raises(PolykvError):
        policy.codec("pool", "key", 0, 0, 16)


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(PolicyError, match="did you mean 'two_tier'"):
        Policy.named("twotier")


def test_a_cell_stands_with_its_overrides():
    here = FULL.for_cell(3, 1)
    assert (here.candidate_k, here.cells, here.sink_tokens) == ("full", {}, 4)
    assert FULL.for_cell(3, 0).candidate_k == 64


def test_the_tiers_have_seeds_of_their_own_modulo_2_64():
    last = Policy("x", seed=2**64 - 1)
    assert (last.tier_seed("pool"), last.tier_seed("shell")) == (2**64 - 1, 9_999)
