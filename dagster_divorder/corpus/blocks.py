"""What ingest asks of a block of the input, whose records are here or were surveyed: ids, documents, refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from dagster_divorder.core.arrow import binary_array
from dagster_divorder.corpus.inputs import LineBlock, RowBlock
from dagster_divorder.corpus.multiset import Multiset, of_lines, of_rows
from dagster_divorder.corpus.parquet_rows import json_lines, row_as_json, row_bytes
from dagster_divorder.corpus.records import NOT_JSON, parse_lines, parse_rows
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError
from dagster_divorder.settings.places import is_url
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import DOCUMENTS, SHAPE, Fragments
from dagster_divorder.store.ids import Content, distinct, hash_all, words


class Refusal(NamedTuple):
    """A refused record: its line or row, why, its bytes, and whether it is a last line that is still being written."""

    number: int
    reason: str
    raw: bytes
    unfinished: bool


class Texts(NamedTuple):
    """The documents of some records: which of these are sound, positions among them, int64 (m,), and of the sound ones
    ids, uint64 (m, 2), sizes in bytes, int64 (m,), and the texts, where they are here."""

    sound: np.ndarray
    ids: np.ndarray
    sizes: np.ndarray
    held: list[bytes]


class Records(Protocol):
    """n records of a block, which `at`, int64, counts from 0."""

    path: str

    @property
    def ids(self) -> np.ndarray:
        """uint64 (n, 2)."""

    def texts(self, at: np.ndarray) -> Texts:
        """The documents of some records."""

    def take(self, at: np.ndarray, texts: Texts, fresh: np.ndarray) -> tuple[Any, np.ndarray]:
        """Of records, all of them sound and with these texts, what a fragment is written from, with the texts of the
        `fresh` ones among them; and their sizes in bytes, int64."""

    def refusals(self, at: np.ndarray) -> Iterator[Refusal]:
        """Of refused records, in order."""

    def multiset(self, accepted: np.ndarray) -> Multiset:
        """Of the accepted ones, bool (n,)."""


class PairContent(NamedTuple):
    """What goes into a pair of fragments: content of records, and texts of documents."""

    content: pa.Array
    texts: pa.Array


class BlockRecords:
    """Records of a block that this process has read and holds."""

    def __init__(self, block: LineBlock | RowBlock, shape: Shape) -> None:
        self.path = block.path
        self.block = block
        self._shape = shape
        self._records = block.lines if isinstance(block, LineBlock) else row_bytes(block.rows)
        if not self._records:
            # A file without rows is refused too if its columns are wrong.
            self.parse(np.empty(0, np.int64))

    @cached_property
    def ids(self) -> np.ndarray:
        """uint64 (n, 2)."""
        return words(hash_all(self._records))

    @property
    def check(self) -> int:
        """A hash of all records in order, quicker than their ids: of a block that is read again."""
        return xxhash.xxh3_128_intdigest(b"\n".join(self._records))

    def parse(self, at: np.ndarray) -> tuple[list[bytes | None], list[str]]:
        """Texts of some records, None where one is refused; and the reasons.

        Raises:
            InputError: the text column is missing, or holds no strings.
        """
        if isinstance(self.block, LineBlock):
            return parse_lines([self.block.lines[i] for i in at], self._shape.text_field)
        try:
            return parse_rows(self.block.rows.take(row_array(at)), self._shape.text_field)
        except InputError as error:
            raise InputError(f"{self._shape.label}{self.path}: {error}") from None

    def texts(self, at: np.ndarray) -> Texts:
        texts, _ = self.parse(at)
        held = [text for text in texts if text is not None]
        sound = np.flatnonzero([text is not None for text in texts])
        return Texts(sound, words(hash_all(held)), np.fromiter(map(len, held), np.int64, len(held)), held)

    def take(self, at: np.ndarray, texts: Texts, fresh: np.ndarray) -> tuple[PairContent, np.ndarray]:
        content, sizes = self.content(at)
        return PairContent(content, utf8([texts.held[i] for i in fresh])), sizes

    def content(self, at: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        """Content of some sound records and their sizes in bytes (of rows their mean), int64 (n,)."""
        if isinstance(self.block, LineBlock):
            return _of_lines([self.block.lines[i] for i in at])
        rows = self.block.rows.take(row_array(at))
        content = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
        if self._shape.as_lines:
            return _of_lines(json_lines(content))
        return content, np.full(len(at), -(-content.nbytes // len(at)), dtype=np.int64)

    def refusals(self, at: np.ndarray) -> Iterator[Refusal]:
        _, reasons = self.parse(at)
        for i, reason in zip(at.tolist(), reasons, strict=True):
            if isinstance(self.block, LineBlock):
                last = self.block.unterminated and i == len(self.block.lines) - 1
                # What lies at a URL does not grow, and what begins as no object does not become one.
                grows = not is_url(self.path) and self.block.lines[i].lstrip().startswith(b"{")
                unfinished = last and reason.startswith(NOT_JSON) and grows
                yield Refusal(self.block.numbers[i], reason, self.block.lines[i], unfinished)
            else:
                raw = row_as_json(self.block.rows.take(pa.array([i])))
                yield Refusal(self.block.first + i, reason, raw, unfinished=False)

    def multiset(self, accepted: np.ndarray) -> Multiset:
        if isinstance(self.block, RowBlock) and self._shape.as_lines:
            return of_lines([line.as_buffer() for line in self.content(np.flatnonzero(accepted))[0]])
        records: Sequence[Content] = self._records
        if not accepted.all():
            records = [records[at] for at in np.flatnonzero(accepted).tolist()]
        return of_lines(records) if isinstance(self.block, LineBlock) else of_rows(records)


def _of_lines(lines: list[bytes]) -> tuple[pa.Array, np.ndarray]:
    return binary_array(lines), np.fromiter(map(len, lines), np.int64, len(lines))


def utf8(texts: list[bytes]) -> pa.Array:
    """Texts as Arrow large_string (n,)."""
    return binary_array(texts).view(pa.large_string())


def put_pair(
    store: Store,
    folder: str,
    held: list[PairContent],
    documents: Mapping[str, np.ndarray],
    records: Mapping[str, np.ndarray],
) -> None:
    """Write a pair of fragments of these indexes, the documents first, so that a stored record's document is there."""
    if len(documents["id"]):
        Fragments(store, DOCUMENTS).put(pa.concat_arrays([part.texts for part in held]), documents)
    Fragments(store, folder).put(pa.concat_arrays([part.content for part in held]), records)


