"""The view: input position -> record -> document, over stored fragments.

Appending, editing, deleting, reordering or duplicating input makes a new view; fragments stay. Memory: 8 bytes a record
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

    record_row, document_row: rows of `records` and `documents` laid end to end, uint32 (N,), or int64 from 2^32 rows
    on. No record may refer to some rows (deleted input).
    """

    kind: str
    records: tuple[Fragment, ...]
    documents: tuple[Fragment, ...]
    record_row: np.ndarray
    document_row: np.ndarray

    def __len__(self) -> int:
        return len(self.record_row)

    def take(self, records: np.ndarray) -> View:
        """A view of the given records, int64 (M,), repeats allowed."""
        return replace(self, record_row=self.record_row[records], document_row=self.document_row[records])

    @property
    def document_rows(self) -> int:
        """Rows of the document fragments, used or not: the length of every per-document array."""
        return sum(fragment.rows for fragment in self.documents)

    @property
    def copies(self) -> np.ndarray:
        """The first position with each record's text, int64 (N,). Equal for copies of a text and, unlike
        `document_row`, independent of the fragments."""
        first = np.empty(self.document_rows, np.int64)
        # The last value assigned to a place stays, so positions are assigned in falling order.
        first[self.document_row[::-1]] = np.arange(len(self) - 1, -1, -1)
        return first[self.document_row]

    def used_documents(self) -> np.ndarray:
        """bool (document_rows,): documents that some record of the view refers to."""
        used = np.zeros(self.document_rows, dtype=bool)
        used[self.document_row] = True
        return used

    def used_records(self) -> np.ndarray:
        """bool (record rows,): records in the view."""
        used = np.zeros(sum(fragment.rows for fragment in self.records), dtype=bool)
        used[self.record_row] = True
        return used

    def by_fragment(self, records: np.ndarray) -> Iterator[tuple[Fragment, np.ndarray, np.ndarray]]:
        """Yields (document fragment, places in `records`, their rows in the fragment) for each fragment that holds
        documents of `records`, in order. records: positions in the view, int64 (Q,), repeats allowed."""
        for number, places, inside in by_fragment(self.documents, self.document_row[records]):
            yield self.documents[number], places, inside

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
    """Yields (fragment number, places in `rows`, their rising rows in the fragment) for each fragment that holds some
    of the rows, in order. rows: rows of the fragments laid end to end, int (Q,), repeats allowed."""
    by_row = np.argsort(rows, kind="stable")
    start = offsets(fragments)
    # If `start` had a wider type than the rows, NumPy would copy all rows.
    cuts = np.searchsorted(rows, compact(start), sorter=by_row)
    for number in np.flatnonzero(np.diff(cuts)).tolist():
        places = by_row[cuts[number] : cuts[number + 1]]
        yield number, places, rows[places] - rows.dtype.type(start[number])


def spans(fragments: Sequence[Fragment]) -> list[slice]:
    """The rows of each fragment when laid end to end."""
    return [slice(*bounds) for bounds in pairwise(offsets(fragments).tolist())]


def offsets(fragments: Sequence[Fragment]) -> np.ndarray:
    """First row of each fragment when laid end to end, then the total; int64 (fragments + 1,)."""
    return np.concatenate([[0], np.cumsum([fragment.rows for fragment in fragments], dtype=np.int64)])
