"""Input blocks to stored fragments and a view. Only records never seen under this key are parsed and stored.

A record is known by its id (the hash of its raw bytes), a document by the hash of its text. New ones gather into a pair
of fragments, documents first, so that a stored record's document is always there; a killed run loses at most the open
pair. Nothing refers to a fragment before the view does.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from dagster_divorder.errors import InputError, RejectLimitError
from dagster_divorder.store.fragments import (
    DOCUMENTS,
    FRAGMENT_BYTES,
    FRAGMENT_ROWS,
    Fragments,
    fragment_name,
    records_folder,
)
from dagster_divorder.store.ids import IdIndex, hash_all, to_bytes, words
from dagster_divorder.store.inputs import LineBlock, RowBlock
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.records import parse_lines, parse_rows, reject_line, row_ids
from dagster_divorder.store.view import Fragment, View

_SHOWN_REJECTS = 10
_WAITING_WRITES = 2
"""Fragments that may wait to be written, so that reading goes on meanwhile and memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one reading of the input came to."""

    view: View
    version: str
    """Hash of the record and document ids in input order: equal input, equal version, whatever the fragments."""
    rejects: str
    """File of the refused records."""
    rejected: int
    new_records: int
    new_documents: int
    partial_lines: int
    """Unfinished last lines, left for the next run."""
    text_bytes: int


class Ingest:
    """One reading of the input into the store; a context manager, so that its writer and temporary file are closed."""

    def __init__(self, store: LocalStore, kind: str, key: str, text_field: str) -> None:
        self.store = store
        self.kind = kind
        self.text_field = text_field
        # One thread compresses and writes, in the order of the flushes, while the next blocks are parsed.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="divorder-ingest")
        self._writing: deque[Future[str]] = deque()
        self._documents = _Shelf(Fragments(store, DOCUMENTS))
        self._records = _Shelf(Fragments(store, records_folder(key)))
        self._documents.load()
        # A record whose document is gone is read again, as if never seen.
        self._records.load(lambda index: bool((self._documents.ids.find(index["document"]) >= 0).all()))
        self._document_of = [self._documents.ids.find(self._records.index_column("document"))]
        self._old_records, self._old_documents = self._records.ids.size, self._documents.ids.size
        self._record_rows: list[np.ndarray] = []
        self._rejects: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=FRAGMENT_BYTES)  # noqa: SIM115
        self._first_rejects: list[str] = []
        self._rejected = self._accepted = self._partial = 0

    def __enter__(self) -> Ingest:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        self._rejects.close()

    def add(self, block: LineBlock | RowBlock) -> None:
        """Take in the next block of the input."""
        ids = words(hash_all(block.lines) if isinstance(block, LineBlock) else row_ids(block.rows))
        rows = self._records.ids.find(ids)
        new = _first_occurrences(ids, np.flatnonzero(rows < 0))
        accepted = self._take_new(block, ids, new)
        if len(accepted):
            missing = np.flatnonzero(rows < 0)
            rows[missing] = self._records.ids.find(ids[missing])
        refused = np.flatnonzero(rows < 0)
        if len(refused):
            self._refuse(block, refused)
            rows = rows[rows >= 0]
        self._accepted += len(rows)
        self._record_rows.append(rows)

    def _take_new(self, block: LineBlock | RowBlock, ids: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Parse the new records and shelve the sound ones with their documents; which of the block they are."""
        texts, _ = self._parse(block, new)
        sound = np.array(
            [at for at, text in zip(new, texts, strict=True) if text is not None], dtype=np.int64
        )
        if not len(sound):
            return sound
        held = [text for text in texts if text is not None]
        document_ids = words(hash_all(held))
        unseen = _first_occurrences(document_ids, np.flatnonzero(self._documents.ids.find(document_ids) < 0))
        fresh = [held[at] for at in unseen]
        sizes = np.array([len(text) for text in fresh], dtype=np.int64)
        self._documents.add({"id": document_ids[unseen], "size": sizes}, _utf8(fresh), int(sizes.sum()))
        content, record_sizes = _content(block, sound)
        index = {"id": ids[sound], "document": document_ids, "size": record_sizes}
        self._records.add(index, content, int(record_sizes.sum()))
        self._document_of.append(self._documents.ids.find(document_ids))
        if self._records.full or self._documents.full:
            self._flush()
        return sound

    def _parse(self, block: LineBlock | RowBlock, at: np.ndarray) -> tuple[list[bytes | None], list[str]]:
        if isinstance(block, LineBlock):
            return parse_lines([block.lines[i] for i in at], self.text_field)
        try:
            return parse_rows(block.rows.take(pa.array(at)), self.text_field)
        except InputError as error:
            raise InputError(f"{block.path}: {error}") from None

    def _refuse(self, block: LineBlock | RowBlock, refused: np.ndarray) -> None:
        if isinstance(block, LineBlock) and block.unterminated and refused[-1] == len(block.lines) - 1:
            self._partial += 1
            refused = refused[:-1]
        _, reasons = self._parse(block, refused)
        for at, reason in zip(refused, reasons, strict=True):
            if isinstance(block, LineBlock):
                place, raw = {"line": block.numbers[at]}, block.lines[at]
            else:
                row = block.rows.slice(at, 1).to_pylist()[0]
                place, raw = {"row": block.first + int(at)}, orjson.dumps(row, default=repr)
            self._rejects.write(reject_line(block.path, place, reason, raw))
            self._rejected += 1
            if len(self._first_rejects) < _SHOWN_REJECTS:
                self._first_rejects.append(f"{block.path}:{next(iter(place.values()))}: {reason}")

    def _flush(self) -> None:
        for shelf in (self._documents, self._records):
            self._writing.extend(shelf.flush(self._writer))
        self._await_writes(_WAITING_WRITES)

    def _await_writes(self, waiting: int) -> None:
        while len(self._writing) > waiting:
            self._writing.popleft().result()

    def finish(self, max_reject_share: float) -> Ingested:
        """Store what is open and return the view of the whole input.

        Raises:
            RejectLimitError: too many records were refused; what this reading stored is removed again.
            InputError: no record was accepted.
        """
        read = self._accepted + self._rejected
        if self._rejected > max_reject_share * read:
            self.abandon()
            listed = "\n  ".join(self._first_rejects)
            raise RejectLimitError(
                f"{self._rejected:,} of {read:,} records were refused ({self._rejected / read:.1%}), more than "
                f"input.max_reject_share = {max_reject_share:g} allows; nothing was stored. The first:\n  {listed}\n"
                "Correct the input (or input.text_field), or raise input.max_reject_share"
            )
        if not self._accepted:
            raise InputError("the input holds no records; expected at least one JSONL line or Parquet row")
        self._flush()
        self._await_writes(0)
        record_row = np.concatenate(self._record_rows)
        document_row = np.concatenate(self._document_of)[record_row]
        record_ids = self._records.index_column("id")
        document_ids = self._documents.index_column("id")
        version = xxhash.xxh3_128()
        version.update(to_bytes(record_ids[record_row]))
        version.update(to_bytes(document_ids[document_row]))
        used = np.zeros(self._documents.ids.size, dtype=bool)
        used[document_row] = True
        sizes = self._documents.index_column("size")
        records, record_row = self._records.used(record_row)
        documents, document_row = self._documents.used(document_row)
        self._rejects.seek(0)
        return Ingested(
            view=View(self.kind, records, documents, record_row, document_row),
            version=version.hexdigest(),
            rejects=self.store.seal("rejects", "rejects", self._rejects.read(), "jsonl"),
            rejected=self._rejected,
            new_records=self._records.ids.size - self._old_records,
            new_documents=self._documents.ids.size - self._old_documents,
            partial_lines=self._partial,
            text_bytes=int(sizes[used].sum()),
        )

    def abandon(self) -> None:
        """Remove the fragments this reading stored."""
        self._await_writes(0)
        for shelf in (self._records, self._documents):
            shelf.abandon()


