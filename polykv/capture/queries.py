"""Where in a passage the queries are."""

from __future__ import annotations

import numpy as np

from polykv.errors import InputError


def query_positions(
    length: int, n_queries: int, shared_tokens: int | None = None, recent_window: int = 32, exact: bool = False
) -> np.ndarray:
    """[query] int64 token indices, evenly in [shared_tokens + recent_window, length − 2].

    The last token has no next token and is never a query. `shared_tokens` defaults to half the
    length. Where the range is empty (short passages) the recent window is cut to half of what
    the shared part leaves; where it has fewer places than `n_queries` there are fewer queries,
    unless `exact`. With length 128 the range is 96 … 126.
    Raises InputError when there is no place at all, or too few with `exact`.
    """
    shared = length // 2 if shared_tokens is None else shared_tokens
    last = length - 2
    if not 1 <= shared <= last:
        raise InputError(
            f"no place for a query: a passage of {length} tokens with {shared} shared has its last query position "
            f"at {last}; use longer passages or fewer shared tokens"
        )
    first = shared + recent_window
    if first > last:
        first = shared + (last - shared) // 2
    places = last - first + 1
    if exact and n_queries > places:
        raise InputError(
            f"{n_queries} queries asked, but a passage of {length} tokens has {places} places for them "
            f"({first} … {last}); ask for fewer queries or longer passages"
        )
    if n_queries == 1:
        return np.array([(first + last) // 2], np.int64)
    return np.round(np.linspace(first, last, min(n_queries, places))).astype(np.int64)
