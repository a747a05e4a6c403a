"""Rows of the exports that are files of raw ids, little-endian: OLMo-core's and Megatron's. All files are mapped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

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
        self, files: list[Path], manifest: dict[str, Any], documents: tuple[np.ndarray, np.ndarray]
    ) -> None:
        super().__init__(*documents)
        self.dtype = np.dtype(manifest["dtype"])
        self._first_rows = [0, *accumulate(manifest["rows_of_files"])]
        shape = (-1, manifest["sequence_length"])
        # Opened when first read, since an export may have more files than a process may hold open.
        self._file = lru_cache(64)(
            lambda number: np.asarray(np.memmap(files[number], self.dtype, "r")).reshape(shape)
        )

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
        file: Path,
        items: np.ndarray,
        manifest: dict[str, Any],
        documents: tuple[np.ndarray, np.ndarray],
    ) -> None:
        super().__init__(*documents)
        self.dtype = np.dtype(manifest["dtype"])
        self._all, self._items = np.memmap(file, self.dtype, "r"), items
        self._length, self._padding = manifest["sequence_length"], manifest["tokenizer"]["padding"]

    def ids(self, first: int, end: int) -> np.ndarray:
        lengths, counts = self.documents(first, end)
        begin = int(self._items[self._begins[first]]) // self.dtype.itemsize
        tokens = np.add.reduceat(lengths, np.cumsum(counts) - counts)
        rows = np.full((end - first, self._length), self._padding, self.dtype)
        rows[np.arange(self._length) < tokens[:, None]] = self._all[begin : begin + int(tokens.sum())]
        return rows


def olmo(path: Path, manifest: dict[str, Any]) -> tuple[FixedRows, np.ndarray | None]:
    """The rows of an `olmo` export, and what each epoch reads of them."""
    files = sorted(
        path / name for name in manifest["files"] if name.startswith("train-") and name.endswith(".npy")
    )
    documents = _mapped(path, "train.doc_lengths.npy"), _mapped(path, "train.doc_rows.npy")
    return FixedRows(files, manifest, documents), _epochs(path, manifest)


def megatron(path: Path, manifest: dict[str, Any]) -> tuple[FixedRows | PackedRows, np.ndarray | None]:
    """The same of a `megatron` export."""
    items = int(np.fromfile(path / "train.idx", "<u8", 1, offset=18)[0])
    lengths = np.memmap(path / "train.idx", "<i4", "r", IDX_HEAD, (items,))
    documents = lengths, _mapped(path, "train.doc_rows.npy")
    if not manifest["padded_rows"]:
        return FixedRows([path / "train.bin"], manifest, documents), _epochs(path, manifest)
    begins = np.memmap(path / "train.idx", "<i8", "r", IDX_HEAD + 4 * items, (items,))
    return PackedRows(path / "train.bin", begins, manifest, documents), _epochs(path, manifest)


def _mapped(path: Path, name: str) -> np.ndarray:
    return np.load(path / name, mmap_mode="r")


def _epochs(path: Path, manifest: dict[str, Any]) -> np.ndarray | None:
    return _mapped(path, "train.epochs.npy") if "train.epochs.npy" in manifest["files"] else None
