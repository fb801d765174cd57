"""Cutting documents into passages, and passages into splits that share no token.

A document belongs to one split, or is cut into one contiguous region per split with a gap
between; a passage never leaves its region and passages never overlap. Everything follows from
the texts and the numbers asked for: there is no random choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polykv.capture.corpus import TextDocument
from polykv.capture.splits import Region, assign_regions, passages_per_split
from polykv.errors import InputError
from polykv.types import SPLITS, Document


@dataclass(frozen=True, eq=False)
class Passage:
    """One text window: token_ids [token] int64 (BOS included), cut at token `start` of a document."""

    index: int
    split: str
    document: int
    start: int
    token_ids: np.ndarray


@dataclass(frozen=True, eq=False)
class CorpusPlan:
    """Passages ordered by split, document and place; the documents they came from; the rule that
    made the splits ("document", "region" or "by hand"); and (name, reason) of texts left out."""

    passages: tuple[Passage, ...]
    documents: tuple[Document, ...]
    split_rule: str
    skipped: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PassageRules:
    """How passages are cut; see `CaptureConfig` for the meaning of each number."""

    n_tokens: int
    n_passages: int
    split_fractions: tuple[float, float, float] = (0.25, 0.25, 0.5)
    split_by: str = "auto"
    gap_tokens: int | None = None
    min_tokens: int = 16
    skip_short: bool = False


def cut_passages(
    documents: Sequence[TextDocument],
    tokenize: Callable[[str], Sequence[int]],
    rules: PassageRules,
    bos_id: int | None = None,
) -> CorpusPlan:
    """Tokenise documents and cut `rules.n_passages` passages, spread evenly over each split's text.

    `tokenize` must add no special token; `bos_id` (None: no BOS) is put before every passage and
    counts among its tokens. Raises InputError, with both numbers, for an empty or too short
    document (unless `skip_short`), and for a corpus that holds too few passages.
    """
    tokens, kept, skipped = _tokenised(documents, tokenize, rules, bos_id)
    if not kept:
        raise InputError(f"the corpus has no text long enough for a passage of at least {rules.min_tokens} tokens")
    content = rules.n_tokens - (bos_id is not None)
    counts = passages_per_split(rules.n_passages, rules.split_fractions)
    gap = rules.n_tokens if rules.gap_tokens is None else rules.gap_tokens
    regions, split_rule = assign_regions(kept, [len(t) for t in tokens], counts, content, gap, rules.split_by)
    places = [
        (split, document, start, width)
        for split in SPLITS
        for document, start, width in _places(regions[split], counts[split], content)
    ]
    used = sorted({document for _, document, _, _ in places})
    return CorpusPlan(
        tuple(
            Passage(i, split, used.index(document), start, _with_bos(tokens[document][start : start + width], bos_id))
            for i, (split, document, start, width) in enumerate(places)
        ),
        tuple(Document(kept[d].name, kept[d].digest, len(tokens[d])) for d in used),
        split_rule,
        tuple(skipped),
    )


def _tokenised(
    documents: Sequence[TextDocument],
    tokenize: Callable[[str], Sequence[int]],
    rules: PassageRules,
    bos_id: int | None,
) -> tuple[list[np.ndarray], list[TextDocument], list[tuple[str, str]]]:
    tokens, kept, skipped = [], [], []
    for document in documents:
        ids = np.asarray(tokenize(document.text) if document.text.strip() else [], np.int64)
        length = len(ids) + (bos_id is not None)
        if not len(ids):
            reason = "the text is empty"
        elif length < rules.min_tokens:
            reason = f"the text has {length} tokens, a passage needs at least {rules.min_tokens}"
        else:
            tokens.append(ids)
            kept.append(document)
            continue
        if not rules.skip_short:
            raise InputError(f"{document.name}: {reason}; remove it from the corpus or pass --skip-short")
        skipped.append((document.name, reason))
    return tokens, kept, skipped


def _places(regions: Sequence[Region], n_passages: int, content: int) -> list[tuple[int, int, int]]:
    """(document, start, width) of passages spread evenly over one split's regions.

    The regions' capacities are laid end to end and passage i sits at (i + ½) / n of the whole;
    with n at most the capacity, no region gets more than it holds. Inside a region each passage
    is centred in its equal share: two passages of 10 in a region of 100 start at 20 and 70.
    """
    capacities = [region.capacity(content) for region in regions]
    if n_passages == 0:
        return []
    ends = np.cumsum(capacities)
    middles = (np.arange(n_passages) + 0.5) * ends[-1] / n_passages
    owners = np.bincount(np.searchsorted(ends, middles, side="right"), minlength=len(regions))
    places = []
    for region, held in zip(regions, owners, strict=True):
        width = min(content, region.width)
        for i in range(held):
            offset = int((2 * i + 1) * region.width - held * width) // (2 * int(held))
            places.append((region.document, region.start + offset, width))
    return places


def _with_bos(ids: np.ndarray, bos_id: int | None) -> np.ndarray:
    return ids.copy() if bos_id is None else np.concatenate([np.array([bos_id], np.int64), ids])


def split_counts(plan: CorpusPlan) -> Mapping[str, int]:
    """Passages in each split."""
    return {split: sum(p.split == split for p in plan.passages) for split in SPLITS}
