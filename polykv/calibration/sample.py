"""What a go/no-go is judged on: rows to code, the units they belong to, and who attends to them.

A sample is one split of one (layer, stream), or of one head of it. Codecs see `rows`; errors
are summed per unit (passage, document or row), which is what the bootstrap draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polykv.attention import attention_logits, visible_mask
from polykv.codecs.base import checked_vectors
from polykv.codecs.omp import row_energies
from polykv.errors import DimensionMismatch, InputError
from polykv.types import CellData, LayerSpec


@dataclass(frozen=True, eq=False)
class Probe:
    """One query head of one passage, with the exact attention its coded keys or values are held against.

    rows: which rows of the sample are tokens `first_token` … of this passage (those before stay
    exact). exact [query, token] bool: pairs attended exactly (sinks and the recent window).
    queries [query, head_dim], keys [token, head_dim], values [token, value_dim] float64;
    mask [query, token] bool; log_weights [query, token] and log_sink [query] float64; outputs
    [query, value_dim] float64. unit: index of the attention unit.
    """

    stream: str
    unit: int
    rows: slice
    first_token: int
    spec: LayerSpec
    sink_logit: float | None
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    mask: np.ndarray
    exact: np.ndarray
    scores: np.ndarray
    log_weights: np.ndarray
    log_sink: np.ndarray
    outputs: np.ndarray

    def errors(self, decoded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(output [measured], kl [measured]) float64 when decoded [row, head_dim] stands for the rows.

        output = ‖Δo‖/‖o‖ of the attention output; kl in nats = KL(coded ‖ exact) of the
        weights, the sink logit's share included; 0 for values. A query whose exact output is
        zero has no relative error and is not measured.
        """
        outputs, kl = self._attended(decoded)
        wrong, size = row_energies(outputs - self.outputs), row_energies(self.outputs)
        return np.sqrt(wrong[size > 0] / size[size > 0]), kl[size > 0]

    def outputs_of(self, decoded: np.ndarray) -> np.ndarray:
        """[query, value_dim] float64: the attention outputs when decoded [row, head_dim] stands for the rows."""
        return self._attended(decoded)[0]

    def _attended(self, decoded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        part = np.asarray(decoded[self.rows], np.float64)
        if self.stream == "key":
            coded = self.keys.copy()
            coded[self.first_token :] = part
            scores = np.where(self.exact, self.scores, self.queries @ coded.T)
            logs, sink = log_softmax(attention_logits(scores, self.spec), self.mask, self.sink_logit)
            outputs, kl = np.exp(logs) @ self.values, _kl(logs, sink, self.log_weights, self.log_sink)
        else:
            change = np.zeros_like(self.values)
            change[self.first_token :] = part - self.values[self.first_token :]
            outputs = self.outputs + np.where(self.exact, 0.0, np.exp(self.log_weights)) @ change
            kl = np.zeros(len(outputs))
        return outputs, kl


@dataclass(frozen=True, eq=False)
class Sample:
    """rows [n, head_dim] float32; unit, run, head [n] int64 (units are 0 … n_units − 1); probes may be empty.

    `run` marks consecutive tokens of one head; `head` is the position of a row's head among those
    pooled. n_attention_units counts the units of the probes.
    """

    rows: np.ndarray
    unit: np.ndarray
    run: np.ndarray
    head: np.ndarray
    n_units: int
    probes: tuple[Probe, ...] = ()
    n_attention_units: int = 0
    unit_kind: str = "passages"

    def means(self) -> np.ndarray:
        """[head, head_dim] float32: the mean vector of each head's rows."""
        sums = np.zeros((int(self.head.max()) + 1, self.rows.shape[1]))
        np.add.at(sums, self.head, self.rows)
        return (sums / np.bincount(self.head)[:, None]).astype(np.float32)


def sample_of_rows(
    rows: np.ndarray, groups: Sequence | np.ndarray | None, what: str, queries: np.ndarray | None = None
) -> Sample:
    """A sample of plain rows [n, head_dim]; groups [n] are labels of the units (None: every row is one).

    queries [query, head_dim] attend to all rows of each group as keys (to all rows when there
    are no groups), unmasked, at scale 1/√head_dim, and read the exact rows as values. With
    groups the groups are the attention units, without them the queries are.
    """
    rows = checked_vectors(rows, np.shape(rows)[1] if np.ndim(rows) == 2 else 0, what)
    if len(rows) == 0:
        raise InputError(f"{what} is empty: at least one vector is needed")
    if groups is not None and len(groups) != len(rows):
        raise DimensionMismatch(f"{what}: {len(rows)} rows, but {len(groups)} group labels")
    if queries is not None:
        queries = checked_vectors(queries, rows.shape[1], "queries")
    if groups is None:
        one = np.zeros(len(rows), np.int64)
        probes = [
            _plain_probe(rows, slice(None), queries[i : i + 1], i)
            for i in range(0 if queries is None else len(queries))
        ]
        return Sample(rows, np.arange(len(rows)), one, one, len(rows), tuple(probes), len(probes), "rows")
    unit = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
    order = np.argsort(unit, kind="stable")
    rows, unit = rows[order], unit[order]
    n_units = int(unit[-1]) + 1
    edges = np.searchsorted(unit, np.arange(n_units + 1))
    probes = [
        _plain_probe(rows, slice(edges[u], edges[u + 1]), queries, u) for u in range(0 if queries is None else n_units)
    ]
    return Sample(rows, unit, unit, np.zeros_like(unit), n_units, tuple(probes), len(probes), "groups")


def sample_of_cells(
    cells: Sequence[CellData],
    stream: str,
    sink_tokens: int = 4,
    recent_window: int = 32,
    queries_per_passage: int = 16,
) -> Sample:
    """A sample of one stream of one layer: the valid tokens of all passages of all `cells` (its heads).

    The first `sink_tokens` of a passage are left out of the rows, as policies keep them exact;
    the probes attend to them and to the `recent_window` newest tokens exactly. Units are
    passages, or documents when there are five or more of them. At most `queries_per_passage`
    queries, evenly spaced, are kept (0: no probes).
    """
    first = cells[0]
    if stream not in ("key", "value"):
        raise InputError(f"unknown stream {stream!r}; known: key, value")
    by_document = len(np.unique(first.documents)) >= 5
    unit_of = np.unique(first.documents if by_document else first.passages, return_inverse=True)[1].reshape(-1)
    rows, unit, run, owner, probes, filled = [], [], [], [], [], 0
    for head, cell in enumerate(cells):
        _same_passages(first, cell)
        for passage, length in enumerate(cell.lengths):
            vectors = (cell.keys if stream == "key" else cell.values)[passage, sink_tokens:length]
            place = f"layer {cell.spec.layer}, kv_head {cell.kv_head}, passage {cell.passages[passage]}, {stream}"
            rows.append(checked_vectors(vectors, vectors.shape[1], place))
            unit.append(np.full(len(vectors), unit_of[passage]))
            run.append(np.full(len(vectors), len(run)))
            owner.append(np.full(len(vectors), head))
            where = slice(filled, filled + len(vectors))
            filled += len(vectors)
            if queries_per_passage and len(vectors):
                probes += _cell_probes(
                    cell, passage, stream, where, unit_of[passage], sink_tokens, recent_window, queries_per_passage
                )
    if not filled:
        raise InputError(
            f"layer {first.spec.layer}, split {first.split}: no passage is longer than sink_tokens {sink_tokens}"
        )
    n_units = int(unit_of.max()) + 1
    kind = "documents" if by_document else "passages"
    arrays = (np.concatenate(a) for a in (rows, unit, run, owner))
    return Sample(*arrays, n_units, tuple(probes), n_units if probes else 0, kind)


def log_softmax(logits: np.ndarray, mask: np.ndarray, sink_logit: float | None) -> tuple[np.ndarray, np.ndarray]:
    """(log weights [query, token], log weight of the sink logit [query]); −inf where masked or absent."""
    floor = -np.inf if sink_logit is None else float(sink_logit)
    masked = np.where(mask, logits, -np.inf)
    top = np.maximum(masked.max(axis=1), floor)
    total = np.log(np.exp(masked - top[:, None]).sum(axis=1) + np.exp(floor - top))
    return masked - (top + total)[:, None], floor - top - total


def _kl(logs: np.ndarray, sink: np.ndarray, exact_logs: np.ndarray, exact_sink: np.ndarray) -> np.ndarray:
    visible = np.isfinite(logs)
    gap = np.subtract(logs, exact_logs, out=np.zeros_like(logs), where=visible)
    kl = (np.exp(logs) * gap).sum(axis=1)
    has_sink = np.isfinite(sink)
    return kl + np.where(
        has_sink, np.exp(sink) * np.subtract(sink, exact_sink, out=np.zeros_like(sink), where=has_sink), 0.0
    )


def _probe(stream, unit, rows, first_token, spec, sink_logit, queries, keys, values, mask, exact) -> Probe:
    queries, keys, values = (np.asarray(a, np.float64) for a in (queries, keys, values))
    scores = queries @ keys.T
    logs, sink = log_softmax(attention_logits(scores, spec), mask, sink_logit)
    outputs = np.exp(logs) @ values
    return Probe(
        stream,
        int(unit),
        rows,
        first_token,
        spec,
        sink_logit,
        queries,
        keys,
        values,
        mask,
        exact,
        scores,
        logs,
        sink,
        outputs,
    )


def _plain_probe(rows: np.ndarray, part: slice, queries: np.ndarray, unit: int) -> Probe:
    head_dim, keys = rows.shape[1], rows[part]
    spec = LayerSpec(0, 1, 1, head_dim, head_dim, softmax_scale=head_dim**-0.5)
    mask = np.ones((len(queries), len(keys)), bool)
    return _probe("key", unit, part, 0, spec, None, queries, keys, keys, mask, ~mask)


def _cell_probes(
    cell: CellData, passage: int, stream: str, rows: slice, unit: int, sinks: int, window: int, most: int
) -> list[Probe]:
    length = int(cell.lengths[passage])
    present = np.flatnonzero(cell.query_position[passage] >= 0)
    if len(present) > most:
        present = present[np.linspace(0, len(present) - 1, most).round().astype(np.int64)]
    if len(present) == 0:
        return []
    positions = cell.query_position[passage, present]
    mask = visible_mask(positions, length, cell.spec.sliding_window)
    age = positions[:, None] - np.arange(length)
    exact = mask & ((age < window) | (np.arange(length) < sinks))
    place = f"layer {cell.spec.layer}, kv_head {cell.kv_head}, passage {cell.passages[passage]}"
    keys = checked_vectors(cell.keys[passage, :length], cell.spec.head_dim, f"{place}, key").astype(np.float64)
    values = checked_vectors(cell.values[passage, :length], cell.spec.value_dim, f"{place}, value").astype(np.float64)
    probes = []
    for member, queries in enumerate(cell.queries[passage][:, present]):
        sink = None if cell.sink_logits is None else float(cell.sink_logits[member])
        queries = checked_vectors(queries, cell.spec.head_dim, f"{place}, query")
        probes.append(_probe(stream, unit, rows, sinks, cell.spec, sink, queries, keys, values, mask, exact))
    return probes


def _same_passages(first: CellData, cell: CellData) -> None:
    if (
        cell.spec.layer != first.spec.layer
        or cell.split != first.split
        or not np.array_equal(cell.passages, first.passages)
    ):
        raise InputError(
            f"heads to be pooled differ: layer {first.spec.layer} split {first.split} with {len(first.passages)} passages, "
            f"and layer {cell.spec.layer} split {cell.split} with {len(cell.passages)}"
        )
