"""The hook keeps the seed's meaning (documents 000 and 001), and counts what the seed drops in silence."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv import capture
from polykv.capture.buffer import DROP_REASONS, BoundedRows
from polykv.capture.hook import KvHook
from polykv.errors import InputError


@pytest.fixture(autouse=True)
def _hook_off():
    yield
    capture.disable()
    capture.clear()


def vectors(n, d, start=0.0):
    return np.arange(start, start + n * d, dtype=np.float32)


class SeedModel:
    """Seed 001 as plain lists, for comparison."""

    def __init__(self):
        self.enabled, self.buffer, self.dropped = False, None, dict.fromkeys(DROP_REASONS, 0)

    def enable(self, n_layer, cap):
        self.buffer = {"d": 0, "n": n_layer, "cap": cap, "rows": {True: {}, False: {}}}
        self.dropped = dict.fromkeys(DROP_REASONS, 0)
        self.enabled = True

    def record(self, layer, is_key, proj, n_kv, d):
        if not self.enabled:
            return
        b = self.buffer
        if d == 0:
            self.dropped["zero_head_dim"] += n_kv
            return
        if b is None:
            self.dropped["no_buffer"] += n_kv
            return
        b["d"] = b["d"] or d
        if b["d"] != d or layer >= b["n"]:
            self.dropped["head_dim_mismatch" if b["d"] != d else "layer_out_of_range"] += n_kv
            return
        rows = b["rows"][is_key].setdefault(layer, [])
        for head in range(n_kv):
            if len(rows) >= b["cap"] or (head + 1) * d > len(proj):
                reason = "past_cap" if len(rows) >= b["cap"] else "short_slice"
                self.dropped[reason] += n_kv - head
                break
            rows.append(list(proj[head * d : (head + 1) * d]))

    def snapshot(self):
        if self.buffer is None or self.buffer["d"] == 0:
            return None
        b = self.buffer
        return b["d"], {s: [b["rows"][s].get(layer, []) for layer in range(b["n"])] for s in (True, False)}


def test_off_records_nothing_and_reads_no_argument():
    capture.record("no layer", None, object(), -1, "wide")
    assert capture.snapshot() is None
    assert not capture.is_enabled()


def test_off_takes_no_lock():
    hook = KvHook()
    hook._lock = None
    hook.record(0, True, vectors(1, 4), 1, 4)
    assert hook.enabled is False


def test_one_token_of_three_heads():
    capture.enable(2, 10)
    capture.record(1, True, vectors(3, 4), 3, 4)
    capture.record(1, False, vectors(3, 4, 100), 3, 4)
    taken = capture.snapshot()
    assert taken.head_dim == 4
    assert (taken.total_k(), taken.total_v()) == (3, 3)
    np.testing.assert_array_equal(taken.k[1], vectors(3, 4).reshape(3, 4))
    np.testing.assert_array_equal(taken.v[1], vectors(3, 4, 100).reshape(3, 4))
    assert taken.k[0].shape == (0, 4)
    assert taken.k[1].dtype == np.float32


def test_cap_is_per_layer_per_stream_and_cuts_inside_a_token():
    capture.enable(2, 4)
    for _ in range(2):
        capture.record(0, True, vectors(3, 2), 3, 2)
    capture.record(0, False, vectors(3, 2), 3, 2)
    capture.record(1, True, vectors(3, 2), 3, 2)
    taken = capture.snapshot()
    assert [len(rows) for rows in taken.k] == [4, 3]
    assert [len(rows) for rows in taken.v] == [3, 0]
    assert taken.dropped["past_cap"] == 2


@pytest.mark.parametrize(
    ("call", "reason", "dropped", "head_dim"),
    [
        ((5, True, vectors(2, 4), 2, 4), "layer_out_of_range", 2, 4),
        ((-1, True, vectors(2, 4), 2, 4), "layer_out_of_range", 2, 4),
        ((0, True, vectors(2, 4), 3, 4), "short_slice", 1, 4),
        ((0, True, vectors(9, 4), 9, 4), "past_cap", 4, 4),
        ((0, True, vectors(2, 4), 2, 0), "zero_head_dim", 2, None),
    ],
)
def test_each_drop_is_counted(call, reason, dropped, head_dim):
    capture.enable(2, 5)
    capture.record(*call)
    taken = capture.snapshot()
    assert capture.dropped_vectors() == {**dict.fromkeys(DROP_REASONS, 0), reason: dropped}
    assert (taken.head_dim if taken else None) == head_dim


def test_head_dim_sizes_itself_before_the_layer_check():
    capture.enable(2, 5)
    capture.record(7, True, vectors(1, 4), 1, 4)
    capture.record(0, True, vectors(1, 6), 1, 6)
    taken = capture.snapshot()
    assert (taken.head_dim, taken.total_k(), len(taken.k)) == (4, 0, 2)
    assert taken.dropped["head_dim_mismatch"] == 1


def test_snapshot_is_none_until_a_head_dim_is_known():
    capture.enable(2, 5)
    assert capture.snapshot() is None
    capture.record(0, True, vectors(1, 4), 1, 0)
    assert capture.snapshot() is None


def test_disable_keeps_the_buffer_and_enable_starts_afresh():
    capture.enable(1, 5)
    capture.record(0, True, vectors(1, 4), 1, 4)
    capture.disable()
    capture.record(0, True, vectors(1, 4), 1, 4)
    assert capture.snapshot().total_k() == 1
    capture.enable(1, 5)
    assert capture.snapshot() is None


def test_clear_leaves_it_enabled_and_counts_what_has_no_buffer():
    capture.enable(1, 5)
    capture.record(0, True, vectors(1, 4), 1, 4)
    capture.clear()
    assert capture.is_enabled()
    capture.record(0, True, vectors(2, 4), 2, 4)
    assert capture.snapshot() is None
    assert capture.dropped_vectors()["no_buffer"] == 2


def test_snapshot_is_a_copy():
    capture.enable(1, 5)
    source = vectors(1, 4)
    capture.record(0, True, source, 1, 4)
    first = capture.snapshot()
    source[:] = -1
    first.k[0][:] = -2
    np.testing.assert_array_equal(capture.snapshot().k[0], vectors(1, 4).reshape(1, 4))


@pytest.mark.parametrize("bad", [(-1, 5), (2, -5), (1.5, 5)])
def test_enable_refuses_numbers_that_cannot_be_counts(bad):
    with pytest.raises(InputError, match="must be an integer"):
        capture.enable(*bad)


def test_record_refuses_a_negative_head_count():
    capture.enable(1, 5)
    with pytest.raises(InputError, match="n_kv is -2"):
        capture.record(0, True, vectors(1, 4), -2, 4)


def test_storage_never_grows_past_the_cap_and_a_huge_cap_is_free():
    rows = BoundedRows(width=3, cap=10)
    for _ in range(9):
        rows.append(vectors(2, 3), 2)
        assert len(rows._rows) <= 10
    assert rows.count == 10
    assert BoundedRows(width=3, cap=2**62).append(vectors(2, 3), 2) == (0, None)


def test_threads_lose_nothing_and_never_tear_a_token():
    capture.enable(2, 10_000)
    n_threads, n_tokens = 8, 200

    def work(thread):
        for token in range(n_tokens):
            layer, value = token % 2, thread * n_tokens + token
            capture.record(layer, True, np.full(3 * 4, value, np.float32), 3, 4)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = capture.snapshot()
    assert taken.total_k() == n_threads * n_tokens * 3
    tokens = np.concatenate([rows.reshape(-1, 12) for rows in taken.k])
    assert (tokens == tokens[:, :1]).all()
    assert sorted(tokens[:, 0]) == list(range(n_threads * n_tokens))


_record = st.tuples(
    st.just("record"),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 14),
    st.integers(0, 4),
    st.sampled_from([0, 2, 2, 2, 3]),
)
_enable = st.tuples(st.just("enable"), st.integers(0, 3), st.integers(0, 7))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(_record, _record, _record, _enable, st.tuples(st.sampled_from(["disable", "clear"])))))
def test_any_sequence_of_calls_means_what_the_seed_means(calls):
    hook, model = KvHook(), SeedModel()
    for name, *arguments in calls:
        if name == "record":
            layer, is_key, n_floats, n_kv, head_dim = arguments
            proj = np.random.default_rng(n_floats).normal(size=n_floats).astype(np.float32)
            hook.record(layer, is_key, proj, n_kv, head_dim)
            model.record(layer, is_key, proj, n_kv, head_dim)
        elif name == "enable":
            hook.enable(*arguments)
            model.enable(*arguments)
        elif name == "disable":
            hook.disable()
            model.enabled = False
        else:
            hook.clear()
            model.buffer = None
        assert hook.enabled == model.enabled
    taken, expected = hook.snapshot(), model.snapshot()
    assert hook.dropped() == model.dropped
    assert (taken is None) == (expected is None)
    if taken is not None:
        head_dim, rows = expected
        assert taken.head_dim == head_dim
        for got, want in ((taken.k, rows[True]), (taken.v, rows[False])):
            assert [r.tolist() for r in got] == [np.asarray(w, np.float32).reshape(-1, head_dim).tolist() for w in want]
