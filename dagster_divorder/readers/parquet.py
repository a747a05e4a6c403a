"""Rows of a Parquet export: `input_ids` and `seq_lengths`, a row group decoded at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dagster_divorder.readers.files import Files, padded_rows


class ParquetRows:
    """A `Source` (readers/export.py). map: name of a file -> its bytes, uint8. Keeps the last two files parsed, and the
    last two row groups decoded."""

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
        parts = [
            padded_rows(values, np.diff(offsets), self._length, self._padding)
            for values, offsets in self._lists(first, end, 0)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def documents(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        lengths, offsets = zip(*self._lists(first, end, 2), strict=True)
        counts = [np.diff(part) for part in offsets]
        return np.concatenate(lengths, dtype=np.int64), np.concatenate(counts, dtype=np.int64)

    def _lists(self, first: int, end: int, column: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The lists of rows [first, end), one row group after another: values and offsets, (rows + 1,); offsets may
        begin at any number. column: index of the values in `_decoded`."""
        for number in _overlapping(self._begins, first, end):
            at = int(self._begins[number])
            begins = self._open(number)[1]
            for group in _overlapping(begins, first - at, end - at):
                low, high = int(begins[group]), int(begins[group + 1])
                values, offsets = self._group(number, group)[column : column + 2]
                offsets = offsets[max(first - at, low) - low : min(end - at, high) - low + 1]
                yield values[offsets[0] : offsets[-1]], offsets

    def _opened(self, number: int) -> tuple[Any, np.ndarray]:
        """A file, and the first row of each row group, int64 (groups + 1,)."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(self._map(self._names[number]))))
        groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        return file, np.concatenate([[0], np.cumsum(groups)])

    def _decoded(self, number: int, group: int) -> tuple[np.ndarray, ...]:
        """Ids and their offsets by row, (rows + 1,); tokens of documents and their offsets by row."""
        # On this thread: Arrow's threads do not survive the fork of a loader's worker.
        table = self._open(number)[0].read_row_group(group, ["input_ids", "seq_lengths"], use_threads=False)
        columns = [table[name].combine_chunks() for name in ("input_ids", "seq_lengths")]
        return tuple(array.to_numpy() for column in columns for array in (column.values, column.offsets))


def _overlapping(begins: np.ndarray, first: int, end: int) -> range:
    """Numbers of the stretches, laid end to end, that overlap rows [first, end)."""
    low = int(np.searchsorted(begins, max(first, 0), side="right")) - 1
    return range(low, min(int(np.searchsorted(begins, end)), len(begins) - 1))


def parquet(files: Files, manifest: dict[str, Any]) -> tuple[ParquetRows, None]:
    """The rows of a `parquet` export; later epochs have their own rows."""
    names = sorted(name for name in manifest["files"] if name.endswith(".parquet"))
    files.pin(names)
    return ParquetRows(files.map, names, manifest), None