class _Shelf:
    """Fragments of one folder: those there, those put by this reading, and the open one."""

    def __init__(self, fragments: Fragments) -> None:
        self.fragments = fragments
        self.ids = IdIndex()
        self._names: list[str] = []
        self._rows: list[int] = []
        self._put: list[str] = []
        self._index: list[dict[str, np.ndarray]] = []
        self._open_index: list[dict[str, np.ndarray]] = []
        self._open_content: list[pa.Array] = []
        self._open_rows = self._open_bytes = 0

    def load(self, sound: Callable[[Mapping[str, np.ndarray]], bool] | None = None) -> None:
        content = self.fragments.files()
        for name, index in self.fragments.indexes():
            if name in content and (sound is None or sound(index)):
                self._names.append(name)
                self._rows.append(len(index["id"]))
                self._index.append(index)
                self.ids.add(index["id"])

    def index_column(self, column: str) -> np.ndarray:
        """A column of the index over all rows, in row order."""
        parts = [index[column] for index in (*self._index, *self._open_index)]
        empty = np.empty(
            (0,) if column == "size" else (0, 2), dtype=np.int64 if column == "size" else np.uint64
        )
        return np.concatenate([empty, *parts])

    def add(self, index: dict[str, np.ndarray], content: pa.Array, size: int) -> None:
        self.ids.add(index["id"])
        self._open_index.append(index)
        self._open_content.append(content)
        self._open_rows += len(content)
        self._open_bytes += size

    @property
    def full(self) -> bool:
        return self._open_rows >= FRAGMENT_ROWS or self._open_bytes >= FRAGMENT_BYTES

    def flush(self, writer: ThreadPoolExecutor) -> list[Future[str]]:
        """Hand the open fragment, if there is one, to the writer."""
        if not self._open_rows:
            return []
        index = {
            column: np.concatenate([part[column] for part in self._open_index])
            for column in self._open_index[0]
        }
        content, name = self._open_content, fragment_name(index["id"])
        self._names.append(name)
        self._rows.append(self._open_rows)
        self._put.append(name)
        self._index.append(index)
        self._open_index, self._open_content = [], []
        self._open_rows = self._open_bytes = 0
        return [writer.submit(lambda: self.fragments.put(pa.concat_arrays(content), index))]

    def abandon(self) -> None:
        for name in self._put:
            self.fragments.delete(name)

    def used(self, rows: np.ndarray) -> tuple[tuple[Fragment, ...], np.ndarray]:
        """The fragments that some of the rows lie in, by first use, and the rows counted through them."""
        starts = np.concatenate([[0], np.cumsum(self._rows, dtype=np.int64)])
        fragment = np.searchsorted(starts, rows, side="right") - 1
        numbers, first = np.unique(fragment, return_index=True)
        numbers = numbers[np.argsort(first)]
        files = self.fragments.files()
        kept = tuple(Fragment(self._names[i], files[self._names[i]], self._rows[i]) for i in numbers)
        shift = np.zeros(len(self._names), dtype=np.int64)
        shift[numbers] = np.concatenate([[0], np.cumsum([f.rows for f in kept], dtype=np.int64)])[:-1]
        return kept, rows - starts[fragment] + shift[fragment]


def _first_occurrences(ids: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Of the rows `at`, those whose id none of the rows before them has."""
    if not len(at):
        return at
    order = np.lexsort((at, ids[at, 1], ids[at, 0]))
    ordered = ids[at[order]]
    first = np.ones(len(at), dtype=bool)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return np.sort(at[order[first]])


def _content(block: LineBlock | RowBlock, at: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Content of some records of a block and their sizes in bytes (of Parquet rows their mean), int64 (n,)."""
    if isinstance(block, LineBlock):
        lines = [block.lines[i] for i in at]
        return pa.array(lines, type=pa.large_binary()), np.array(
            [len(line) for line in lines], dtype=np.int64
        )
    rows = block.rows.take(pa.array(at))
    content = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    return content, np.full(len(at), -(-content.nbytes // len(at)), dtype=np.int64)


def _utf8(texts: list[bytes]) -> pa.Array:
    return pa.array(texts, type=pa.large_binary()).view(pa.large_string())