def record_index(
    ids: np.ndarray, documents: np.ndarray, sizes: np.ndarray, shape: Shape
) -> dict[str, np.ndarray]:
    """The index of n records of a shape: their ids and those of their documents, uint64 (n, 2), and sizes, int64."""
    index = {"id": ids, "document": documents, "size": sizes}
    return {**index, SHAPE: np.full(len(ids), shape.key, np.uint64)} if shape.key else index


def joined(index: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Parts of the index of a fragment as one."""
    return {column: np.concatenate([part[column] for part in index]) for column in index[0]}


@dataclass(frozen=True, slots=True)
class Digest:
    """n records of a block without their content: 40 bytes each.

    ids: uint64 (n, 2). document_ids: uint64 (n, 2), and text_sizes, uint32 (n,), in bytes, both 0 where a record is
    refused. record_sizes: uint32 (n,), in bytes; of rows the mean of the `mean_of` distinct ones that are sound, 0
    being lines. multiset: of the sound ones. check: see `BlockRecords.check`.
    """

    path: str
    ids: np.ndarray
    document_ids: np.ndarray
    text_sizes: np.ndarray
    record_sizes: np.ndarray
    mean_of: int
    refusals: list[Refusal]
    multiset: Multiset
    check: int


def digest(block: LineBlock | RowBlock, shape: Shape) -> Digest:
    """What of a block tells which of its records are new, and in which fragments they come to lie."""
    held = BlockRecords(block, shape)
    once = distinct(held.ids)
    texts = held.texts(once.first)
    sound = once.first[texts.sound]
    document_ids = np.zeros((len(once.first), 2), np.uint64)
    document_ids[texts.sound] = texts.ids
    text_sizes = np.zeros(len(once.first), np.uint32)
    text_sizes[texts.sound] = texts.sizes
    text_sizes = text_sizes[once.inverse]
    if isinstance(block, LineBlock):
        record_sizes, mean_of = np.fromiter(map(len, block.lines), np.uint32, len(block.lines)), 0
    elif shape.as_lines:
        sizes, mean_of = np.zeros(len(once.first), np.uint32), 0
        sizes[texts.sound] = held.content(sound)[1]
        record_sizes = sizes[once.inverse]
    else:
        mean = held.content(sound)[1][0] if len(sound) else 0
        record_sizes, mean_of = np.full(len(held.ids), mean, np.uint32), len(sound)
    refused = np.flatnonzero(text_sizes == 0)
    return Digest(
        path=block.path,
        ids=held.ids,
        document_ids=document_ids[once.inverse],
        text_sizes=text_sizes,
        record_sizes=record_sizes,
        mean_of=mean_of,
        refusals=list(held.refusals(refused)) if len(refused) else [],
        multiset=held.multiset(text_sizes > 0),
        check=held.check,
    )
