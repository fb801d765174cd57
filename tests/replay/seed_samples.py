"""Golden inputs as objects, small fixtures, and the seed's captured replay written token by token."""

import json
import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from polykv.pool import SharedKVPool
from polykv.replay.fixtures import CapturedReplayFixture, CapturedReplayQuery
from polykv.shape import KvTensorShape

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
F = np.float32


@lru_cache(maxsize=32)
def golden(name):
    """The parsed golden file; a missing one is an error."""
    return json.loads((GOLDEN / f"{name}.json").read_bytes())


def golden_pool_and_shell(policy=None):
    """Pool and shell of the model-shaped golden replay: 2 layers, 2 heads, 24 + 6 tokens, head_dim 16."""
    raw = golden("model_replay.in")
    shape = KvTensorShape.from_dict(raw["shape"])
    shared = [(f"shared_{i}", row) for i, row in enumerate(raw["shared"])]
    pool, built = SharedKVPool.build(shared, shape, raw["seed"], policy)
    hot = [(f"hot_{i}", row) for i, row in enumerate(raw["hot"])]
    shell, made = pool.materialize_shell("agent", hot, raw["shell_seed"])
    return pool, shell, built, made


def small_fixture(head_dim=8, lengths=(6, 9), shared=3, n_labels=5, seed=0, scale=None, **changes):
    """A consistent fixture of Gaussian vectors, one query a length."""
    rng = np.random.default_rng(seed)
    projection = rng.normal(size=(n_labels, head_dim)).astype(F)
    queries = []
    for length in lengths:
        query = rng.normal(size=head_dim).astype(F)
        keys, values = rng.normal(size=(2, length, head_dim)).astype(F)
        output = full_attention(query, keys, values, scale)
        queries.append(
            CapturedReplayQuery(query, keys, values, output, projection @ output, int(rng.integers(n_labels)))
        )
    fields = {
        "model_id": "small",
        "head_dim": head_dim,
        "shared_tokens": shared,
        "seed": 11,
        "output_projection": projection,
        "queries": tuple(queries),
        "softmax_scale": scale,
    }
    return CapturedReplayFixture(**(fields | changes))


def full_attention(query, keys, values, scale=None):
    logits = keys.astype(np.float64) @ query.astype(np.float64) * (1.0 if scale is None else scale)
    weights = np.exp(logits - logits.max())
    return ((weights / weights.sum()) @ values.astype(np.float64)).astype(F)


# ---- the seed's replay with exact codecs, one float32 at a time -------------------------------------------------


def naive_dot(a, b):
    total = F(0)
    for x, y in zip(a, b, strict=True):
        total = F(total + F(x * y))
    return total


def naive_softmax(scores):
    top = max(scores)
    weights = [F(math.exp(float(F(score - top)))) for score in scores]
    total = F(0)
    for weight in weights:
        total = F(total + weight)
    return [F(weight / total) for weight in weights]


def naive_attend(scores, values):
    weights, out = naive_softmax(scores), [F(0)] * len(values[0])
    for weight, value in zip(weights, values, strict=True):
        out = [F(o + F(weight * v)) for o, v in zip(out, value, strict=True)]
    return out


def naive_metrics(fixture, candidate_k, sinks=0, window=0):
    """The seed's figures at one candidate_k, with exact K and V; `sinks` and `window` tokens outside the budget."""
    cosines, squares, kls, exact_nlls, nlls, same, decoded = [], [], [], [], [], 0, 0
    for query in fixture.queries:
        n = len(query.keys)
        kept = [t for t in range(n) if t < sinks or n - 1 - t < window]
        scores = [naive_dot(key, query.query) for key in query.keys]
        # pool tokens come first, so one index orders pool before shell and then tokens
        ranked = sorted((t for t in range(n) if t not in kept), key=lambda t: (-scores[t], t))[:candidate_k]
        decoded += len(ranked)
        scale = F(1 if fixture.softmax_scale is None else fixture.softmax_scale)
        chosen = [*kept, *ranked]
        out = naive_attend([F(scores[t] * scale) for t in chosen], [query.values[t] for t in chosen])
        logits = [naive_dot(out, row) for row in fixture.output_projection]
        p, q = naive_softmax(list(query.exact_logits)), naive_softmax(logits)
        exact = [float(x) for x in query.exact_attention_output]
        wide = [float(x) for x in out]
        norms = math.sqrt(sum(x * x for x in exact)) * math.sqrt(sum(x * x for x in wide))
        cosines.append(sum(x * y for x, y in zip(exact, wide, strict=True)) / norms)
        squares.append(sum((x - y) ** 2 for x, y in zip(exact, wide, strict=True)) / len(wide))
        kls.append(
            sum(float(a) * math.log(float(a) / max(float(b), 1e-12)) for a, b in zip(p, q, strict=True) if a > 0)
        )
        exact_nlls.append(-math.log(max(float(p[query.label_token]), 1e-12)))
        nlls.append(-math.log(max(float(q[query.label_token]), 1e-12)))
        same += naive_argmax(list(query.exact_logits)) == naive_argmax(logits)
    count = len(fixture.queries)
    ppl_exact, ppl = math.exp(sum(exact_nlls) / count), math.exp(sum(nlls) / count)
    return {
        "output_cosine_mean": sum(cosines) / count,
        "output_mse_mean": sum(squares) / count,
        "kl_divergence_mean": sum(kls) / count,
        "top1_agreement": same / count,
        "ppl_proxy_exact": ppl_exact,
        "ppl_proxy_compressed": ppl,
        "ppl_proxy_delta": ppl - ppl_exact,
        "decoded_values_total": decoded,
    }


def naive_argmax(values):
    """The last of the largest."""
    best = 0
    for i, value in enumerate(values):
        if value >= values[best]:
            best = i
    return best
