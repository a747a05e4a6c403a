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
import pyarrow as pa
import xxhash

from dagster_divorder.errors import InputError, RejectLimitError
from dagster_divorder.store.arrays import binary_array, row_array
from dagster_divorder.store.fragments import (
    DOCUMENTS,
    FRAGMENT_BYTES,
    FRAGMENT_ROWS,
    Fragments,
    fragment_name,
    records_folder,
)
from dagster_divorder.store.ids import IdIndex, distinct, hash_all, to_bytes, words
from dagster_divorder.store.inputs import LineBlock, RowBlock
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.records import (
    NOT_JSON,
    parse_lines,
    parse_rows,
    reject_line,
    row_as_json,
    row_ids,
)
from dagster_divorder.store.view import Fragment, View

_SHOWN_REJECTS = 10
_WAITING_WRITES = 2
"""Fragments that may wait to be written, so that reading goes on meanwhile and memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one reading of the input came to."""

    view: View
    version: str
    """Hash of the key and the record ids in input order: equal input, equal version, whatever the fragments."""
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
        # Of the document rows: sizes in bytes. Of the record rows: the document row of each. In parts, in row order.
        self._document_sizes: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
        self._document_of: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
        self._version = xxhash.xxh3_128(key.encode())
        self._load()
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

    def _load(self) -> None:
        def keep_size(index: Mapping[str, np.ndarray]) -> bool:
            self._document_sizes.append(index["size"])
            return True

        def find_documents(index: Mapping[str, np.ndarray]) -> bool:
            rows = self._documents.ids.find(index["document"])
            # A record whose document is gone is read again, as if never seen.
            sound = bool((rows >= 0).all())
            if sound:
                self._document_of.append(rows)
            return sound

        self._documents.load(keep_size)
        self._records.load(find_documents)

    def add(self, block: LineBlock | RowBlock) -> None:
        """Take in the next block of the input."""
        if isinstance(block, RowBlock) and not block.rows.num_rows:
            # A file without rows is refused too if its columns are wrong.
            self._parse(block, np.empty(0, dtype=np.int64))
            return
        ids = words(hash_all(block.lines) if isinstance(block, LineBlock) else row_ids(block.rows))
        once = distinct(ids)
        rows = self._records.ids.find(ids[once.first])
        new = np.flatnonzero(rows < 0)
        if len(new):
            rows[new] = self._take_new(block, once.first[new], ids)
        rows = rows[once.inverse]
        refused = np.flatnonzero(rows < 0)
        if len(refused):
            self._refuse(block, refused)
            accepted = rows >= 0
            rows, ids = rows[accepted], ids[accepted]
        self._version.update(to_bytes(ids))
        self._accepted += len(rows)
        self._record_rows.append(rows)

    def _take_new(self, block: LineBlock | RowBlock, at: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Parse new records of a block, distinct ones, and shelve the sound ones with their documents.

        Returns the record row of each, -1 where it is refused.
        """
        texts, _ = self._parse(block, at)
        held = [text for text in texts if text is not None]
        rows = np.full(len(at), -1, dtype=np.int64)
        if not held:
            return rows
        sound = np.flatnonzero([text is not None for text in texts])
        document_ids = words(hash_all(held))
        once = distinct(document_ids)
        document_rows = self._documents.ids.find(document_ids[once.first])
        unseen = np.flatnonzero(document_rows < 0)
        fresh = [held[i] for i in once.first[unseen]]
        sizes = np.fromiter(map(len, fresh), np.int64, len(fresh))
        index = {"id": document_ids[once.first[unseen]], "size": sizes}
        document_rows[unseen] = self._documents.add(index, _utf8(fresh), int(sizes.sum()))
        self._document_sizes.append(sizes)
        content, record_sizes = _content(block, at[sound])
        index = {"id": ids[at[sound]], "document": document_ids, "size": record_sizes}
        rows[sound] = self._records.add(index, content, int(record_sizes.sum()))
        self._document_of.append(document_rows[once.inverse])
        if self._records.full or self._documents.full:
            self._flush()
        return rows

    def _parse(self, block: LineBlock | RowBlock, at: np.ndarray) -> tuple[list[bytes | None], list[str]]:
        if isinstance(block, LineBlock):
            return parse_lines([block.lines[i] for i in at], self.text_field)
        try:
            return parse_rows(block.rows.take(row_array(at)), self.text_field)
        except InputError as error:
            raise InputError(f"{block.path}: {error}") from None

    def _refuse(self, block: LineBlock | RowBlock, refused: np.ndarray) -> None:
        _, reasons = self._parse(block, refused)
        for at, reason in zip(refused, reasons, strict=True):
            if isinstance(block, LineBlock):
                last = block.unterminated and at == len(block.lines) - 1
                if last and reason.startswith(NOT_JSON):
                    self._partial += 1
                    break
                place, raw = {"line": block.numbers[at]}, block.lines[at]
            else:
                place, raw = {"row": block.first + int(at)}, row_as_json(block.rows.take(pa.array([at])))
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
            if self._rejected:
                raise InputError(
                    f"the input holds no records to use: all {read:,} were refused, the first: "
                    f"{self._first_rejects[0]}; correct the input (or input.text_field)"
                )
            raise InputError("the input holds no records; expected at least one JSONL line or Parquet row")
        self._flush()
        self._await_writes(0)
        new_records = self._records.forget_ids() - self._old_records
        new_documents = self._documents.forget_ids() - self._old_documents
        record_row = _joined(self._record_rows)
        document_row = _joined(self._document_of)[record_row]
        sizes = _joined(self._document_sizes)
        used = np.zeros(len(sizes), dtype=bool)
        used[document_row] = True
        text_bytes = int(sizes[used].sum())
        del sizes, used
        records = self._records.used(record_row)
        documents = self._documents.used(document_row)
        self._rejects.seek(0)
        return Ingested(
            view=View(self.kind, records, documents, record_row, document_row),
            version=self._version.hexdigest(),
            rejects=self.store.seal("rejects", "rejects", self._rejects.read(), "jsonl"),
            rejected=self._rejected,
            new_records=new_records,
            new_documents=new_documents,
            partial_lines=self._partial,
            text_bytes=text_bytes,
        )

    def abandon(self) -> None:
        """Remove the fragments this reading stored."""
        self._await_writes(0)
        for shelf in (self._records, self._documents):
            shelf.abandon()


class _Shelf:
    """Fragments of one folder: those there, those put by this reading, and the open one.

    The index of ids is the only holder of the ids of closed fragments.
    """

    def __init__(self, fragments: Fragments) -> None:
        self.fragments = fragments
        self.ids = IdIndex()
        self._names: list[str] = []
        self._rows: list[int] = []
        self._put: list[str] = []
        self._open_index: list[dict[str, np.ndarray]] = []
        self._open_content: list[pa.Array] = []
        self._open_rows = self._open_bytes = 0

    def load(self, take: Callable[[Mapping[str, np.ndarray]], bool]) -> None:
        """Take the stored fragments of which `take(index)` is true, in the order of their rows."""
        content = self.fragments.files()
        ids = []
        for name, index in self.fragments.indexes():
            if name in content and take(index):
                self._names.append(name)
                self._rows.append(len(index["id"]))
                ids.append(index["id"])
        if ids:
            self.ids.add(np.concatenate(ids))

    def add(self, index: dict[str, np.ndarray], content: pa.Array, size: int) -> np.ndarray:
        """Put rows into the open fragment; return their row numbers."""
        self._open_index.append(index)
        self._open_content.append(content)
        self._open_rows += len(content)
        self._open_bytes += size
        return self.ids.add(index["id"])

    def forget_ids(self) -> int:
        """Free the ids; how many there were."""
        size = self.ids.size
        self.ids = IdIndex()
        return size

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
        self._open_index, self._open_content = [], []
        self._open_rows = self._open_bytes = 0
        return [writer.submit(lambda: self.fragments.put(pa.concat_arrays(content), index))]

    def abandon(self) -> None:
        for name in self._put:
            self.fragments.delete(name)

    def used(self, rows: np.ndarray) -> tuple[Fragment, ...]:
        """The fragments that some of the rows lie in, by first use. Writes `rows`: counted through these fragments."""
        starts = np.concatenate([[0], np.cumsum(self._rows, dtype=np.int64)])
        fragment = np.searchsorted(starts, rows, side="right") - 1
        first = np.full(len(self._names), -1, dtype=np.int64)
        # Of several values for one place the last stays, so this leaves the first use.
        first[fragment[::-1]] = np.arange(len(rows) - 1, -1, -1)
        numbers = np.flatnonzero(first >= 0)
        numbers = numbers[np.argsort(first[numbers])]
        files = self.fragments.files()
        kept = tuple(Fragment(self._names[i], files[self._names[i]], self._rows[i]) for i in numbers)
        shift = np.zeros(len(self._names), dtype=np.int64)
        shift[numbers] = np.concatenate([[0], np.cumsum([f.rows for f in kept], dtype=np.int64)])[:-1]
        rows += (shift - starts[:-1])[fragment]
        return kept


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Parts as one array; the parts are freed."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _content(block: LineBlock | RowBlock, at: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Content of some records of a block and their sizes in bytes (of Parquet rows their mean), int64 (n,)."""
    if isinstance(block, LineBlock):
        lines = [block.lines[i] for i in at]
        return binary_array(lines), np.fromiter(map(len, lines), np.int64, len(lines))
    rows = block.rows.take(row_array(at))
    content = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    return content, np.full(len(at), -(-content.nbytes // len(at)), dtype=np.int64)


def _utf8(texts: list[bytes]) -> pa.Array:
    return binary_array(texts).view(pa.large_string())
