"""The rows of one file of an export.

Letters: n rows, q runs of tokens in them, T tokens, L tokens a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from dagster_divorder.core.spans import Spans
from dagster_divorder.readers.files import padded_rows

BLOCK_BYTES = 4 << 20
"""Bytes of ids in a block; a format writes one block at a time."""


@dataclass(frozen=True, eq=False)
class IdBlock:
    """Rows [first, first + n). ids: (T,), concatenated without padding. tokens: per row, int64 (n,). trained: whether
    each place is trained on, bool (n, L); None if every token is."""

    first: int
    ids: np.ndarray
    tokens: np.ndarray
    trained: np.ndarray | None = None

    def padded(self, length: int, padding: int, dtype: np.dtype) -> np.ndarray:
        """The ids (n, length); `padding` fills up shorter rows."""
        return padded_rows(self.ids.astype(dtype, copy=False), self.tokens, length, padding)

    def filled(self, length: int) -> np.ndarray:
        """bool (n, length): True for a token, False for padding."""
        return np.arange(length) < self.tokens[:, None]


def trained_rows(trained: Spans | None, first: int, end: int, length: int) -> np.ndarray | None:
    """Whether each place of rows [first, end) is trained on, bool (end - first, L); None if every token is.
    trained: spans of places, counted as row x L + place in the row."""
    if trained is None:
        return None
    begin, size = np.array([[first * length], [(end - first) * length]])
    return trained.marked(begin, size).reshape(-1, length)


def block_rows(length: int, dtype: np.dtype) -> int:
    """Rows of L ids in a block."""
    return max(1, BLOCK_BYTES // (length * dtype.itemsize))


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class FileRows:
    """The rows of one file, picklable, without their ids.

    length: L. indptr: the first run of each row, and the end, int64 (n + 1,). tokens: per row, without padding, int64
    (n,). Per run, int64 (q,) each: record, the position of its record among the accepted records; start, its first
    token in the record; run_tokens, its number of tokens. dtype: the ids' dtype. padding: see `Tokens`. trained: as in
    `Rows`, for these rows.
    """

    length: int
    indptr: np.ndarray
    tokens: np.ndarray
    record: np.ndarray
    start: np.ndarray
    run_tokens: np.ndarray
    dtype: np.dtype
    padding: int
    trained: Spans | None = None

    def __len__(self) -> int:
        """n."""
        return len(self.tokens)

    def blocks(self, parts: Iterator[np.ndarray]) -> Iterator[IdBlock]:
        """The rows in blocks. parts: the ids of each non-empty block, from `permute`."""
        step = block_rows(self.length, self.dtype)
        for first in range(0, len(self), step):
            tokens = self.tokens[first : first + step]
            ids = next(parts) if tokens.any() else np.empty(0, self.dtype)
            trained = trained_rows(self.trained, first, first + len(tokens), self.length)
            yield IdBlock(first, ids, tokens, trained)


WriteRows = Callable[[FileRows, Iterator[IdBlock], IO[bytes]], object]
"""Writes a file of rows; picklable."""
