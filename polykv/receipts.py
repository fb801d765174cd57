"""Strict JSON, and the digests that make a receipt checkable.

Canonical JSON is UTF-8, keys sorted, no white space, no NaN and no infinity; a digest is
blake3 over those bytes, or over an array's little-endian C-order bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
from blake3 import blake3

from polykv.errors import InputError, NonFiniteError, PolykvError

# Raised by hand whenever a released number changes: row digests hash it, so that a resumed
# run never mixes figures of two formulas.
NUMERICS_VERSION = 1


def to_plain(value: Any, place: str = "$") -> Any:
    """`value` as plain JSON types; dataclasses become objects, numpy numbers Python numbers.

    Raises NonFiniteError naming the place for NaN and infinity, InputError for other types.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (float, np.floating)):
        if not np.isfinite(value):
            raise NonFiniteError(f"{place} is {value}: JSON here holds finite numbers only (use null)")
        return float(value)
    if isinstance(value, Mapping):
        return {str(k): to_plain(v, f"{place}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [to_plain(v, f"{place}[{i}]") for i, v in enumerate(value)]
    raise InputError(f"{place} is a {type(value).__name__}, which JSON cannot hold")


def canonical_json(value: Any) -> bytes:
    """The one spelling of `value` that digests are taken over."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def pretty_json(value: Any) -> str:
    """`value` for people: indented, keys in their own order, a newline at the end."""
    return json.dumps(to_plain(value), indent=2, ensure_ascii=False) + "\n"


def parse_json(text: str | bytes, what: str = "JSON") -> Any:
    """Parse strictly: NaN, Infinity, repeated keys and text that is no Unicode are refused, with the text's name."""

    def constant(name: str) -> None:
        raise NonFiniteError(f"{what} contains {name}: only finite numbers are allowed")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{what} repeats the key {twice!r}")
        return found

    try:
        # json.loads would let lone surrogates through, which no table and no terminal can hold
        plain = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
        parsed = json.loads(plain, parse_constant=constant, object_pairs_hook=pairs)
        if "\\u" in plain:
            json.dumps(parsed, ensure_ascii=False).encode()
        return parsed
    except PolykvError:
        raise
    except (ValueError, RecursionError) as error:
        # ValueError: bad syntax, bad UTF-8, lone surrogates, and integers of more digits than Python converts
        raise InputError(f"{what} is not valid JSON: {error}") from error


def digest_json(value: Any) -> str:
    """blake3 of the canonical JSON, 64 hex digits."""
    return blake3(canonical_json(value)).hexdigest()


def digest_array(array: np.ndarray) -> str:
    """blake3 of the array's little-endian C-order bytes (shape and dtype are not hashed)."""
    array = np.ascontiguousarray(array)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return blake3(little.data.cast("B") if little.size else b"").hexdigest()


def digest_bytes(data: bytes) -> str:
    """blake3 of raw bytes, 64 hex digits."""
    return blake3(data).hexdigest()
