"""Frozen dataclasses that are JSON objects: manifests and receipts read and written by one rule.

A field's annotation says how it is read (see `_READERS`); a field made by `clock` holds a time,
which may be absent and takes no part in equality or in the digest, so that the same data gives the same
digest on any day.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Self

from polykv.errors import InputError, ReceiptError
from polykv.receipts import digest_json, to_plain
from polykv.strict import SEED_LIMIT, flag, items, known_fields, number, text, whole


def _number_or_null(value: Any, place: str) -> float | None:
    return None if value is None else number(value, place)


def _text_or_null(value: Any, place: str) -> str | None:
    return None if value is None else text(value, place)


def _texts(value: Any, place: str) -> tuple[str, ...]:
    return tuple(text(item, f"{place}[{i}]") for i, item in enumerate(items(value, place)))


def _wholes(value: Any, place: str) -> tuple[int, ...]:
    return tuple(whole(item, f"{place}[{i}]") for i, item in enumerate(items(value, place)))


def _mapping(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{place} must be a JSON object, got {type(value).__name__}")
    return to_plain(value, place)


def _mapping_or_null(value: Any, place: str) -> dict[str, Any] | None:
    return None if value is None else _mapping(value, place)


_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "int": whole,
    "Seed": lambda value, place: whole(value, place, limit=SEED_LIMIT),
    "float": number,
    "float | None": _number_or_null,
    "str": text,
    "str | None": _text_or_null,
    "bool": flag,
    "tuple[int, ...]": _wholes,
    "tuple[str, ...]": _texts,
    "Mapping[str, Any]": _mapping,
    "Mapping[str, Any] | None": _mapping_or_null,
}

Seed = int


def clock() -> Any:
    """A field for a time: 0 when unknown, not compared, not hashed."""
    return field(default=0, compare=False, metadata={"clock": True})


def optional(default: Any = None) -> Any:
    """A field that JSON may leave out, and that is left out while it has its default."""
    return field(default=default, metadata={"optional": True})


def defaulted(default: Any) -> Any:
    """A field that JSON may leave out, but that is always written."""
    return field(default=default, metadata={"defaulted": True})


def now_unix() -> int:
    """Seconds since 1970, for a clock field."""
    return int(time.time())


def since_ms(began: float) -> int:
    """Milliseconds since `time.perf_counter()` read `began`, for a clock field."""
    return int((time.perf_counter() - began) * 1000)


@dataclass(frozen=True)
class Record:
    """Base of JSON records. A subclass with a `schema` has a field `schema_version` that must equal it."""

    schema: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for item in fields(self):
            place = f"{self._what()}: {item.name}"
            object.__setattr__(self, item.name, self.read_field(item, getattr(self, item.name), place))
        stated = getattr(self, "schema_version", self.schema)
        if stated != self.schema:
            raise InputError(f"{self._what()}: expected schema {self.schema!r}, got {stated!r}")

    @classmethod
    def read_field(cls, item: Field[Any], value: Any, place: str) -> Any:
        """The checked value of one field; subclasses extend it for nested records."""
        return _READERS[str(item.type)](value, place)

    @classmethod
    def _what(cls) -> str:
        return cls.schema or cls.__name__

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: schema_version first, then the fields in their declared order."""
        shown = [f for f in fields(self) if not (f.metadata.get("optional") and getattr(self, f.name) == f.default)]
        shown.sort(key=lambda item: item.name != "schema_version")
        return {item.name: _plain(getattr(self, item.name)) for item in shown}

    @classmethod
    def from_dict(cls, raw: Any) -> Self:
        """Read strictly: unknown, missing and malformed fields are refused by name."""
        names = [item.name for item in fields(cls)]
        free = [item.name for item in fields(cls) if _may_be_absent(item)]
        required = [name for name in names if name not in free]
        return cls(**known_fields(raw, cls._what(), required, free))

    def digest(self) -> str:
        """blake3 of the canonical JSON without clock fields."""
        times = {item.name for item in fields(self) if item.metadata.get("clock")}
        return digest_json({name: value for name, value in self.to_dict().items() if name not in times})


class Comparison:
    """Collects what a receipt states and what is found; `finish` raises ReceiptError listing every difference."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._checked: list[str] = []
        self._wrong: list[str] = []

    def equal(self, name: str, stated: Any, found: Any) -> None:
        """`stated` must equal `found` exactly."""
        self._note(name, stated == found, stated, found)

    def close(self, name: str, stated: float | None, found: float | None, tolerance: float) -> None:
        """Two numbers must agree within `tolerance`, absolute and relative; nulls only with nulls."""
        if stated is None or found is None:
            same = stated is found
        else:
            same = abs(stated - found) <= tolerance * max(1.0, abs(found))
        self._note(name, same, stated, found)

    def finish(self) -> tuple[str, ...]:
        """The names checked."""
        if self._wrong:
            raise ReceiptError(f"{self._what} does not hold: {'; '.join(self._wrong)}")
        return tuple(self._checked)

    def _note(self, name: str, same: bool, stated: Any, found: Any) -> None:
        self._checked.append(name)
        if not same:
            self._wrong.append(f"{name} is stated as {stated!r}, found {found!r}")


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_dict() if hasattr(value, "to_dict") else to_plain(value)


def _may_be_absent(item: Field[Any]) -> bool:
    return bool({"clock", "optional", "defaulted"} & set(item.metadata))
