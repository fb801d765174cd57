"""What a search measured of its model is read back, bit by bit, wherever it was kept; anything else is measured."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and transformers: make hf")

from polykv.capture.forward import probe_layers  # noqa: E402
from polykv.certify.fisher import FisherConfig  # noqa: E402
from polykv.search import kept  # noqa: E402
from polykv.search.ledger import Ledger  # noqa: E402
from tests.certify.tiny_certify_models import loaded, tiny, words  # noqa: E402

pytestmark = pytest.mark.hf
CONFIG = FisherConfig(2, 6, n_draws=1)
CODEC = {"id": "rotated_scalar", "bits": 2}
TEXTS = [np.array([int(word) for word in words(24, seed).split()]) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def model():
    return loaded(tiny())


def fisher(folder, model, other=None, config=CONFIG, texts=TEXTS, rotations=None, most=99, codec=CODEC):
    (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    folders = [one / "artifacts" for one in (folder, other) if one is not None]
    ledger = Ledger(folder / "a.jsonl", None if other is None else other / "a.jsonl")
    asked = []

    def allowed(passes):
        return len(asked) * kept.passes_of(config) + passes <= most

    found = kept.kept_fisher(ledger, folders, model, texts, config, rotations, codec, allowed, asked.append)
    return found, len(asked)


def alike(one, other):
    assert one.metrics.keys() == other.metrics.keys()
    assert all(nats > 0 for nats in one.disturbed.values())
    same = all(np.array_equal(one.metrics[place], other.metrics[place]) for place in one.metrics)
    return same and one.disturbed == other.disturbed


def test_gradients_are_taken_once_and_travel_to_who_reuses_them(model, tmp_path):
    first, taken = fisher(tmp_path / "first", model)
    assert taken == len(TEXTS)
    again, taken = fisher(tmp_path / "first", model, most=0)
    assert taken == 0
    assert alike(first, again)
    reused, taken = fisher(tmp_path / "second", model, tmp_path / "first", most=0)
    assert taken == 0
    assert alike(first, reused)
    # the second holds all it rests on
    (tmp_path / "first").rename(tmp_path / "gone")
    alone, _ = fisher(tmp_path / "second", model, most=0)
    assert alike(first, alone)


@pytest.mark.parametrize("texts_a_session", [1, 2])
def test_stopped_gradients_go_on_where_they_stopped(model, tmp_path, texts_a_session):
    whole, _ = fisher(tmp_path / "whole", model)
    most = texts_a_session * kept.passes_of(CONFIG) + 1
    run, sessions = tmp_path / "run", 0
    found = None
    while found is None:
        found, taken = fisher(run, model, most=most)
        sessions += 1
        assert 1 <= taken <= texts_a_session
    assert sessions == -(-len(TEXTS) // texts_a_session)
    assert alike(whole, found)
    # sums on the way are not kept beside the last ones
    assert len(list((run / "artifacts").iterdir())) == 1


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("before", ["the ledger's line", "earlier sums are removed"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_killed_gradients_go_on_and_leave_no_sums_behind(model, tmp_path, monkeypatch, before, at):
    whole, _ = fisher(tmp_path / "whole", model)
    plain, puts = Ledger.put, []

    def put(ledger, key, value):
        puts.append(key)
        if before != "the ledger's line":
            plain(ledger, key, value)
        if len(puts) == at:
            raise Killed
        return value if before != "the ledger's line" else plain(ledger, key, value)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "put", put)
        with pytest.raises(Killed):
            fisher(tmp_path / "run", model)
    found, taken = fisher(tmp_path / "run", model)
    assert alike(whole, found)
    assert taken == len(TEXTS) - at + (before == "the ledger's line")
    left = len(list((tmp_path / "run" / "artifacts").iterdir()))
    # after its last line nothing more is asked, and the sums before it stay
    assert left == (2 if taken == 0 else 1)


def test_gradients_whose_sums_were_lost_are_taken_from_the_last_that_are_there(model, tmp_path):
    whole, _ = fisher(tmp_path / "whole", model)
    one_text = kept.passes_of(CONFIG)
    fisher(tmp_path / "run", model, most=one_text)
    # another search goes on from there, and leaves the first one's sums alone
    found, taken = fisher(tmp_path / "other", model, tmp_path / "run")
    assert (alike(whole, found), taken) == (True, 2)
    (part,) = (tmp_path / "run" / "artifacts").iterdir()
    part.unlink()
    assert fisher(tmp_path / "run", model, most=one_text) == (None, 1)
    assert fisher(tmp_path / "run", model)[1] == 2


def test_other_questions_and_lost_answers_are_measured(model, tmp_path):
    run = tmp_path / "run"
    fisher(run, model)
    specs, _ = probe_layers(model.model, TEXTS[0][:4])
    rotations, _ = kept.kept_rotation(Ledger(run / "b.jsonl"), [run / "artifacts"], model, specs, TEXTS[0])
    others = [
        {"config": replace(CONFIG, seed=1)}, {"config": replace(CONFIG, recent_window=7)}, {"config": replace(CONFIG, n_draws=2)},
        {"texts": TEXTS[:1]}, {"texts": TEXTS[::-1]}, {"rotations": rotations},
        {"codec": {"id": "rotated_scalar", "bits": 3}},
    ]  # fmt: skip
    for asked in others:
        assert fisher(run, model, most=0, **asked) == (None, 0), asked
    assert fisher(run, replace(model, weight_digest="1" * 64), most=0) == (None, 0)
    for path in (run / "artifacts").iterdir():
        path.unlink()
    assert fisher(run, model, most=0) == (None, 0)
    assert fisher(run, model)[1] == len(TEXTS)


def test_a_rotation_is_the_same_read_back(model, tmp_path):
    specs, _ = probe_layers(model.model, TEXTS[0][:4])
    ledger, folders = Ledger(tmp_path / "a.jsonl"), [tmp_path]
    first, digest = kept.kept_rotation(ledger, folders, model, specs, TEXTS[0])
    again, same = kept.kept_rotation(Ledger(tmp_path / "a.jsonl"), folders, replace(model, model=None), specs, TEXTS[0])
    assert digest == same
    assert all(np.array_equal(first[layer].frequencies, again[layer].frequencies) for layer in specs)
