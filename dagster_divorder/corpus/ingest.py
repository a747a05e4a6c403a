"""Turns blocks of the input into stored fragments and a view. Parses only records that are new under this key.

A record's id is the hash of its raw bytes, a document's id the hash of its text. New records and documents fill a pair
of fragments. Documents are written first, so no stored record lacks its document; a killed run loses at most the open
pair. Only the view refers to fragments. If an earlier run read a file's prefix, the prefix's rows and rejects come from
that run's view and rejects.

The path of a block: corpus.py (files) -> inputs.py (read) -> blocks.py (compared with known records, parsed) ->
ingest.py -> pairs.py (fragments); at the end of a file, its state.
"""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import orjson
from blake3 import blake3

from dagster_divorder.corpus.blocks import BlockRecords, Parsed, Refusal, compare
from dagster_divorder.corpus.corpus import InputFile
from dagster_divorder.corpus.file_states import FileState
from dagster_divorder.corpus.inputs import SHOWN_BYTES, LongRecord
from dagster_divorder.corpus.looks import looks_like
from dagster_divorder.corpus.multiset import Multiset
from dagster_divorder.corpus.pairs import KEPT_ROWS, FragmentWriter, PairContent, put_pair, record_index, utf8
from dagster_divorder.corpus.records import EMPTY_TEXT, reject_bytes, reject_line, reject_long
from dagster_divorder.corpus.shapes import DEFAULT_SHAPE, Shape
from dagster_divorder.errors import InputError, RejectLimitError
from dagster_divorder.store.arrays import compact
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import (
    DOCUMENTS,
    FRAGMENT_BYTES,
    FRAGMENT_ROWS,
    Fragments,
    records_folder,
)
from dagster_divorder.store.ids import ID_BYTES, IdIndex, distinct, to_bytes
from dagster_divorder.store.view import View

_SHOWN_REJECTS = 10
_WAITING_PAIRS = 1
"""Most pairs of fragments that wait for the writer during reading; bounds memory."""


@dataclass(frozen=True, slots=True)
class Before:
    """Results of an earlier run under the same key: its view, the file of its rejects, and its file states."""

    view: View
    rejects: str
    states: Sequence[FileState]


class Unfinished(NamedTuple):
    """A last line without newline that is incomplete JSON: its file, number, offset and first bytes."""

    file: str
    line: int
    byte: int
    begins: bytes


@dataclass(frozen=True, slots=True)
class Survey:
    """Figures of one reading of the input."""

    version: str
    """Hash of the key, of the record ids in input order, and of any rejects. Equal inputs have equal versions, whatever
    the fragments."""
    records: int
    distinct_records: int
    documents: int
    multiset: Multiset
    """The accepted records, to compare with an output's."""
    rejected: int
    new_records: int
    new_documents: int
    unfinished: tuple[Unfinished, ...]
    """Last lines, left for the next run."""
    stored: dict[str, dict[str, int]]
    """For "records" and "documents": the number of accepted ones in each previously stored fragment."""
    ids: np.ndarray
    """The first half of every document id, uint64 (documents,); empty if the reading stores."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """Results of one reading of the input that stores."""

    survey: Survey
    view: View
    rejects: str
    """File of the refused records."""
    states: tuple[FileState, ...]
    """States of files that the next run can recognise."""
    text_bytes: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A point in the reading of the input: numbers of accepted and refused records, and bytes of rejects."""

    accepted: Multiset
    refused: int
    reject_bytes: int


class Ingest:
    """One reading of the input into the store; a context manager that closes its writer and temporary files.

    A `dry` reading stores nothing and has only a `survey`.
    """

    def __init__(
        self,
        store: Store,
        kind: str,
        key: str,
        before: Before | None = None,
        *,
        scratch: Path | None = None,
        dry: bool = False,
    ) -> None:
        """scratch: folder for ids of records and documents; without one they are in memory."""
        self.store = store
        self.kind = kind
        self._shape, self._unit = DEFAULT_SHAPE, ""
        self._dry = dry
        # One thread compresses and writes, in the order of the flushes, while this one parses the next blocks.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="divorder-ingest")
        self._writing: deque[Future[None]] = deque()
        self._documents = FragmentWriter(Fragments(store, DOCUMENTS), scratch, dry=dry)
        self._records = FragmentWriter(Fragments(store, records_folder(key)), scratch, dry=dry)
        # The contents of the open pair of fragments.
        self._open: list[PairContent] = []
        self._new_text_bytes = 0
        # The document row of each record row, in row order.
        self._document_of: list[np.ndarray] = [np.empty(0, np.uint32)]
        self._version = blake3(key.encode())
        self._load()
        self._old_records, self._old_documents = self._records.ids.size, self._documents.ids.size
        self._record_rows: list[np.ndarray] = []
        self._rejects: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=FRAGMENT_BYTES)  # noqa: SIM115
        self._first_rejects: list[str] = []
        # By shape: numbers of accepted and refused records, and the first refused one, as lines of a message.
        self._accepted_of: Counter[Shape] = Counter()
        self._refused_of: Counter[Shape] = Counter()
        self._first_of: dict[Shape, tuple[str, str]] = {}
        self._rejected = 0
        self._unfinished: list[Unfinished] = []
        self._accepted = Multiset()
        self._begun = self._whole = _Place(Multiset(), 0, 0)
        self._file_states: list[FileState] = []
        # Only these rows of the earlier view stay in memory.
        self._kept_rows = self._records.rows_of(before.view) if before else None
        self._kept_rejects = b""
        self.known: Sequence[FileState] = ()
        """File states of the earlier run; none if a fragment of its view is gone."""
        if before and self._kept_rows is not None:
            self.known = before.states
            if any(state.refused for state in self.known):
                self._kept_rejects = store.read_verified(before.rejects)

    def __enter__(self) -> Ingest:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        self._rejects.close()

    def _load(self) -> None:
        def find_documents(index: Mapping[str, np.ndarray]) -> bool:
            rows = self._documents.ids.find(index["document"])
            # A record without its document counts as new.
            sound = bool((rows >= 0).all())
            if sound:
                self._document_of.append(compact(rows))
            return sound

        self._documents.load(lambda index: True)
        self._records.load(find_documents)

    def begin(self, file: InputFile) -> None:
        """Begins the next file of the input with the records of its known prefix."""
        self._begun = self._place()
        self._shape, self._unit = file.shape, "line" if file.kind == "jsonl" else "row"
        if file.kept:
            self._keep(str(file.path), file.kept)
        self._whole = self._place()

    def end(self, read: FileState | None) -> None:
        """Ends the file. read: the state of its bytes (`InputFile.end`)."""
        if self._unfinished and self._unfinished[-1].byte < 0:
            self._unfinished[-1] = self._unfinished[-1]._replace(byte=read.size if read else 0)
        if read:
            self._file_states.append(
                replace(
                    read,
                    first=self._begun.accepted.records,
                    last=self._whole.accepted.records,
                    first_reject=self._begun.reject_bytes,
                    last_reject=self._whole.reject_bytes,
                    refused=self._whole.refused - self._begun.refused,
                    multiset=self._whole.accepted - self._begun.accepted,
                    shape=self._shape.key,
                )
            )

    def _place(self) -> _Place:
        return _Place(self._accepted, self._rejected, self._rejects.tell())

    def _keep(self, path: str, kept: FileState) -> None:
        assert self._kept_rows is not None
        for first in range(kept.first, kept.last, KEPT_ROWS):
            rows = self._kept_rows[first : min(first + KEPT_ROWS, kept.last)]
            self._version.update(to_bytes(self._records.ids.ids(rows)))
            self._record_rows.append(rows)
        self._accepted += kept.multiset
        self._accepted_of[self._shape] += kept.multiset.records
        for line in self._kept_rejects[kept.first_reject : kept.last_reject].splitlines():
            reject = orjson.loads(line) | {"path": path}
            self._reject(
                path, orjson.dumps(reject) + b"\n", reject.get("line", reject.get("row")), reject["reason"]
            )

    def add(self, block: BlockRecords | LongRecord) -> None:
        """Adds the next block of the open file."""
        if isinstance(block, LongRecord):
            line, reason = reject_long(block.path, self._unit, block.number, block.size, block.begins)
            self._reject(block.path, line, block.number, reason)
        else:
            comparison = compare(block, self._records.ids, self._shape)
            self._accepted += comparison.multiset
            self._accepted_of[self._shape] += len(comparison.ids)
            self._version.update(to_bytes(comparison.ids))
            if comparison.parsed:
                comparison.rows[comparison.new] = self._store(comparison.parsed)
            self._record_rows.append(compact(comparison.rows[comparison.distinct]))
            self._refuse(block.path, comparison.refusals)
        # The next run reads a last line without terminator again, even if it is a record.
        if not block.unterminated:
            self._whole = self._place()

    def _refuse(self, path: str, refusals: Sequence[Refusal]) -> None:
        for refusal in refusals:
            if refusal.unfinished:
                # The line's place counts from the end of the file.
                self._unfinished.append(Unfinished(path, refusal.number, -1, refusal.raw[:SHOWN_BYTES]))
                break
            line = reject_line(path, {self._unit: refusal.number}, refusal.reason, refusal.raw)
            self._reject(path, line, refusal.number, refusal.reason)

    def _store(self, new: Parsed) -> np.ndarray:
        """Adds m distinct new records and their new documents to the open pair of fragments; returns the record rows,
        int64 (m,)."""
        once = distinct(new.document_ids)
        document_rows = self._documents.ids.find(new.document_ids[once.first])
        unseen = np.flatnonzero(document_rows < 0)
        fresh = once.first[unseen]
        if not self._dry:
            self._open.append(PairContent(new.content, utf8([new.texts[at] for at in fresh.tolist()])))
        self._new_text_bytes += int(new.text_sizes[fresh].sum())
        document_rows[unseen] = self._documents.add(
            {"id": new.document_ids[fresh], "size": new.text_sizes[fresh]}
        )
        self._document_of.append(compact(document_rows[once.inverse]))
        rows = self._records.add(record_index(new.ids, new.document_ids, new.record_sizes, self._shape))
        if any(
            writer.open_rows >= FRAGMENT_ROWS or writer.open_bytes >= FRAGMENT_BYTES
            for writer in (self._records, self._documents)
        ):
            self._flush()
        return rows

    def _reject(self, path: str, line: bytes, number: int, reason: str) -> None:
        self._rejects.write(line)
        self._rejected += 1
        first = f"{path}:{number}: {reason}"
        self._refused_of[self._shape] += 1
        if self._shape not in self._first_of:
            looks = looks_like(reject_bytes(line), self._shape.form) if reason != EMPTY_TEXT else ""
            self._first_of[self._shape] = first, f"The first is {looks}.\n" if looks else ""
        if len(self._first_rejects) < _SHOWN_REJECTS:
            self._first_rejects.append(first)

    def _flush(self) -> None:
        documents, records = self._documents.close(), self._records.close()
        taken, self._open = self._open, []
        if taken:
            folder = self._records.fragments.folder
            self._writing.append(self._writer.submit(put_pair, self.store, folder, taken, documents, records))
            self._await_writes(_WAITING_PAIRS)

    def _await_writes(self, waiting: int) -> None:
        while len(self._writing) > waiting:
            self._writing.popleft().result()

    def survey(self, max_reject_share: float) -> Survey:
        """Figures of the whole input, once all blocks are added.

        Raises:
            RejectLimitError: too many records were refused; this reading's fragments are removed again. InputError: no
            record was accepted.
        """
        self._check(max_reject_share)
        self._document_of = [document_row := np.concatenate(self._document_of)]
        used = np.zeros(self._documents.ids.size, dtype=bool)
        used_records = np.zeros(self._records.ids.size, dtype=bool)
        for rows in self._record_rows:
            used[document_row[rows]] = True
            used_records[rows] = True
        version = self._version.copy()
        if self._rejected:
            version.update(blake3(self._reject_lines()).digest())
        return Survey(
            version=version.hexdigest(ID_BYTES),
            records=self._accepted.records,
            distinct_records=int(used_records.sum()),
            multiset=self._accepted,
            documents=int(used.sum()),
            rejected=self._rejected,
            new_records=self._records.ids.size - self._old_records,
            new_documents=self._documents.ids.size - self._old_documents,
            unfinished=tuple(self._unfinished),
            stored={
                "documents": self._documents.count_stored(used),
                "records": self._records.count_stored(used_records),
            },
            ids=self._documents.ids.first_halves(used) if self._dry else np.empty(0, np.uint64),
        )

    def _check(self, max_reject_share: float) -> None:
        read = self._accepted.records + self._rejected
        if self._rejected > max_reject_share * read:
            self.abandon()
            listed, (shape, (_, looks)) = "\n  ".join(self._first_rejects), next(iter(self._first_of.items()))
            raise RejectLimitError(
                f"{self._rejected:,} of {read:,} records were refused ({self._rejected / read:.1%}), more than "
                f"input.max_reject_share = {max_reject_share:g} allows; nothing was stored. The first:\n  {listed}\n"
                f"{looks}Correct the input (or {shape.setting}), or raise input.max_reject_share"
            )
        # Each input must hold records, however small its share.
        for shape, (first, looks) in self._first_of.items():
            if not self._accepted_of[shape]:
                self.abandon()
                with shape.naming():
                    raise InputError(
                        f"the input holds no usable records: all {self._refused_of[shape]:,} were refused, the "
                        f"first: {first}\n{looks}Correct the input (or {shape.setting})"
                    )
        if not self._accepted.records:
            message = "the input holds no records; expected at least one JSONL line or Parquet row"
            if self._unfinished:
                file, line, _, begins = self._unfinished[0]
                looks = looks_like(begins) or "a line still being written, or truncated"
                message = f"{message}. {file}:{line}, which ends without a newline and is incomplete JSON, is {looks}"
            raise InputError(message)

    def _reject_lines(self) -> bytes:
        self._rejects.seek(0)
        return self._rejects.read()

    def finish(self, max_reject_share: float) -> Ingested:
        """Stores the open pair, and returns the view of the whole input.

        Raises:
            RejectLimitError, InputError: see `survey`.
        """
        survey = self.survey(max_reject_share)
        self._flush()
        self._await_writes(0)
        used = np.zeros(self._documents.ids.size, dtype=bool)
        # No more look-ups: frees their memory for the view.
        self._records.ids, self._documents.ids, self._kept_rows = IdIndex(), IdIndex(), None
        record_row = _concatenated(self._record_rows)
        document_row = _concatenated(self._document_of)[record_row]
        used[document_row] = True
        text_bytes = self._new_text_bytes + self._documents.stored_bytes(used)
        records = self._records.used(record_row)
        documents = self._documents.used(document_row)
        return Ingested(
            survey=survey,
            view=View(self.kind, records, documents, record_row, document_row),
            rejects=self.store.put_hashed("rejects", "rejects", self._reject_lines(), "jsonl"),
            states=tuple(self._file_states),
            text_bytes=text_bytes,
        )

    def abandon(self) -> None:
        """Removes the fragments that this reading stored."""
        self._await_writes(0)
        for written in (self._records, self._documents):
            written.abandon()


def _concatenated(arrays: list[np.ndarray]) -> np.ndarray:
    """The arrays as one; clears the list to free their memory."""
    whole = np.concatenate(arrays)
    arrays.clear()
    return whole
