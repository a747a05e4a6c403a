"""Rows of a Parquet export: `input_ids` and `seq_lengths`, a row group decoded at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dagster_divorder.readers.files import Files


class ParquetRows:
    """A `Source` (readers/export.py). map: the bytes of a file of rows, uint8, by its name. The last two files are kept
    parsed, and the last two row groups decoded."""

    dtype = np.dtype(np.int32)

    def __init__(
        self, map: Callable[[str], np.ndarray], names: Sequence[str], manifest: dict[str, Any]
    ) -> None:
        self._map, self._names = map, names
        self._begins = np.concatenate([[0], np.cumsum(manifest["rows_of_files"])])
        self._length, self._padding = manifest["sequence_length"], manifest["tokenizer"]["padding"]
        self._open = lru_cache(2)(self._opened)
        self._group = lru_cache(2)(self._decoded)

    def ids(self, first: int, end: int) -> np.ndarray:
        found = [self._padded(group[0], group[1], some) for group, some in self._parts(first, end)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def documents(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        lengths, counts = [], []
        for (_, _, values, offsets), some in self._parts(first, end):
            lengths.append(values[offsets[some.start] : offsets[some.stop]])
            counts.append(np.diff(offsets[some.start : some.stop + 1]))
        return np.concatenate(lengths, dtype=np.int64), np.concatenate(counts, dtype=np.int64)

    def _padded(self, values: np.ndarray, offsets: np.ndarray, some: slice) -> np.ndarray:
        ids = values[offsets[some.start] : offsets[some.stop]]
        if len(ids) == (some.stop - some.start) * self._length:
            return ids.reshape(-1, self._length)
        tokens = np.diff(offsets[some.start : some.stop + 1])
        rows = np.full((len(tokens), self._length), self._padding, self.dtype)
        rows[np.arange(self._length) < tokens[:, None]] = ids
        return rows

    def _parts(self, first: int, end: int) -> Iterator[tuple[tuple[np.ndarray, ...], slice]]:
        """The row groups that hold rows [first, end), decoded, and the rows inside each."""
        for number in _overlapping(self._begins, first, end):
            at = int(self._begins[number])
            begins = self._open(number)[1]
            for group in _overlapping(begins, first - at, end - at):
                low, high = int(begins[group]), int(begins[group + 1])
                yield self._group(number, group), slice(max(first - at, low) - low, min(end - at, high) - low)

    def _opened(self, number: int) -> tuple[Any, np.ndarray]:
        """A file, and where its row groups begin, int64 (groups + 1,)."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(self._map(self._names[number]))))
        groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        return file, np.concatenate([[0], np.cumsum(groups)])

    def _decoded(self, number: int, group: int) -> tuple[np.ndarray, ...]:
        """ids, where each row's begin (rows + 1,), tokens of documents, where each row's begin."""
        # Arrow's threads do not survive the fork of a loader's worker.
        table = self._open(number)[0].read_row_group(group, ["input_ids", "seq_lengths"], use_threads=False)
        columns = [table[name].combine_chunks() for name in ("input_ids", "seq_lengths")]
        return tuple(array.to_numpy() for column in columns for array in (column.values, column.offsets))


def _overlapping(begins: np.ndarray, first: int, end: int) -> range:
    """The numbers of stretches, laid end to end, that share a row with [first, end)."""
    low = int(np.searchsorted(begins, max(first, 0), side="right")) - 1
    return range(low, min(int(np.searchsorted(begins, end)), len(begins) - 1))


def parquet(files: Files, manifest: dict[str, Any]) -> tuple[ParquetRows, None]:
    """The rows of a `parquet` export; later epochs are rows of their own."""
    names = sorted(name for name in manifest["files"] if name.endswith(".parquet"))
    files.pin(names)
    return ParquetRows(files.map, names, manifest), None
