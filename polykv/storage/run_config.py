"""A run directory belongs to one configuration: what differs is said by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polykv.errors import RunConfigError

_ABSENT = "(absent)"


def check_same_config(folder: Path, old: Any, new: Any) -> None:
    """Raise RunConfigError unless the two are equal; the text names the first key that differs."""
    difference = _first_difference(old, new, "")
    if difference is not None:
        key, was, now = difference
        raise RunConfigError(
            f"{folder} holds a run of another configuration: {key} is {_short(was)} there, {_short(now)} asked for; "
            "choose another run directory, or ask for the same again"
        )


def _first_difference(old: Any, new: Any, place: str) -> tuple[str, Any, Any] | None:
    """(key, old, new) of the first place where two plain JSON values differ; "(absent)" for no value."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(f"{place}.{k}" if place else k, old.get(k, _ABSENT), new.get(k, _ABSENT)) for k in {**old, **new}]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{place}[{i}]", a, b) for i, (a, b) in enumerate(zip(old, new, strict=True))]
    else:
        return None if _same(old, new) else (place or "the configuration", old, new)
    for where, a, b in pairs:
        found = _first_difference(a, b, where)
        if found is not None:
            return found
    return None


def _same(old: Any, new: Any) -> bool:
    """Equal as JSON: 1 and 1.0 and true are three things."""
    return type(old) is type(new) and old == new


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
