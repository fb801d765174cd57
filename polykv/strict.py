"""Reading JSON strictly: every value is of the type announced, finite, in range, or refused with its place.

The parsed JSON of fixtures, manifests and receipts goes through here. A bool is no number, a
number beyond float32 is no float32, and an unknown key is an error, never something ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from polykv.errors import DimensionMismatch, InputError, NonFiniteError, PolykvError

SEED_LIMIT = 2**64
COUNT_LIMIT = 2**63
_NUMBERS = (float, int, np.floating, np.integer)


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put `place` in front of the text of any polykv error raised inside."""
    try:
        yield
    except PolykvError as error:
        raise type(error)(f"{place}{error}") from error


def known_fields(raw: Any, what: str, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """`raw` as a dict with all of `required`, some of `optional`, and nothing else."""
    if not isinstance(raw, Mapping):
        raise InputError(f"{what} must be a JSON object, got {type(raw).__name__}")
    unknown = [name for name in raw if name not in required and name not in optional]
    if unknown:
        raise InputError(f"{what} has no field {unknown[0]!r}; it has {', '.join((*required, *optional))}")
    missing = [name for name in required if name not in raw]
    if missing:
        raise InputError(f"{what} lacks the field {missing[0]!r}")
    return dict(raw)


def whole(value: Any, place: str, low: int = 0, limit: int = COUNT_LIMIT) -> int:
    """A whole number in [low, limit)."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{place} is {_shown(value)}, must be a whole number")
    if not low <= value < limit:
        raise InputError(f"{place} is {_shown(value)}, must be at least {low} and below {limit}")
    return int(value)


def number(value: Any, place: str) -> float:
    """A finite number as float64."""
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise InputError(f"{place} is {_shown(value)}, must be a number")
    try:
        found = float(value)
    except OverflowError as error:
        raise NonFiniteError(f"{place} is beyond float64") from error
    if not np.isfinite(found):
        raise NonFiniteError(f"{place} is {found}, must be finite")
    return found


def text(value: Any, place: str) -> str:
    """A string that UTF-8 can hold."""
    if not isinstance(value, str):
        raise InputError(f"{place} is {_shown(value)}, must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place} holds half of a surrogate pair, which UTF-8 cannot") from error
    return value


def flag(value: Any, place: str) -> bool:
    """true or false."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{place} is {_shown(value)}, must be true or false")
    return bool(value)


def items(value: Any, place: str) -> Sequence[Any]:
    """A JSON array (list or tuple)."""
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{place} is {_shown(value)}, must be an array")
    return value


def vector(value: Any, place: str) -> np.ndarray:
    """[n] float32, C order, read from a list of numbers or a numeric array of one axis.

    Raises NonFiniteError naming the entry for NaN, infinity, and numbers beyond float32 (3.4e38).
    """
    array = value if isinstance(value, np.ndarray) else _from_list(items(value, place), place)
    if array.ndim != 1 or array.dtype.kind not in "fiu":
        raise InputError(f"{place} has {array.ndim} axes of {array.dtype}, must be one axis of numbers")
    return _as_float32(array, place)


def rows(value: Any, place: str) -> np.ndarray | tuple[np.ndarray, ...]:
    """[n, d] float32 when all rows have one length; else a tuple of [d_i] float32, for a later check to refuse."""
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "fiu":
        return _as_float32(value, place)
    listed = value if isinstance(value, (np.ndarray, tuple)) else items(value, place)
    found = tuple(vector(row, f"{place}[{i}]") for i, row in enumerate(listed))
    if len({len(row) for row in found}) > 1:
        return found
    return np.stack(found) if found else np.empty((0, 0), np.float32)


def check_length(got: int, expected: int, place: str) -> None:
    """Raise DimensionMismatch, with both numbers, unless they are equal."""
    if got != expected:
        raise DimensionMismatch(f"{place}: dimension mismatch: expected {expected}, got {got}")


def _from_list(listed: Sequence[Any], place: str) -> np.ndarray:
    strange = {kind for kind in set(map(type, listed)) if kind is bool or not issubclass(kind, _NUMBERS)}
    if strange:
        index = next(i for i, item in enumerate(listed) if type(item) in strange)
        raise InputError(f"{place}[{index}] is {_shown(listed[index])}, must be a number")
    try:
        return np.array(listed, dtype=np.float64)
    except OverflowError as error:
        raise NonFiniteError(f"{place} holds a whole number beyond float64") from error


def _as_float32(array: np.ndarray, place: str) -> np.ndarray:
    # what float32 cannot hold becomes infinite here and is refused below, with its place
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(array, dtype=np.float32)
    finite = np.isfinite(single)
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        entry = "".join(f"[{i}]" for i in where)
        raise NonFiniteError(f"{place}{entry} is {array[where]}: must be finite and within float32 (3.4e38)")
    return single


def _shown(value: Any) -> str:
    """A value in an error text, at most 40 characters of it."""
    if isinstance(value, int) and abs(value) >= 10**39:
        return f"a whole number of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}…"
