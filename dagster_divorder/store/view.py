"""The view: the corpus as fragments of records in input order, and the files that they were read from.

Records are numbered 0 to N-1 in input order. Every array of a later stage is over records, sequences or positions.
Appending, editing, deleting, reordering or duplicating input makes a new view; equal fragments stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, repeat

import numpy as np
import orjson

from dagster_divorder.store.arrays import compact
from dagster_divorder.store.base import Store


@dataclass(frozen=True, slots=True)
class Fragment:
    """A run of consecutive lines (or Parquet rows) of one input, across its files, cut by content.

    rows: accepted records. lines: all lines, blank and refused ones too. refused: records. size: bytes of the accepted
    records, lines with their ends; text_bytes: of their texts. hashes: sum of the record hashes (`ids.hash_sum`).
    digest: a hash of the records' ids in order. shape: `Shape.key` of the input. file, offset: where its first line
    begins. primary: its end is cut by content, and not because it is full or the input ends. raw: a hash of the bytes
    in the files from there to the next fragment; "" if they cannot grow in place. picks: rows, int64
    (rows,), if it stands for some of a fragment's records only.
    """

    name: str
    rows: int
    lines: int = 0
    refused: int = 0
    size: int = 0
    text_bytes: int = 0
    hashes: str = "0"
    digest: str = ""
    shape: int = 0
    file: int = 0
    offset: int = 0
    primary: bool = False
    raw: str = ""
    picks: np.ndarray | None = field(default=None, compare=False)

    def pick(self, rows: np.ndarray) -> Fragment:
        """Some records of the fragment, by their rows, int64 (n,), in any order."""
        share = len(rows) / max(1, self.rows)
        size, text_bytes = int(self.size * share), int(self.text_bytes * share)
        return replace(self, rows=len(rows), picks=rows, size=size, text_bytes=text_bytes)


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file of the input as it was read.

    identity: see `store.sources.identity`; none if the next run cannot rely on it. It is not saved with the view, which
    depends on the input alone. lines: lines (or rows) that fragments hold; blank: those that are blank. group: the
    number of its input. unfinished: offset and first bytes (as text) of a last line that is still being written.
    columns: schema of a Parquet file at a URL, as Arrow serialises it, in hex.
    """

    path: str
    size: int
    identity: tuple[int | str, ...]
    lines: int
    blank: int
    shape: int = 0
    group: int = 0
    unfinished: tuple[int, str] | None = None
    columns: str = ""


@dataclass(frozen=True)
class View:
    """N accepted records in input order. kind: "jsonl" or "parquet", how fragments hold records. pieces: all fragments,
    also those whose records were all refused."""

    kind: str
    pieces: tuple[Fragment, ...]
    files: tuple[ReadFile, ...] = ()

    @cached_property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments with records."""
        return tuple(piece for piece in self.pieces if piece.rows)

    def __len__(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)

    def save(self, store: Store, name: str) -> str:
        """Put the view in the store; return its file."""
        files = [replace(file, identity=()) for file in self.files]
        data = orjson.dumps({"kind": self.kind, "pieces": self.pieces, "files": files})
        return store.put_hashed("views", name, data, "json")

    @classmethod
    def load(cls, store: Store, file: str, identities: Iterable[Sequence[int | str]] = repeat(())) -> View:
        """identities: of the files. Raises DamagedFileError: the file is missing or altered."""
        data = orjson.loads(store.read_verified(file))
        pieces = tuple(Fragment(**values) for values in data["pieces"])
        files = (
            ReadFile(**values | {"identity": tuple(known)})
            for values, known in zip(data["files"], identities, strict=False)
        )
        return cls(data["kind"], pieces, tuple(files))


def by_fragment(
    fragments: Sequence[Fragment], records: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields (fragment number, places in `records`, their rising rows in the fragment) for each fragment that holds
    some of the records, in order. records: int (Q,), counted over the fragments, repeats allowed."""
    by_record = np.argsort(records, kind="stable")
    start = offsets(fragments)
    # If `start` had a wider type than the records, NumPy would copy all records.
    cuts = np.searchsorted(records, compact(start), sorter=by_record)
    for number in np.flatnonzero(np.diff(cuts)).tolist():
        places = by_record[cuts[number] : cuts[number + 1]]
        yield number, places, records[places] - records.dtype.type(start[number])


def spans(fragments: Sequence[Fragment]) -> list[slice]:
    """The records of each fragment."""
    return [slice(*bounds) for bounds in pairwise(offsets(fragments).tolist())]


def offsets(fragments: Sequence[Fragment]) -> np.ndarray:
    """First record of each fragment, then the total; int64 (fragments + 1,)."""
    return np.concatenate([[0], np.cumsum([fragment.rows for fragment in fragments], dtype=np.int64)])
