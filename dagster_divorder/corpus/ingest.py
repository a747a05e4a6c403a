"""Input blocks to stored fragments and a view. Only records never seen under this key are parsed and stored.

A record is known by its id (the hash of its raw bytes), a document by the hash of its text. New ones gather into a pair
of fragments, documents first, so that a stored record's document is always there; a killed run loses at most the open
pair. Nothing refers to a fragment before the view does. Of a file's prefix that an earlier run read, rows and rejects
are taken over from the view and the rejects of that run.
"""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import orjson
from blake3 import blake3

from dagster_divorder.corpus.blocks import PairContent, Records, joined, put_pair, record_index
from dagster_divorder.corpus.corpus import InputFile
from dagster_divorder.corpus.file_states import FileState
from dagster_divorder.corpus.inputs import SHOWN_BYTES, LongRecord
from dagster_divorder.corpus.looks import looks_like
from dagster_divorder.corpus.multiset import Multiset
from dagster_divorder.corpus.parts import Jobs, Pair, Pick
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
    fragment_name,
    of_shape,
    records_folder,
    row_ids,
)
from dagster_divorder.store.ids import ID_BYTES, IdIndex, distinct, to_bytes
from dagster_divorder.store.view import Fragment, View, offsets

_SHOWN_REJECTS = 10
_WAITING_PAIRS = 1
"""Pairs of fragments that may wait to be written, so that reading goes on meanwhile and memory stays bounded."""
_KEPT_ROWS = 1 << 16
"""Rows of a view that are gone through at a time."""
_LOADED_IDS = 1 << 20
"""Ids of stored fragments that are taken in at a time."""


@dataclass(frozen=True, slots=True)
class Before:
    """What an earlier run under the same key came to: its view, the file of its rejects, and its file states."""

    view: View
    rejects: str
    states: Sequence[FileState]


class Unfinished(NamedTuple):
    """A last line without its newline that is no whole JSON: its file, its number, the byte that it begins at, and its
    first bytes."""

    file: str
    line: int
    byte: int
    begins: bytes


