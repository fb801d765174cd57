"""Which text belongs to which split: whole documents, or disjoint regions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polykv.capture.corpus import TextDocument
from polykv.errors import InputError
from polykv.types import SPLITS


@dataclass(frozen=True)
class Region:
    """Tokens [start, start + width) of one document; `whole` when that is all of it."""

    document: int
    start: int
    width: int
    whole: bool

    def capacity(self, content: int) -> int:
        """Passages of `content` tokens that fit without overlap; a whole short text is one, shorter."""
        return max(self.width // content, int(self.whole))


def passages_per_split(n_passages: int, fractions: Sequence[float]) -> dict[str, int]:
    """Passages for each split by largest remainder (ties: the earlier split); 24 → 6, 6, 12."""
    exact = np.asarray(fractions, np.float64) * n_passages
    counts = np.floor(exact + 1e-9).astype(int)
    for extra in np.argsort(-(exact - counts), kind="stable")[: n_passages - counts.sum()]:
        counts[extra] += 1
    return dict(zip(SPLITS, counts.tolist(), strict=True))


def assign_regions(
    documents: Sequence[TextDocument],
    lengths: Sequence[int],
    counts: Mapping[str, int],
    content: int,
    gap: int,
    split_by: str,
) -> tuple[dict[str, list[Region]], str]:
    """({split: its regions}, the rule that was used).

    Documents assigned by hand stay where they were put. Otherwise each document goes to one
    split ("document"), or is cut into a region per split ("region"); "auto" takes the first
    when every split then holds its passages. Raises InputError naming the split, what it holds
    and what it needs.
    """
    active = tuple(split for split in SPLITS if counts[split])
    if any(document.splits for document in documents):
        loose = [document.name for document in documents if not document.splits]
        if loose:
            raise InputError(f"{loose[0]} has no split but other documents do; assign all by hand or none")
        _refuse_leaks(documents)
        return _checked([d.splits for d in documents], lengths, counts, content, gap), "by hand"
    regional = [active] * len(documents)
    if split_by == "region" or len({d.digest for d in documents}) < len(active):
        if split_by == "document":
            raise InputError(
                f"{len(documents)} documents cannot fill {len(active)} splits by document; "
                "add documents, or split by region"
            )
        return _checked(regional, lengths, counts, content, gap), "region"
    by_document = _by_document(documents, lengths, counts, content)
    if split_by == "auto" and _shortfall(_regions(by_document, lengths, counts, gap), counts, content):
        return _checked(regional, lengths, counts, content, gap), "region"
    return _checked(by_document, lengths, counts, content, gap), "document"


def _by_document(
    documents: Sequence[TextDocument], lengths: Sequence[int], counts: Mapping[str, int], content: int
) -> list[tuple[str, ...]]:
    """One split a document: largest text first, to the split furthest below its share.

    Documents with the same text go together, and no split with passages is left without one.
    """
    capacity: dict[str, int] = {}
    for document, length in zip(documents, lengths, strict=True):
        capacity[document.digest] = capacity.get(document.digest, 0) + max(1, length // content)
    total = sum(capacity.values())
    share = {split: n / sum(counts.values()) for split, n in counts.items() if n}
    lacking = {split: share[split] * total for split in share}
    empty, owner = list(share), {}
    for left, digest in zip(range(len(capacity), 0, -1), sorted(capacity, key=lambda d: -capacity[d]), strict=True):
        candidates = empty if left <= len(empty) else list(share)
        split = max(candidates, key=lambda name: lacking[name])
        lacking[split] -= capacity[digest]
        owner[digest] = split
        if split in empty:
            empty.remove(split)
    return [(owner[document.digest],) for document in documents]


def _regions(
    splits: Sequence[tuple[str, ...]], lengths: Sequence[int], counts: Mapping[str, int], gap: int
) -> dict[str, list[Region]]:
    """Cut each document into one region per split of its own, as wide as the split's share of passages.

    100 tokens, gap 10, shares 1 : 1 : 2 → [0, 20), [30, 50), [60, 100).
    """
    regions: dict[str, list[Region]] = {split: [] for split in SPLITS}
    for document, (own, length) in enumerate(zip(splits, lengths, strict=True)):
        used = [split for split in own if counts[split]]
        usable = max(0, length - gap * (len(used) - 1))
        total = sum(counts[split] for split in used)
        before = 0
        for i, split in enumerate(used):
            start, end = usable * before // total, usable * (before + counts[split]) // total
            regions[split].append(Region(document, start + i * gap, end - start, len(used) == 1))
            before += counts[split]
    return regions


def _shortfall(regions: Mapping[str, list[Region]], counts: Mapping[str, int], content: int) -> str | None:
    """What is missing, in words; None when every split holds its passages."""
    for split, n_passages in counts.items():
        held = sum(region.capacity(content) for region in regions[split])
        if held < n_passages:
            return (
                f"split {split} has {len(regions[split])} texts that hold {held} passages of {content} tokens, "
                f"but {n_passages} are asked"
            )
    return None


def _checked(
    splits: Sequence[tuple[str, ...]], lengths: Sequence[int], counts: Mapping[str, int], content: int, gap: int
) -> dict[str, list[Region]]:
    regions = _regions(splits, lengths, counts, gap)
    missing = _shortfall(regions, counts, content)
    if missing:
        raise InputError(
            f"{missing} (the corpus has {sum(lengths)} tokens in {len(lengths)} documents, gaps of {gap} between "
            "regions); add text, or ask for fewer or shorter passages, or other split fractions"
        )
    return regions


def _refuse_leaks(documents: Sequence[TextDocument]) -> None:
    """The same text in two splits would let a figure be judged on what it was fitted to."""
    seen: dict[str, TextDocument] = {}
    for document in documents:
        first = seen.setdefault(document.digest, document)
        if first is not document and (first.splits != document.splits or len(first.splits) > 1):
            raise InputError(
                f"{first.name} ({', '.join(first.splits)}) and {document.name} ({', '.join(document.splits)}) "
                "are the same text in different splits; remove one"
            )
