"""The view: input position -> record -> document, over the fragments that hold them.

Appending, editing, deleting, reordering and duplicating input is a new view; fragments stay. Memory: 8 bytes a record
(16 from 2^32 rows on).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import orjson

from dagster_divorder.store.arrays import compact, pack, unpack
from dagster_divorder.store.base import Store


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment as a view uses it: name, content file, number of rows."""

    name: str
    file: str
    rows: int


@dataclass(frozen=True, slots=True)
class View:
    """N accepted records in input order.

    `record_row` and `document_row`, uint32 (N,), or int64 from 2^32 rows on, count rows through `records` and
    `documents` laid end to end. Rows that no record refers to (deleted input) may be there.
    """

    kind: str
    records: tuple[Fragment, ...]
    documents: tuple[Fragment, ...]
    record_row: np.ndarray
    document_row: np.ndarray

    def __len__(self) -> int:
        return len(self.record_row)

    def take(self, records: np.ndarray) -> View:
        """Some of the records, int64 (M,), also repeatedly."""
        return replace(self, record_row=self.record_row[records], document_row=self.document_row[records])

    @property
    def document_rows(self) -> int:
        """Rows of the document fragments, used or not: the length of every per-document array."""
        return sum(fragment.rows for fragment in self.documents)

    @property
    def copies(self) -> np.ndarray:
        """int64 (N,): of each record the first position that holds its text. Equal for copies of a text, and, unlike
        `document_row`, the same whatever fragments the documents are in."""
        first = np.empty(self.document_rows, np.int64)
        # Of several values for one place the last stays.
        first[self.document_row[::-1]] = np.arange(len(self) - 1, -1, -1)
        return first[self.document_row]

    def used_documents(self) -> np.ndarray:
        """bool (document_rows,): which documents some record holds."""
        used = np.zeros(self.document_rows, dtype=bool)
        used[self.document_row] = True
        return used

    def used_records(self) -> np.ndarray:
        """bool (record rows,): which records the view holds."""
        used = np.zeros(sum(fragment.rows for fragment in self.records), dtype=bool)
        used[self.record_row] = True
        return used

    def by_fragment(self, records: np.ndarray) -> Iterator[tuple[Fragment, np.ndarray, np.ndarray]]:
        """(document fragment, places in `records` whose documents are in it, their rows in it), of each fragment that
        holds some, in order. records: int64 (Q,), positions in the view, also repeatedly."""
        for at, places, inside in by_fragment(self.documents, self.document_row[records]):
            yield self.documents[at], places, inside

    def save(self, store: Store, name: str) -> str:
        """Put the view in the store; return its file."""
        meta = {
            "kind": self.kind,
            "records": [[f.name, f.file, f.rows] for f in self.records],
            "documents": [[f.name, f.file, f.rows] for f in self.documents],
        }
        arrays = {
            "meta": np.frombuffer(orjson.dumps(meta), dtype=np.uint8),
            "record_row": compact(self.record_row),
            "document_row": compact(self.document_row),
        }
        return store.put_hashed("views", name, pack(arrays), "safetensors")

    @classmethod
    def load(cls, store: Store, file: str) -> View:
        arrays = unpack(store.read_verified(file))
        meta = orjson.loads(arrays["meta"].tobytes())
        return cls(
            kind=meta["kind"],
            records=tuple(Fragment(*entry) for entry in meta["records"]),
            documents=tuple(Fragment(*entry) for entry in meta["documents"]),
            record_row=compact(arrays["record_row"]),
            document_row=compact(arrays["document_row"]),
        )


def by_fragment(
    fragments: Sequence[Fragment], rows: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(number of a fragment, places in `rows` that are in it, their rows in it, rising), of each fragment that holds
    some, in order. rows: int (Q,), of the fragments laid end to end, also repeatedly."""
    by_row = np.argsort(rows, kind="stable")
    start = offsets(fragments)
    # Wider bounds would have all rows copied.
    cuts = np.searchsorted(rows, compact(start), sorter=by_row)
    for at in np.flatnonzero(np.diff(cuts)).tolist():
        places = by_row[cuts[at] : cuts[at + 1]]
        yield at, places, rows[places] - rows.dtype.type(start[at])


def spans(fragments: Sequence[Fragment]) -> list[slice]:
    """The rows of each fragment when laid end to end."""
    return [slice(*bounds) for bounds in pairwise(offsets(fragments).tolist())]


def offsets(fragments: Sequence[Fragment]) -> np.ndarray:
    """First row of each fragment when laid end to end, and the end; int64 (fragments + 1,)."""
    return np.concatenate([[0], np.cumsum([fragment.rows for fragment in fragments], dtype=np.int64)])
