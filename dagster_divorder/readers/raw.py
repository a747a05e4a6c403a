"""Rows of the exports that are files of raw ids, little-endian: OLMo-core's and Megatron's."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Any

import numpy as np

from dagster_divorder.readers.files import Files

IDX_HEAD = 34
"""Bytes of a Megatron `.idx` before the lengths of its items."""


class Documents:
    """Where the documents of rows are. lengths: tokens of each, int32 (Q,); begins: of each row's, int64 (R + 1,)."""

    def __init__(self, lengths: np.ndarray, begins: np.ndarray) -> None:
        self._lengths, self._begins = lengths, begins

    def documents(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        begins = self._begins[first : end + 1]
        return self._lengths[begins[0] : begins[-1]].astype(np.int64), np.diff(begins)


class FixedRows(Documents):
    """A `Source` (readers/export.py) of files that hold L ids a row, in the order of their names."""

    def __init__(
        self,
        files: Files,
        names: list[str],
        manifest: dict[str, Any],
        documents: tuple[np.ndarray, np.ndarray],
    ) -> None:
        super().__init__(*documents)
        self.dtype = np.dtype(manifest["dtype"])
        self._first_rows = [0, *accumulate(manifest["rows_of_files"])]
        self._files, self._names, self._length = files, names, manifest["sequence_length"]
        files.pin(names)

    def _file(self, number: int) -> np.ndarray:
        return self._files.map(self._names[number]).view(self.dtype).reshape(-1, self._length)

    def ids(self, first: int, end: int) -> np.ndarray:
        begins = self._first_rows
        found = [
            self._file(number)[max(first - begins[number], 0) : end - begins[number]]
            for number in range(bisect_right(begins, first) - 1, bisect_left(begins, end))
        ]
        return found[0] if len(found) == 1 else np.concatenate(found)


class PackedRows(Documents):
    """The same of one file that holds rows without their padding. items: bytes before each document, int64 (Q,)."""

    def __init__(
        self,
        tokens: np.ndarray,
        items: np.ndarray,
        manifest: dict[str, Any],
        documents: tuple[np.ndarray, np.ndarray],
    ) -> None:
        super().__init__(*documents)
        self.dtype = np.dtype(manifest["dtype"])
        self._all, self._items = tokens.view(self.dtype), items
        self._length, self._padding = manifest["sequence_length"], manifest["tokenizer"]["padding"]

    def ids(self, first: int, end: int) -> np.ndarray:
        lengths, counts = self.documents(first, end)
        begin = int(self._items[self._begins[first]]) // self.dtype.itemsize
        tokens = np.add.reduceat(lengths, np.cumsum(counts) - counts)
        rows = np.full((end - first, self._length), self._padding, self.dtype)
        rows[np.arange(self._length) < tokens[:, None]] = self._all[begin : begin + int(tokens.sum())]
        return rows


def olmo(files: Files, manifest: dict[str, Any]) -> tuple[FixedRows, np.ndarray | None]:
    """The rows of an `olmo` export, and what each epoch reads of them."""
    names = sorted(name for name in manifest["files"] if name.startswith("train-") and name.endswith(".npy"))
    documents = files.array("doc_lengths.npy"), files.array("doc_rows.npy")
    return FixedRows(files, names, manifest, documents), _epochs(files, manifest)


def megatron(files: Files, manifest: dict[str, Any]) -> tuple[FixedRows | PackedRows, np.ndarray | None]:
    """The same of a `megatron` export."""
    tokens, index = files.named(".bin"), files.map(files.named(".idx"))
    items = int(np.frombuffer(index, "<u8", 1, 18)[0])
    documents = np.frombuffer(index, "<i4", items, IDX_HEAD), files.array("doc_rows.npy")
    epochs = _epochs(files, manifest)
    if not manifest["padded_rows"]:
        return FixedRows(files, [tokens], manifest, documents), epochs
    begins = np.frombuffer(index, "<i8", items, IDX_HEAD + 4 * items)
    return PackedRows(files.map(tokens), begins, manifest, documents), epochs


def _epochs(files: Files, manifest: dict[str, Any]) -> np.ndarray | None:
    """The rows that each epoch reads, int64 (E, R), where more than one is stored."""
    return (
        files.array("epochs.npy") if any(name.endswith("epochs.npy") for name in manifest["files"]) else None
    )
