"""Rows of exports in files of raw ids, little-endian: OLMo-core's and Megatron's."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Any

import numpy as np

from dagster_divorder.readers.files import Files, padded_rows

IDX_HEAD = 34
"""Bytes of a Megatron `.idx` before the lengths of its items."""


class Documents:
    """Documents of rows. lengths: tokens of each, int32 (Q,). begins: first document of each row, int64 (R + 1,)."""

    def __init__(self, lengths: np.ndarray, begins: np.ndarray) -> None:
        self._lengths, self._begins = lengths, begins

    def documents(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        begins = self._begins[first : end + 1]
        return self._lengths[begins[0] : begins[-1]].astype(np.int64), np.diff(begins)


class FixedRows(Documents):
    """A `Source` (readers/export.py) of files with L ids a row, sorted by name."""

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

    def ids(self, first: int, end: int) -> np.ndarray:
        begins, parts = self._first_rows, []
        for number in range(bisect_right(begins, first) - 1, bisect_left(begins, end)):
            rows = self._files.map(self._names[number]).view(self.dtype).reshape(-1, self._length)
            parts.append(rows[max(first - begins[number], 0) : end - begins[number]])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class PackedRows(Documents):
    """A `Source` of one file of rows without their padding. items: bytes before each document, int64 (Q,)."""

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
        ids = self._all[begin : begin + int(tokens.sum())]
        return padded_rows(ids, tokens, self._length, self._padding)


def olmo(files: Files, manifest: dict[str, Any]) -> tuple[FixedRows, np.ndarray | None]:
    """The rows of an `olmo` export, and each epoch's rows."""
    names = sorted(name for name in manifest["files"] if name.startswith("train-") and name.endswith(".npy"))
    documents = files.array("doc_lengths.npy"), files.array("doc_rows.npy")
    return FixedRows(files, names, manifest, documents), _epochs(files, manifest)


def megatron(files: Files, manifest: dict[str, Any]) -> tuple[FixedRows | PackedRows, np.ndarray | None]:
    """The rows of a `megatron` export, and each epoch's rows."""
    tokens, index = files.named(".bin"), files.map(files.named(".idx"))
    items = int(np.frombuffer(index, "<u8", 1, 18)[0])
    documents = np.frombuffer(index, "<i4", items, IDX_HEAD), files.array("doc_rows.npy")
    epochs = _epochs(files, manifest)
    if not manifest["padded_rows"]:
        return FixedRows(files, [tokens], manifest, documents), epochs
    begins = np.frombuffer(index, "<i8", items, IDX_HEAD + 4 * items)
    return PackedRows(files.map(tokens), begins, manifest, documents), epochs


def _epochs(files: Files, manifest: dict[str, Any]) -> np.ndarray | None:
    """The rows of each epoch, int64 (E, R); None if one epoch is stored."""
    return (
        files.array("epochs.npy") if any(name.endswith("epochs.npy") for name in manifest["files"]) else None
    )
