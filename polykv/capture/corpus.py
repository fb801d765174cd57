"""Reading a corpus: plain-text files and globs, one document a file, and JSONL.

A document may be assigned to a split by hand: "calibrate:persuasion.txt". Nothing here knows
a tokenizer; `polykv.capture.passages` cuts documents into passages.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from polykv.errors import InputError
from polykv.receipts import digest_bytes, parse_json
from polykv.types import SPLITS


@dataclass(frozen=True)
class TextDocument:
    """One text: its name (file name, or "file.jsonl:LINE"), blake3 of its bytes (of the
    file, or of the JSONL field in UTF-8), and the splits it was assigned to by hand (empty: none)."""

    name: str
    text: str
    digest: str
    splits: tuple[str, ...] = ()


def read_corpus(sources: Iterable[str], text_field: str = "text") -> list[TextDocument]:
    """All documents of a corpus, in the order given (a glob's files sorted by name).

    A file reached twice is read once; reached under several splits it is shared among them.
    Raises InputError, naming the file (and line), for a source that matches nothing, a file
    that is not UTF-8, or a JSONL line without the field.
    """
    wanted: dict[Path, set[str]] = {}
    by_hand: dict[bool, str] = {}
    for source in sources:
        split, pattern = split_source(source)
        by_hand[split is not None] = source
        for path in _matching_files(pattern):
            wanted.setdefault(path, set()).update({split} if split else ())
    if len(by_hand) == 2:
        raise InputError(
            f"{by_hand[True]!r} names its split but {by_hand[False]!r} does not; write split:path for all or for none"
        )
    names = _short_names(list(wanted))
    documents = []
    for path, splits in wanted.items():
        ordered = tuple(name for name in SPLITS if name in splits)
        documents += _documents_of(path, names[path], text_field, ordered)
    if not documents:
        raise InputError("the corpus has no document")
    return documents


def split_source(source: str) -> tuple[str | None, str]:
    """("calibrate", "a.txt") of "calibrate:a.txt"; (None, source) when no split is named."""
    prefix, colon, rest = source.partition(":")
    if colon and prefix in SPLITS:
        if not rest:
            raise InputError(f"corpus source {source!r} names a split but no file")
        return prefix, rest
    return None, source


def _matching_files(pattern: str) -> list[Path]:
    if not pattern:
        raise InputError("corpus source '' names no file")
    path = Path(pattern)
    if path.is_file():
        return [path.resolve()]
    if path.is_dir():
        raise InputError(f"corpus source {pattern!r} is a directory; write {pattern.rstrip('/')}/*.txt")
    found = sorted(p for p in glob.glob(pattern, recursive=True) if Path(p).is_file())
    if not found:
        raise InputError(f"corpus source {pattern!r} matches no file")
    return [Path(p).resolve() for p in found]


def _short_names(paths: list[Path]) -> dict[Path, str]:
    """File names; with their folder where two files share a name."""
    plain = [path.name for path in paths]
    return {path: path.name if plain.count(path.name) == 1 else f"{path.parent.name}/{path.name}" for path in paths}


def _documents_of(path: Path, name: str, text_field: str, splits: tuple[str, ...]) -> Iterator[TextDocument]:
    raw, text = _read_text(path)
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        yield TextDocument(name, text, digest_bytes(raw), splits)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = parse_json(line, f"{name} line {number}")
        if not isinstance(row, dict) or not isinstance(row.get(text_field), str):
            has = ", ".join(sorted(row)) if isinstance(row, dict) else f"a {type(row).__name__}"
            raise InputError(f"{name} line {number}: no text in field {text_field!r} (it has {has}); set --text-field")
        field_bytes = row[text_field].encode("utf-8", "surrogatepass")
        yield TextDocument(f"{name}:{number}", row[text_field], digest_bytes(field_bytes), splits)


def _read_text(path: Path) -> tuple[bytes, str]:
    try:
        raw = path.read_bytes()
        return raw, raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise InputError(f"{path.name} is not UTF-8 text: {bad}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