@dataclass(frozen=True, slots=True)
class Survey:
    """What one reading of the input found."""

    version: str
    """Hash of the key, of the record ids in input order, and of the rejects where there are some: equal input, equal
    version, whatever the fragments."""
    records: int
    distinct_records: int
    documents: int
    multiset: Multiset
    """The accepted records, to be compared with those of an output."""
    rejected: int
    new_records: int
    new_documents: int
    unfinished: tuple[Unfinished, ...]
    """Last lines that are left for the next run."""
    stored: dict[str, dict[str, int]]
    """Of the accepted "records" and of their "documents", how many each fragment holds that was there before."""
    ids: np.ndarray
    """The first half of the id of every document, uint64 (documents,); of a reading that stores, none."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What one reading of the input found and stored."""

    survey: Survey
    view: View
    rejects: str
    """File of the refused records."""
    states: tuple[FileState, ...]
    """Of each file whose prefix the next run can know again."""
    text_bytes: int


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a reading of the input is: the records accepted, how many were refused, bytes of rejects."""

    accepted: Multiset
    refused: int
    reject_bytes: int


class Ingest:
    """One reading of the input into the store; a context manager, so that its writer and temporary file are closed.

    A `dry` one stores nothing, and can only be asked for its `survey`.
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
        """scratch: folder for the ids of what is read, which are in memory without one."""
        self.store = store
        self.kind = kind
        self._shape, self._unit = DEFAULT_SHAPE, ""
        self._dry = dry
        # One thread compresses and writes, in the order of the flushes, while the next blocks are parsed.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="divorder-ingest")
        self._writing: deque[Future[None]] = deque()
        self._documents = _FragmentWriter(Fragments(store, DOCUMENTS), scratch, dry=dry)
        self._records = _FragmentWriter(Fragments(store, records_folder(key)), scratch, dry=dry)
        # Of the open pair of fragments: content of its records, or where they are in the input.
        self._open: list[Any] = []
        self._jobs = Jobs()
        self._new_text_bytes = 0
        # The document row of each record row, in parts, in row order.
        self._document_of: list[np.ndarray] = [np.empty(0, np.uint32)]
        self._version = blake3(key.encode())
        self._load()
        self._old_records, self._old_documents = self._records.ids.size, self._documents.ids.size
        self._record_rows: list[np.ndarray] = []
        self._rejects: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=FRAGMENT_BYTES)  # noqa: SIM115
        self._first_rejects: list[str] = []
        # By shape: how many records were accepted and refused, and what the first of these is, as lines of a message.
        self._accepted_of: Counter[Shape] = Counter()
        self._refused_of: Counter[Shape] = Counter()
        self._first_of: dict[Shape, tuple[str, str]] = {}
        self._rejected = 0
        self._unfinished: list[Unfinished] = []
        self._accepted = Multiset()
        self._begun = self._whole = _Place(Multiset(), 0, 0)
        self._file_states: list[FileState] = []
        # Of the earlier view these rows alone are held on to.
        self._kept_rows = self._records.rows_of(before.view) if before else None
        self._kept_rejects = b""
        self.known: Sequence[FileState] = ()
        """The file states of the earlier run; none if a fragment of its view is gone."""
        if before and self._kept_rows is not None:
            self.known = before.states
            if any(state.refused for state in self.known):
                self._kept_rejects = store.read_verified(before.rejects)

    def __enter__(self) -> Ingest:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        self._rejects.close()
        self._jobs.file.close()

    def _load(self) -> None:
        def find_documents(index: Mapping[str, np.ndarray]) -> bool:
            rows = self._documents.ids.find(index["document"])
            # A record whose document is gone is read again, as if never seen.
            sound = bool((rows >= 0).all())
            if sound:
                self._document_of.append(compact(rows))
            return sound

        self._documents.load(lambda index: True)
        self._records.load(find_documents)

    def begin(self, file: InputFile) -> None:
        """Begin with the next file of the input, and take over what is known of it."""
        self._begun = self._place()
        self._shape, self._unit = file.shape, "line" if file.kind == "jsonl" else "row"
        if file.kept:
            self._keep(str(file.path), file.kept)
        self._whole = self._place()

    def end(self, read: FileState | None) -> None:
        """End with that file, whose prefix this is, without what came of it; None where nothing is to be kept."""
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
        for first in range(kept.first, kept.last, _KEPT_ROWS):
            rows = self._kept_rows[first : min(first + _KEPT_ROWS, kept.last)]
            self._version.update(to_bytes(self._records.ids.ids(rows)))
            self._record_rows.append(rows)
        self._accepted += kept.multiset
        self._accepted_of[self._shape] += kept.multiset.records
        for line in self._kept_rejects[kept.first_reject : kept.last_reject].splitlines():
            reject = orjson.loads(line) | {"path": path}
            self._reject(
                path, orjson.dumps(reject) + b"\n", reject.get("line", reject.get("row")), reject["reason"]
            )

    def add(self, block: Records | LongRecord) -> None:
        """Take in the next block of the file that has begun."""
        if isinstance(block, LongRecord):
            line, reason = reject_long(block.path, self._unit, block.number, block.size, block.begins)
            self._reject(block.path, line, block.number, reason)
        else:
            self._add(block)
        # An unfinished last line, even one that is a record, is no part of what the next run goes on from.
        if not block.unterminated:
            self._whole = self._place()

    def _add(self, block: Records) -> None:
        ids = of_shape(block.ids, self._shape.key) if self._shape.key else block.ids
        once = distinct(ids)
        rows = self._records.ids.find(ids[once.first])
        new = np.flatnonzero(rows < 0)
        if len(new):
            rows[new] = self._take_new(block, once.first[new])
        rows = rows[once.inverse]
        accepted = rows >= 0
        if not accepted.all():
            self._refuse(block, np.flatnonzero(~accepted))
            rows, ids = rows[accepted], ids[accepted]
        self._version.update(to_bytes(ids))
        self._accepted += block.multiset(accepted)
        self._accepted_of[self._shape] += len(rows)
        self._record_rows.append(compact(rows))

    def _take_new(self, block: Records, at: np.ndarray) -> np.ndarray:
        """Put new records of a block, no two of them equal, and their documents into the open pair of fragments, as far
        as they are sound.

        Returns the record row of each, -1 where it is refused.
        """
        parsed = block.parse(at)
        rows = np.full(len(at), -1, dtype=np.int64)
        if not len(parsed.sound):
            return rows
        once = distinct(parsed.document_ids)
        document_rows = self._documents.ids.find(parsed.document_ids[once.first])
        unseen = np.flatnonzero(document_rows < 0)
        fresh = once.first[unseen]
        index = {"id": parsed.document_ids[fresh], "size": parsed.text_sizes[fresh]}
        document_rows[unseen] = self._documents.add(index)
        self._new_text_bytes += int(index["size"].sum())
        index = record_index(
            block.ids[at[parsed.sound]], parsed.document_ids, parsed.record_sizes, self._shape
        )
        rows[parsed.sound] = self._records.add(index)
        self._document_of.append(compact(document_rows[once.inverse]))
        if isinstance(parsed.content, Pick):
            self._open.append(parsed.content._replace(fresh=fresh.astype(np.int32)))
        elif not self._dry:
            self._open.append(PairContent(parsed.content, [parsed.texts[at] for at in fresh]))
        if self._records.full or self._documents.full:
            self._flush()
        return rows

    def _refuse(self, block: Records, refused: np.ndarray) -> None:
        for refusal in block.refusals(refused):
            if refusal.unfinished:
                # Where it begins is known at the end of the file.
                begins = refusal.raw[:SHOWN_BYTES]
                self._unfinished.append(Unfinished(block.path, refusal.number, -1, begins))
                break
            line = reject_line(block.path, {self._unit: refusal.number}, refusal.reason, refusal.raw)
            self._reject(block.path, line, refusal.number, refusal.reason)

    def _reject(self, path: str, line: bytes, number: int, reason: str) -> None:
        self._rejects.write(line)
        self._rejected += 1
        said = f"{path}:{number}: {reason}"
        self._refused_of[self._shape] += 1
        if self._shape not in self._first_of:
            looks = looks_like(reject_bytes(line)) if reason != EMPTY_TEXT else ""
            self._first_of[self._shape] = said, f"The first is {looks}.\n" if looks else ""
        if len(self._first_rejects) < _SHOWN_REJECTS:
            self._first_rejects.append(said)

    def _flush(self) -> None:
        documents, records = self._documents.close(), self._records.close()
        taken, self._open = self._open, []
        if taken and isinstance(taken[0], Pick):
            self._jobs.add(taken)
        elif taken:
            folder = self._records.fragments.folder
            self._writing.append(self._writer.submit(put_pair, self.store, folder, taken, documents, records))
            self._await_writes(_WAITING_PAIRS)

    def _await_writes(self, waiting: int) -> None:
        while len(self._writing) > waiting:
            self._writing.popleft().result()

    def survey(self, max_reject_share: float) -> Survey:
        """What was found, at the end of the input.

        Raises:
            RejectLimitError: too many records were refused; what this reading stored is removed again.
            InputError: no record was accepted.
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
            listed, (_, looks) = "\n  ".join(self._first_rejects), next(iter(self._first_of.values()))
            raise RejectLimitError(
                f"{self._rejected:,} of {read:,} records were refused ({self._rejected / read:.1%}), more than "
                f"input.max_reject_share = {max_reject_share:g} allows; nothing was stored. The first:\n  {listed}\n"
                f"{looks}Correct the input (or input.text_field), or raise input.max_reject_share"
            )
        # However few these are among the records of all inputs.
        for shape, (first, looks) in self._first_of.items():
            if not self._accepted_of[shape]:
                self.abandon()
                with shape.naming():
                    raise InputError(
                        f"the input holds no records to use: all {self._refused_of[shape]:,} were refused, the first: "
                        f"{first}\n{looks}Correct the input (or input.text_field)"
                    )
        if not self._accepted.records:
            said = "the input holds no records; expected at least one JSONL line or Parquet row"
            if self._unfinished:
                file, line, _, begins = self._unfinished[0]
                looks = looks_like(begins) or "a line that is still being written, or was cut short"
                said = f"{said}. {file}:{line}, which ends without a newline and is no whole JSON, is {looks}"
            raise InputError(said)

    def _reject_lines(self) -> bytes:
        self._rejects.seek(0)
        return self._rejects.read()

    def finish(
        self, max_reject_share: float, write: Callable[[Sequence[list[Pair]]], object] | None = None
    ) -> Ingested:
        """Store what is open, `write` what was surveyed, and return the view of the whole input.

        Raises:
            RejectLimitError, InputError: as `survey` does.
        """
        survey = self.survey(max_reject_share)
        self._flush()
        self._await_writes(0)
        self._jobs.close()
        if write:
            write(self._jobs)
        used = np.zeros(self._documents.ids.size, dtype=bool)
        # Nothing is looked up any more.
        self._records.ids, self._documents.ids, self._kept_rows = IdIndex(), IdIndex(), None
        record_row = _joined(self._record_rows)
        document_row = _joined(self._document_of)[record_row]
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
        """Remove the fragments this reading stored; of what was surveyed there is none yet."""
        self._await_writes(0)
        if self._jobs:
            return
        for written in (self._records, self._documents):
            written.abandon()


class _FragmentWriter:
    """Fragments of one folder: those there, those put by this reading, and the open one.

    The index of ids is the only holder of the ids of closed fragments.
    """

    def __init__(self, fragments: Fragments, scratch: Path | None, *, dry: bool) -> None:
        self.fragments = fragments
        self.ids = IdIndex(scratch)
        self._dry = dry
        self._names: list[str] = []
        self._rows: list[int] = []
        self._put: list[str] = []
        self._open_index: list[dict[str, np.ndarray]] = []
        self._open_rows = self._open_bytes = 0

    def load(self, take: Callable[[Mapping[str, np.ndarray]], bool]) -> None:
        """Take the stored fragments of which `take(index)` is true, in the order of their rows."""
        content = self.fragments.files()
        ids, waiting = [np.empty((0, 2), np.uint64)], 0
        for name, index in self.fragments.indexes():
            if name in content and take(index):
                self._names.append(name)
                self._rows.append(len(index["id"]))
                ids.append(row_ids(index))
                waiting += len(index["id"])
                if waiting >= _LOADED_IDS:
                    self.ids.add(np.concatenate(ids))
                    ids, waiting = ids[:1], 0
        self.ids.add(np.concatenate(ids))

    def count_stored(self, used: np.ndarray) -> dict[str, int]:
        """How many of the rows of each fragment are used, of those that were there before."""
        return {name: int(used[low:high].sum()) for name, (low, high) in self._stored().items()}

    def stored_bytes(self, used: np.ndarray) -> int:
        """The sum of their sizes."""
        found, stored = 0, self._stored()
        # The indexes that were just written are not read back for nothing.
        for name, index in self.fragments.indexes() if stored else ():
            if name in stored:
                low, high = stored[name]
                found += int(index["size"][used[low:high]].sum())
        return found

    def _stored(self) -> dict[str, tuple[int, int]]:
        """Where the rows of each fragment that was there before begin and end."""
        stored = len(self._names) - len(self._put)
        ends = np.cumsum(self._rows[:stored], dtype=np.int64).tolist()
        return dict(zip(self._names, pairwise([0, *ends]), strict=False))

    def rows_of(self, view: View) -> np.ndarray | None:
        """Rows of the records at a view's input positions, int64 (N,); None where a fragment of it is gone."""
        starts = np.concatenate([[0], np.cumsum(self._rows, dtype=np.int64)])
        start_of = dict(zip(self._names, starts.tolist(), strict=False))
        if not all(fragment.name in start_of for fragment in view.records):
            return None
        first = offsets(view.records)
        shift = np.array([start_of[fragment.name] for fragment in view.records], np.int64) - first[:-1]
        rows = view.record_row.astype(np.uint32 if starts[-1] < 1 << 32 else np.int64)
        _shift(rows, first, shift)
        return rows

    def add(self, index: dict[str, np.ndarray]) -> np.ndarray:
        """Put rows into the open fragment; return their row numbers."""
        if not self._dry:
            self._open_index.append(index)
            self._open_rows += len(index["id"])
            self._open_bytes += int(index["size"].sum())
        return self.ids.add(row_ids(index))

    @property
    def full(self) -> bool:
        return self._open_rows >= FRAGMENT_ROWS or self._open_bytes >= FRAGMENT_BYTES

    def close(self) -> dict[str, np.ndarray]:
        """Close the open fragment; its index."""
        index = joined(self._open_index) if self._open_index else {}
        if self._open_rows:
            self._names.append(fragment_name(index))
            self._rows.append(self._open_rows)
            self._put.append(self._names[-1])
        self._open_index = []
        self._open_rows = self._open_bytes = 0
        return index

    def abandon(self) -> None:
        for name in self._put:
            self.fragments.delete(name)

    def used(self, rows: np.ndarray) -> tuple[Fragment, ...]:
        """The fragments that some of the rows lie in, by first use. Changes `rows`, which then count through
        these fragments laid end to end."""
        starts = np.concatenate([[0], np.cumsum(self._rows, dtype=np.int64)])
        first = np.full(len(self._names), -1, dtype=np.int64)
        # Of several values for one place the last stays, so this leaves the first use.
        for low in reversed(range(0, len(rows), _KEPT_ROWS)):
            fragment = np.searchsorted(starts, rows[low : low + _KEPT_ROWS], side="right") - 1
            first[fragment[::-1]] = np.arange(low + len(fragment) - 1, low - 1, -1)
        numbers = np.flatnonzero(first >= 0)
        numbers = numbers[np.argsort(first[numbers])]
        files = self.fragments.files()
        kept = tuple(Fragment(self._names[i], files[self._names[i]], self._rows[i]) for i in numbers)
        shift = np.zeros(len(self._names), dtype=np.int64)
        shift[numbers] = np.concatenate([[0], np.cumsum([f.rows for f in kept], dtype=np.int64)])[:-1]
        _shift(rows, starts, shift - starts[:-1])
        return kept


def _shift(rows: np.ndarray, starts: np.ndarray, shift: np.ndarray) -> None:
    """Add to each row, int (N,), the shift of the fragment that it lies in, by where fragments start."""
    for low in range(0, len(rows), _KEPT_ROWS):
        some = rows[low : low + _KEPT_ROWS]
        some[:] = some + shift[np.searchsorted(starts, some, side="right") - 1]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Parts as one array; they are freed."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole
