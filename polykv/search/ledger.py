"""What a search has paid for, kept so that the same command goes on where it stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from polykv.receipts import to_plain


class Ledger:
    """Answers by key in a file of JSON lines; each is on disk before it is used.

    A line that was cut short by a killed process is dropped: its question is asked again. `other` is
    another search's file: an answer of it that is used is copied, so that each file holds all its
    search rests on.
    """

    def __init__(self, path: Path, other: Path | None = None) -> None:
        self._path = path
        self._known = _entries(path)
        self._other = {} if other is None else _entries(other)

    def get(self, key: str) -> Any:
        """The answer, or None when the question is new."""
        if key not in self._known and key in self._other:
            self.put(key, self._other[key])
        return self._known.get(key)

    def put(self, key: str, value: Any) -> Any:
        """Keep an answer (plain JSON); returns it."""
        plain = to_plain(value)
        line = json.dumps({"key": key, "value": plain}, allow_nan=False) + "\n"
        with self._path.open("a", encoding="utf-8") as file:
            file.write(("\n" if self._is_torn() else "") + line)
            file.flush()
            os.fsync(file.fileno())
        self._known[key] = plain
        return plain

    def _is_torn(self) -> bool:
        """Whether the file ends inside a line."""
        data = self._path.read_bytes() if self._path.exists() else b""
        return bool(data) and not data.endswith(b"\n")


def _entries(path: Path) -> dict[str, Any]:
    """The whole lines of a ledger's file; none when there is no file."""
    found: dict[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
            found[entry["key"]] = entry["value"]
        except (ValueError, KeyError, TypeError):
            continue
    return found
