"""The Arrow and Parquet files of an export: its rows, a row group decoded at a time, and the table of what they hold.

Letters: R rows of the files, n rows of a read, Q documents in them, L tokens a row, J values of a trait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from dagster_divorder.readers.files import Files, padded_rows


class ParquetRows:
    """Rows of a `parquet` export. Keeps the last two files parsed, and the last two row groups decoded."""

    def __init__(self, files: Files, manifest: dict[str, Any]) -> None:
        self._names = sorted(name for name in manifest["files"] if name.endswith(".parquet"))
        files.pin(self._names)
        self._files, self._begins = files, np.concatenate([[0], np.cumsum(manifest["rows_of_files"])])
        self._length, self._padding = manifest["sequence_length"], manifest["tokenizer"]["padding"]
        self._open = lru_cache(2)(self._opened)
        self._group = lru_cache(2)(self._decoded)

    def ids(self, first: int, end: int) -> np.ndarray:
        """Ids int32 (n, L) of rows [first, end), short rows padded. Read-only: they may be a view of a file."""
        parts = [
            padded_rows(values, np.diff(offsets), self._length, self._padding)
            for values, offsets in self._lists(first, end, 0)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def documents(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each document in these rows, int64 (Q,), and how many documents each row has, int64 (n,)."""
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

        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(self._files.map(self._names[number]))))
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


@dataclass(frozen=True, eq=False)
class TraitOfRows:
    """One trait: names of its J values; row r has the values values[offsets[r]:offsets[r + 1]], int32, and `tokens` of
    each, int32. offsets: int32 (R + 1,)."""

    names: tuple[str, ...]
    offsets: np.ndarray
    values: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True, eq=False)
class RowTable:
    """What each row of an export holds (`write.exports.row_table`): tokens without padding; counted, those that shares
    count, both int32 (R,); attention, the squared lengths of its documents, float64 (R,); its traits by name."""

    tokens: np.ndarray
    counted: np.ndarray
    attention: np.ndarray
    traits: dict[str, TraitOfRows]

    @classmethod
    def read(cls, data: np.ndarray) -> RowTable:
        """The table in the bytes of its file, uint8."""
        import pyarrow as pa

        options = pa.ipc.IpcReadOptions(use_threads=False)
        table = pa.ipc.open_file(pa.py_buffer(data), options=options).read_all()
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        traits = {}
        for name, names in orjson.loads(table.schema.metadata[b"traits"]).items():
            values, tokens = columns[f"{name}.values"], columns[f"{name}.tokens"]
            arrays = (values.offsets, values.values, tokens.values)
            traits[name] = TraitOfRows(tuple(names), *(array.to_numpy() for array in arrays))
        numbers = {name: columns[name].to_numpy() for name in ("tokens", "counted", "attention")}
        return cls(**numbers, traits=traits)
