"""The seal: written last, it holds the digest of every slab, of the meta, and its own.

A store without a seal was never finished. A digest is blake3 over a slab's little-endian
C-order bytes, padding included; a slab is one chunk (see `layout`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polykv.errors import DamagedStoreError, InputError, SchemaVersionError, UnsealedStoreError
from polykv.receipts import canonical_json, digest_json, parse_json
from polykv.storage.layout import SCHEMA, ArrayLayout
from polykv.storage.location import Location

SEAL_FILE = "seal.json"


@dataclass(frozen=True)
class Seal:
    """`slabs[array]` lists digests in the C order of the array's chunk grid."""

    meta_digest: str
    slabs: Mapping[str, tuple[str, ...]]
    n_unique_labels: int | None = None

    @property
    def digest(self) -> str:
        """The store's own digest: whatever the meta or any slab says, it changes with it."""
        return digest_json(self._body())

    def slab(self, array: ArrayLayout, index: tuple[int, ...]) -> str:
        """Digest of one slab; raises DamagedStoreError when the seal has none."""
        found = self.slabs.get(array.name, ())
        position = array.flat(index)
        if position >= len(found):
            raise DamagedStoreError(f"the seal has no digest for {array.place(index)}")
        return found[position]

    def array_digest(self, name: str) -> str:
        """One digest for a whole array: blake3 over the list of its slabs' digests."""
        return digest_json(list(self.slabs.get(name, ())))

    def to_bytes(self) -> bytes:
        return canonical_json({**self._body(), "digest": self.digest}) + b"\n"

    def _body(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "hash": "blake3",
            "meta_digest": self.meta_digest,
            "n_unique_labels": self.n_unique_labels,
            "slabs": {name: list(digests) for name, digests in self.slabs.items()},
        }


def read_seal(location: Location) -> Seal:
    """The seal of the store at `location`.

    Raises UnsealedStoreError when there is none, SchemaVersionError for another schema,
    DamagedStoreError when it is not what was written.
    """
    raw = location.read_bytes(SEAL_FILE)
    if raw is None:
        raise UnsealedStoreError(
            f"{location.url} has no {SEAL_FILE}: its capture never finished. Capture again into a new place"
        )
    what = f"{location.url}, file {SEAL_FILE}"
    try:
        body = parse_json(raw, what)
    except InputError as error:
        raise DamagedStoreError(f"{what} is damaged ({len(raw)} bytes): {error}") from error
    if isinstance(body, dict) and body.get("schema", SCHEMA) != SCHEMA:
        raise SchemaVersionError(f"{what} has schema {body['schema']!r}, this release reads {SCHEMA!r}")
    return _checked(body, what)


def _checked(body: object, what: str) -> Seal:
    if not isinstance(body, dict):
        raise DamagedStoreError(f"{what} is damaged: it holds a {type(body).__name__}, not an object")
    try:
        seal = Seal(body["meta_digest"], {n: tuple(d) for n, d in body["slabs"].items()}, body["n_unique_labels"])
        written = body["digest"]
    except (TypeError, KeyError, AttributeError) as error:
        raise DamagedStoreError(f"{what} is damaged: it lacks {error}") from error
    if written != seal.digest:
        raise DamagedStoreError(f"{what} is damaged: its own digest is {seal.digest}, it says {written}")
    return seal
