"""Pairs of fragments, one of records and one of their new documents. Documents are written first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import binary_array
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import (
    DOCUMENTS,
    SHAPE,
    Fragments,
    fragment_name,
    row_ids,
)
from dagster_divorder.store.ids import IdIndex
from dagster_divorder.store.view import Fragment, View, offsets

KEPT_ROWS = 1 << 16
"""Rows of a view handled at a time."""
_LOADED_IDS = 1 << 20
"""Ids of stored fragments loaded at a time."""


class PairContent(NamedTuple):
    """Content of a pair of fragments: records, and texts of new documents."""

    content: pa.Array
    texts: pa.Array


def utf8(texts: list[bytes]) -> pa.Array:
    """Texts as Arrow large_string (n,)."""
    return binary_array(texts).view(pa.large_string())


def put_pair(
    store: Store,
    folder: str,
    contents: Sequence[PairContent],
    documents: Mapping[str, np.ndarray],
    records: Mapping[str, np.ndarray],
) -> None:
    """Writes a pair of fragments with these indexes, documents first, so that no stored record lacks its document."""
    if len(documents["id"]):
        Fragments(store, DOCUMENTS).put(pa.concat_arrays([texts for _, texts in contents]), documents)
    Fragments(store, folder).put(pa.concat_arrays([content for content, _ in contents]), records)


def record_index(
    ids: np.ndarray, documents: np.ndarray, sizes: np.ndarray, shape: Shape
) -> dict[str, np.ndarray]:
    """The index of n records of a shape: record ids and document ids, uint64 (n, 2), and sizes, int64 (n,)."""
    index = {"id": ids, "document": documents, "size": sizes}
    return {**index, SHAPE: np.full(len(ids), shape.key, np.uint64)} if shape.key else index


class FragmentWriter:
    """Fragments of one folder: stored ones, ones that this reading closed, and the open one. Ids of closed fragments
    are in memory once, in `ids`."""

    def __init__(self, fragments: Fragments, scratch: Path | None, *, dry: bool) -> None:
        self.fragments = fragments
        self.ids = IdIndex(scratch)
        self._dry = dry
        self._names: list[str] = []
        self._rows: list[int] = []
        self._put: list[str] = []
        self._open_index: list[dict[str, np.ndarray]] = []
        self.open_rows = self.open_bytes = 0

    def load(self, take: Callable[[Mapping[str, np.ndarray]], bool]) -> None:
        """Loads the ids of stored fragments for which `take(index)` is true, in row order."""
        content = self.fragments.files()
        ids, waiting = [np.empty((0, 2), np.uint64)], 0
        for name, index in self.fragments.indexes():
            if name in content and take(index):
                self._names.append(name)
                self._rows.append(len(index["id"]))
                ids.append(row_ids(index))
                waiting += len(index["id"])
                if waiting >= _LOADED_IDS:
                    self.ids.add(np.concatenate(ids))
                    ids, waiting = ids[:1], 0
        self.ids.add(np.concatenate(ids))

    def count_stored(self, used: np.ndarray) -> dict[str, int]:
        """Number of used rows of each previously stored fragment."""
        return {name: int(used[low:high].sum()) for name, (low, high) in self._stored().items()}

    def stored_bytes(self, used: np.ndarray) -> int:
        """Bytes of the used rows of previously stored fragments."""
        size, stored = 0, self._stored()
        # Without stored fragments, new indexes are not read back.
        for name, index in self.fragments.indexes() if stored else ():
            if name in stored:
                low, high = stored[name]
                size += int(index["size"][used[low:high]].sum())
        return size

    def _stored(self) -> dict[str, tuple[int, int]]:
        """Where the rows of each previously stored fragment begin and end."""
        stored = len(self._names) - len(self._put)
        ends = np.cumsum(self._rows[:stored], dtype=np.int64).tolist()
        return dict(zip(self._names, pairwise([0, *ends]), strict=False))

    def rows_of(self, view: View) -> np.ndarray | None:
        """Record rows by input position of a view, int (N,); None if one of its fragments is gone."""
        starts = np.concatenate([[0], np.cumsum(self._rows, dtype=np.int64)])
        start_of = dict(zip(self._names, starts.tolist(), strict=False))
        if not all(fragment.name in start_of for fragment in view.records):
            return None
        first = offsets(view.records)
        shift = np.array([start_of[fragment.name] for fragment in view.records], np.int64) - first[:-1]
        rows = view.record_row.astype(np.uint32 if starts[-1] < 1 << 32 else np.int64)
        _shift(rows, first, shift)
        return rows

    def add(self, index: dict[str, np.ndarray]) -> np.ndarray:
        """Puts rows into the open fragment; returns their row numbers."""
        if not self._dry:
            self._open_index.append(index)
            self.open_rows += len(index["id"])
            self.open_bytes += int(index["size"].sum())
        return self.ids.add(row_ids(index))

    def close(self) -> dict[str, np.ndarray]:
        """Closes the open fragment; returns its index."""
        parts = self._open_index
        index = {column: np.concatenate([part[column] for part in parts]) for column in (parts or [{}])[0]}
        if self.open_rows:
            self._names.append(fragment_name(index))
            self._rows.append(self.open_rows)
            self._put.append(self._names[-1])
        self._open_index = []
        self.open_rows = self.open_bytes = 0
        return index

    def abandon(self) -> None:
        for name in self._put:
            self.fragments.delete(name)

    def used(self, rows: np.ndarray) -> tuple[Fragment, ...]:
        """The fragments that hold the rows, by first use. Renumbers `rows` through these fragments laid end to end."""
        starts = np.concatenate([[0], np.cumsum(self._rows, dtype=np.int64)])
        first = np.full(len(self._names), -1, dtype=np.int64)
        # The last value written to a place stays; written in reverse, this is the first use.
        for low in reversed(range(0, len(rows), KEPT_ROWS)):
            fragment = np.searchsorted(starts, rows[low : low + KEPT_ROWS], side="right") - 1
            first[fragment[::-1]] = np.arange(low + len(fragment) - 1, low - 1, -1)
        numbers = np.flatnonzero(first >= 0)
        numbers = numbers[np.argsort(first[numbers])]
        files = self.fragments.files()
        kept = tuple(Fragment(self._names[i], files[self._names[i]], self._rows[i]) for i in numbers)
        shift = np.zeros(len(self._names), dtype=np.int64)
        shift[numbers] = np.concatenate([[0], np.cumsum([f.rows for f in kept], dtype=np.int64)])[:-1]
        _shift(rows, starts, shift - starts[:-1])
        return kept


def _shift(rows: np.ndarray, starts: np.ndarray, shift: np.ndarray) -> None:
    """Adds to each row, int (N,), the shift of its fragment, found by the fragments' starts."""
    for low in range(0, len(rows), KEPT_ROWS):
        block = rows[low : low + KEPT_ROWS]
        block[:] = block + shift[np.searchsorted(starts, block, side="right") - 1]
