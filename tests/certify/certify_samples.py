"""Small inputs for the numeric half of certification: no model, no torch."""

import numpy as np

from polykv.certify.attention import LayerInputs
from polykv.certify.cells import plan_cells
from polykv.certify.checks import Controls
from polykv.certify.config import CertifyConfig
from polykv.certify.metrics import TokenFigures
from polykv.certify.passages import EvaluationText
from polykv.certify.run import Candidate, Certification, PolicyFigures
from polykv.policy import CompressionPolicy
from polykv.types import Cell, Document, LayerSpec

FIB = {"id": "fib_k4_n32"}
KIVI = {"id": "uniform", "bits": 4, "mode": "asymmetric", "axis": "channel", "group_tokens": 8}


def spec(layer=0, **changes):
    return LayerSpec(
        **{
            "layer": layer,
            "n_q_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 16,
            "value_dim": 8,
            "softmax_scale": 0.3,
            **changes,
        }
    )


def inputs(rules, n_tokens=48, seed=0, sinks=False):
    rng = np.random.default_rng(seed)
    streams = [
        rng.standard_normal((heads, n_tokens, width)).astype(np.float32)
        for heads, width in (
            (rules.n_q_heads, rules.head_dim),
            (rules.n_kv_heads, rules.head_dim),
            (rules.n_kv_heads, rules.value_dim),
        )
    ]
    streams[1] += 0.7
    return LayerInputs(rules, *streams, rng.standard_normal(rules.n_q_heads).astype(np.float32) if sinks else None)


def policy(key=FIB, value=FIB, name="lossy", **changes):
    tier = {"key": key, "value": value}
    return CompressionPolicy(name, **{"pool": tier, "shell": tier, **changes})


def plans(chosen, rules, means=None):
    return plan_cells(chosen, {rules.layer: rules}, means)


def means(rules, seed=5):
    rng = np.random.default_rng(seed)
    return {
        Cell(rules.layer, h): rng.standard_normal(rules.head_dim).astype(np.float32) for h in range(rules.n_kv_heads)
    }


def certification(log_ratios, kls=None, owner=None, config=None, chosen=None, n_scored=16):
    """A made-up certification: passage p loses log_ratios[p] nats at every token, rising within the passage."""
    log_ratios = np.asarray(log_ratios, float)
    kls = np.full(len(log_ratios), 1e-3) if kls is None else np.asarray(kls, float)
    owner = np.zeros(len(log_ratios), np.int64) if owner is None else np.asarray(owner)
    chosen = chosen or CompressionPolicy.int8()
    config = config or CertifyConfig(n_passages=len(log_ratios), n_tokens=2 * n_scored, bucket_tokens=8)
    rules = spec()
    figures = PolicyFigures(Candidate(chosen), plan_cells(chosen, {0: rules}))
    ramp = np.linspace(0.5, 1.5, n_scored)
    for ratio, kl in zip(log_ratios, kls, strict=True):
        baseline = np.full(n_scored, 3.0)
        figures.passages.append(TokenFigures(baseline, baseline + ratio * ramp, kl * ramp, np.ones(n_scored)))
    figures.code_bytes = {cell: 26 * 2 * n_scored * len(log_ratios) for cell in figures.plans}
    figures.decoded, figures.exact, figures.visible = 50, 50, 200
    documents = tuple(Document(f"d{i}.txt", f"{i:064d}", 100) for i in range(owner.max() + 1))
    ids = tuple(np.arange(2 * n_scored) for _ in log_ratios)
    return Certification(config, {0: rules}, EvaluationText(ids, owner, documents), (figures,), Controls(0.0, 9.0, 0.0))
