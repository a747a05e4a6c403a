"""The records of a block of the input: ids, parsed texts and contents, and reasons of refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import binary_array
from dagster_divorder.corpus.inputs import LineBlock, RowBlock
from dagster_divorder.corpus.multiset import Multiset, of_lines, of_rows
from dagster_divorder.corpus.parquet_rows import json_lines, row_as_json, row_bytes
from dagster_divorder.corpus.records import NOT_JSON, parse_lines, parse_rows
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.fragments import of_shape
from dagster_divorder.store.ids import Content, IdIndex, distinct, hash_all, words


class Refusal(NamedTuple):
    """A refused record: its line or row, the reason, its bytes. unfinished: a last line that is still being written."""

    number: int
    reason: str
    raw: bytes
    unfinished: bool


class Parsed(NamedTuple):
    """Parsed records of a block.

    sound: positions of the m records that hold a document, int64 (m,). ids, document_ids: uint64 (m, 2). text_sizes,
    record_sizes: bytes, int64 (m,); for rows the mean. content: Arrow array (m,) for a fragment.
    """

    sound: np.ndarray
    ids: np.ndarray
    document_ids: np.ndarray
    text_sizes: np.ndarray
    record_sizes: np.ndarray
    content: pa.Array
    texts: list[bytes]


class BlockRecords:
    """n records of a block. `at`: positions among them, int64. unterminated: the last record ends the file without a
    terminator."""

    def __init__(self, block: LineBlock | RowBlock, shape: Shape) -> None:
        self.path, self.block, self._shape = block.path, block, shape
        self.unterminated = isinstance(block, LineBlock) and block.unterminated
        self._records = block.lines if isinstance(block, LineBlock) else row_bytes(block.rows)
        if not self._records:
            # Wrong columns are an error even without rows.
            self.texts(np.empty(0, np.int64))

    @cached_property
    def ids(self) -> np.ndarray:
        """Ids of the records, uint64 (n, 2)."""
        return words(hash_all(self._records))

    def texts(self, at: np.ndarray) -> tuple[list[bytes | None], list[str]]:
        """Texts of some records, None for a refused record, and the reasons of refusals.

        Raises:
            InputError: the text column is missing, or holds no strings.
        """
        if isinstance(self.block, LineBlock):
            return parse_lines([self.block.lines[i] for i in at.tolist()], self._shape)
        try:
            return parse_rows(self.block.rows.take(row_array(at)), self._shape)
        except InputError as error:
            raise InputError(f"{self._shape.label}{self.path}: {error}") from None

    def parse(self, at: np.ndarray) -> Parsed:
        """Parses some records.

        Raises:
            InputError: the text column is missing, or holds no strings.
        """
        every, _ = self.texts(at)
        sound = np.flatnonzero([text is not None for text in every])
        texts = [text for text in every if text is not None]
        content, sizes = self.content(at[sound])
        return Parsed(
            sound, self.ids[at[sound]], words(hash_all(texts)), lengths(texts), sizes, content, texts
        )

    def content(self, at: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        """Content of m sound records, Arrow (m,), and their sizes in bytes (for rows the mean), int64 (m,)."""
        if isinstance(self.block, LineBlock):
            return _of_lines([self.block.lines[i] for i in at.tolist()])
        rows = self.block.rows.take(row_array(at))
        content = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
        if self._shape.as_lines:
            return _of_lines(json_lines(content))
        return content, np.full(len(at), -(-content.nbytes // max(1, len(at))), dtype=np.int64)

    def refusals(self, at: np.ndarray) -> Iterator[Refusal]:
        """The refusals of these records, in order."""
        _, reasons = self.texts(at)
        for i, reason in zip(at.tolist(), reasons, strict=True):
            if isinstance(self.block, LineBlock):
                last = self.block.unterminated and i == len(self.block.lines) - 1
                # A line that does not begin an object never becomes one.
                grows = self.block.lines[i].lstrip().startswith(b"{")
                unfinished = last and reason.startswith(NOT_JSON) and grows
                yield Refusal(self.block.numbers[i], reason, self.block.lines[i], unfinished)
            else:
                raw = row_as_json(self.block.rows.take(pa.array([i])))
                yield Refusal(self.block.first + i, reason, raw, unfinished=False)

    def multiset(self, accepted: np.ndarray) -> Multiset:
        """The multiset of the `accepted` records, bool (n,)."""
        if isinstance(self.block, RowBlock) and self._shape.as_lines:
            return of_lines([line.as_buffer() for line in self.content(np.flatnonzero(accepted))[0]])
        records: Sequence[Content] = self._records
        if not accepted.all():
            records = [records[at] for at in np.flatnonzero(accepted).tolist()]
        return of_lines(records) if isinstance(self.block, LineBlock) else of_rows(records)


def _of_lines(lines: list[bytes]) -> tuple[pa.Array, np.ndarray]:
    return binary_array(lines), lengths(lines)


def lengths(values: Sequence[bytes]) -> np.ndarray:
    """Bytes of each value, int64 (n,)."""
    return np.fromiter(map(len, values), np.int64, len(values))


class Comparison(NamedTuple):
    """A block compared with known records. d: distinct records; a: accepted records, in order.

    rows: record rows of the distinct records, int64 (d,), -1 for new and refused ones. parsed: the m new sound records,
    or None; new: their positions among the distinct records, int64 (m,). ids: of the accepted records, by shape too,
    uint64 (a, 2). distinct: positions of the accepted among the distinct records, int64 (a,). multiset: of the accepted
    records.
    """

    rows: np.ndarray
    new: np.ndarray
    parsed: Parsed | None
    ids: np.ndarray
    distinct: np.ndarray
    multiset: Multiset
    refusals: list[Refusal]


def compare(block: BlockRecords, known: IdIndex, shape: Shape) -> Comparison:
    """Compares a block of a shape with the known records; parses only new ones.

    Raises:
        InputError: see `BlockRecords.parse`.
    """
    ids = of_shape(block.ids, shape.key) if shape.key else block.ids
    once = distinct(ids)
    rows = known.find(ids[once.first])
    new, parsed = np.flatnonzero(rows < 0), None
    accepted = rows >= 0
    if len(new):
        parsed = block.parse(once.first[new])
        new = new[parsed.sound]
        accepted[new] = True
    accepted = accepted[once.inverse]
    refusals = [] if accepted.all() else list(block.refusals(np.flatnonzero(~accepted)))
    return Comparison(
        rows=rows,
        new=new,
        parsed=parsed if len(new) else None,
        ids=ids[accepted],
        distinct=once.inverse[accepted],
        multiset=block.multiset(accepted),
        refusals=refusals,
    )
