"""The texts a policy is certified on: passages of equal length, spread evenly over the documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from polykv.capture.corpus import TextDocument
from polykv.capture.passages import PassageRules, cut_passages
from polykv.errors import InputError
from polykv.types import Document


@dataclass(frozen=True, eq=False)
class EvaluationText:
    """token_ids: one [token] int64 a passage, all of one length; owner [passage] int64 indexes `documents`."""

    token_ids: tuple[np.ndarray, ...]
    owner: np.ndarray
    documents: tuple[Document, ...]


def evaluation_text(
    documents: Sequence[TextDocument],
    tokenize: Callable[[str], Sequence[int]],
    bos_id: int | None,
    n_passages: int,
    n_tokens: int,
) -> EvaluationText:
    """Cut `n_passages` passages of `n_tokens` tokens, the same number from each document as far as texts reach.

    Documents assigned by hand to a split other than confirm are left out: "calibrate:a.txt" is
    never evaluated. Raises InputError, with both numbers, when the texts hold too few passages.
    """
    used = [document for document in documents if not document.splits or "confirm" in document.splits]
    if not used:
        raise InputError("the corpus has no document to evaluate: all are assigned to calibrate or select")
    tokens = {document.digest: tokenize(document.text) for document in used}
    content = n_tokens - (bos_id is not None)
    capacities = [len(tokens[document.digest]) // content for document in used]
    if sum(capacities) < n_passages:
        held = ", ".join(f"{document.name} {capacity}" for document, capacity in zip(used, capacities, strict=True))
        raise InputError(
            f"the corpus holds {sum(capacities)} passages of {n_tokens} tokens, but {n_passages} are asked ({held}); "
            "add text, or ask for fewer or shorter passages"
        )
    passages, owner, kept = [], [], []
    for document, count in zip(used, even_shares(capacities, n_passages), strict=True):
        if count:
            rules = PassageRules(n_tokens, count, (0.0, 0.0, 1.0), min_tokens=n_tokens)
            whole = TextDocument(document.name, document.text, document.digest)
            plan = cut_passages([whole], lambda _, own=tokens[document.digest]: own, rules, bos_id)
            passages += [passage.token_ids for passage in plan.passages]
            owner += [len(kept)] * count
            kept += plan.documents
    return EvaluationText(tuple(passages), np.array(owner, np.int64), tuple(kept))


def even_shares(capacities: Sequence[int], total: int) -> list[int]:
    """`total` spread over places as evenly as their capacities allow; (5, 1, 9), 9 → 4, 1, 4.

    One at a time to the place with fewest so far (the earlier one on ties). With fewer to give
    than places, the places are spread evenly over the list.
    """
    open_places = [i for i, capacity in enumerate(capacities) if capacity]
    if total < len(open_places):
        chosen = {open_places[(2 * i + 1) * len(open_places) // (2 * total)] for i in range(total)}
        return [int(i in chosen) for i in range(len(capacities))]
    shares = [0] * len(capacities)
    for _ in range(total):
        place = min((i for i in open_places if shares[i] < capacities[i]), key=lambda i: shares[i])
        shares[place] += 1
    return shares


def spread_over_documents(passages: Sequence[int], documents: Sequence[int], total: int) -> list[int]:
    """At most `total` of `passages`, in order: the first ones of each document, as evenly as they reach.

    documents [passage]: the document of each.
    """
    known = sorted(set(documents))
    shares = even_shares([documents.count(document) for document in known], min(total, len(passages)))
    left, chosen = dict(zip(known, shares, strict=True)), []
    for passage, document in zip(passages, documents, strict=True):
        if left[document] > 0:
            left[document] -= 1
            chosen.append(passage)
    return chosen
