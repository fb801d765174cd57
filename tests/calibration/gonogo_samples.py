"""Vectors of known structure for the go/no-go: noise, unions of subspaces, sparse mixtures, small cells."""

import numpy as np

from polykv.attention import attend
from polykv.types import CellData, LayerSpec


def gaussian(seed, n=2048, head_dim=64):
    return np.random.default_rng(seed).normal(size=(n, head_dim)).astype(np.float32)


def subspaces(seed, counts, n_spaces=16, space_dim=4, head_dim=64):
    """One array per count, all drawn from the same union of subspaces."""
    rng = np.random.default_rng(seed)
    bases = [np.linalg.qr(rng.normal(size=(head_dim, space_dim)))[0] for _ in range(n_spaces)]
    draw = lambda n: np.stack([bases[i] @ rng.normal(size=space_dim) for i in rng.integers(0, n_spaces, n)])  # noqa: E731
    return [draw(n).astype(np.float32) for n in counts]


def sparse_mixture(seed, n=4096, n_atoms=64, sparsity=3, head_dim=64):
    """(rows, atoms): rows that are exact combinations of `sparsity` unit atoms."""
    rng = np.random.default_rng(seed)
    atoms = rng.normal(size=(n_atoms, head_dim))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    picks = np.argsort(rng.random((n, n_atoms)), axis=1)[:, :sparsity]
    rows = np.einsum("ns,nsd->nd", rng.normal(size=(n, sparsity)), atoms[picks])
    return rows.astype(np.float32), atoms


def cell(split, passages, *, kv_head=0, head_dim=8, n_tokens=60, group=2, n_queries=4, draw=None, lengths=None, **spec):
    """A CellData whose keys and values come from `draw(rng, n) -> [n, head_dim]` (noise by default)."""
    draw = draw or (lambda rng, n: rng.normal(size=(n, head_dim)))
    passages = np.asarray(passages)
    n = len(passages)
    lengths = np.full(n, n_tokens) if lengths is None else np.asarray(lengths)
    layer = LayerSpec(7, group, 1, head_dim, head_dim, head_dim**-0.5, **spec)
    keys, values = (np.full((n, n_tokens, head_dim), np.nan, np.float32) for _ in range(2))
    queries = np.full((n, group, n_queries, head_dim), np.nan, np.float32)
    outputs = np.full((n, group, n_queries, head_dim), np.nan, np.float32)
    positions = np.full((n, n_queries), -1)
    sinks = np.linspace(-1, 1, group).astype(np.float32) if layer.has_sink_logits else None
    for i, (passage, length) in enumerate(zip(passages, lengths, strict=True)):
        rng = np.random.default_rng([passage, kv_head])
        keys[i, :length], values[i, :length] = draw(rng, length), draw(rng, length)
        positions[i] = np.linspace(length // 2, length - 1, n_queries)
        queries[i] = 2 * rng.normal(size=queries[i].shape)
        for h in range(group):
            sink = None if sinks is None else sinks[h]
            outputs[i, h] = attend(queries[i, h], keys[i, :length], values[i, :length], positions[i], layer, sink)
    return CellData(
        layer,
        kv_head,
        split,
        passages,
        passages // 100,
        lengths,
        positions,
        keys,
        values,
        queries,
        outputs,
        sinks,
        slab_digests={"k": f"{split}{kv_head}"},
    )


def subspace_draw(seed=0, n_spaces=4, space_dim=2, head_dim=8):
    """A `draw` for `cell`: vectors from one fixed union of subspaces."""
    rng = np.random.default_rng(seed)
    bases = np.stack([np.linalg.qr(rng.normal(size=(head_dim, space_dim)))[0].T for _ in range(n_spaces)])
    return lambda rng, n: np.einsum("ns,nsd->nd", rng.normal(size=(n, space_dim)), bases[rng.integers(0, n_spaces, n)])
