"""Rows of an export: packed sequences in the order of a file, their token ids gathered from the stored documents.

Letters: R rows, Q runs of tokens in them, S packed sequences, N accepted records, L tokens a sequence.
Ids that fit into MEMORY_BYTES are gathered in this process, from the store's files mapped into memory. More are
scattered: each group of fragments to a file that holds its runs bucket by bucket, a bucket being consecutive rows of
one file of the export, which is then written from its buckets in all of these; from WORKERS_FROM_BYTES and two files on
both are calls of the engine. Memory: the ids, or of each call its bucket or group (an eighth of MEMORY_BYTES; of more
than MAX_BUCKETS groups as much as that leaves); a block; some 60 bytes a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

import numpy as np

from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.rows import row_entries
from dagster_divorder.engine.base import Engine
from dagster_divorder.engine.local import KEEP_MEMORY
from dagster_divorder.engine.progress import Advance, Progress, Silent, counted
from dagster_divorder.errors import StoreError
from dagster_divorder.store.base import temporary_name
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import View, offsets
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.file_rows import FileRows, Group, Scattered, Write, mapped_ids, scatter
from dagster_divorder.write.permute import MAX_BUCKETS

MEMORY_BYTES = 2 << 30
WORKERS_FROM_BYTES = 4 << 30
"""Ids from which on workers write them: each takes a second and a half to start, twice."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Tokens:
    """Stored token ids of what is trained on.

    files: of token_counts. view: of the M items of the stream. records: the position of each item's record among the
    accepted ones, int64 (M,) rising, the same one for every time that a record is read; None where the items are the
    records. dtype: of the stored ids, uint16 or uint32. special: ids of the `eos`, `bos` and `pad` tokens that the
    tokenizer has. end_of_text: the id that follows the last token of a document where a run is longer than what the
    document has left; padding: the id that fills up rows. directory: of the tokenizer. names: what people know the
    records at some positions among the accepted ones, int64 (n,), by. scratch: folder for temporary files. engine:
    opens it.
    """

    files: StageFiles
    view: View
    records: np.ndarray | None
    dtype: np.dtype
    special: Mapping[str, int]
    end_of_text: int
    padding: int
    vocabulary: int
    directory: Path
    names: Callable[[np.ndarray], list[str]]
    scratch: Path
    engine: Callable[[], Engine]
    progress: Progress = field(default_factory=Silent)

    def record(self, items: np.ndarray) -> np.ndarray:
        """The position among the accepted records of each of some items, int64 (n,)."""
        return items if self.records is None else self.records[items]

    @cached_property
    def repeats(self) -> np.ndarray | None:
        """Which time each item's record is read, from 0, int64 (M,); None where none is read twice."""
        if self.records is None or (np.diff(self.records) > 0).all():
            return None
        return np.arange(len(self.records)) - np.searchsorted(self.records, self.records)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every document row of the view, int64."""
        return self.files.column(self.view.documents, "lengths")

    @cached_property
    def begins(self) -> np.ndarray:
        """Where each document row begins among all ids laid end to end, int64 (document rows + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def counts(self) -> list[int]:
        """Ids of each fragment."""
        return np.diff(self.begins[offsets(self.view.documents)]).tolist()

    @cached_property
    def mapped(self) -> list[np.ndarray]:
        """The ids of the documents of each fragment, mapped from its file."""
        return list(mapped_ids(self.files, self.view.documents, self.counts, self.dtype))

    @property
    def addresses(self) -> np.ndarray:
        """Where in memory `mapped` holds each document row's ids, int64 (document rows,)."""
        rows = [fragment.rows for fragment in self.view.documents]
        first = self.begins[offsets(self.view.documents)[:-1]]
        base = np.array([ids.ctypes.data for ids in self.mapped], np.int64) - first * self.dtype.itemsize
        return base.repeat(rows) + self.begins[:-1] * self.dtype.itemsize


_File: TypeAlias = tuple[str, tuple[int, int], Write]
"""A file's name, its rows (first, end) and what writes it."""


class Scattering(NamedTuple):
    """Ids on their way through files. groups: of fragments, a file each. begins: where in the file of each group every
    bucket begins, and the last ends, int64 (groups, buckets + 1); source: where in its bucket each run lies, int64
    (Q,); both in bytes."""

    groups: list[Group]
    begins: np.ndarray
    source: np.ndarray


@dataclass(frozen=True, eq=False)
class Rows:
    """Sequences of a plan in the order of a file. sequence: int64 (R,), which one each row holds; one may be in several
    rows (epochs that are stored as copies). epochs: int64 (E, R), the rows that each epoch reads, in its order; of a
    format that has no index one epoch, of all rows."""

    plan: PackedSequences
    sequence: np.ndarray
    epochs: np.ndarray
    stored: Tokens

    def __len__(self) -> int:
        """R."""
        return len(self.sequence)

    @property
    def length(self) -> int:
        """L."""
        return self.plan.sequence_length

    @property
    def runs(self) -> np.ndarray:
        """The run of the plan that each run of a row is, int64 (Q,)."""
        return self._entries[0]

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        return row_entries(self.plan.indptr, self.sequence)

    @property
    def indptr(self) -> np.ndarray:
        """Where the runs of each row begin, int64 (R + 1,)."""
        return self._entries[1]

    @cached_property
    def document(self) -> np.ndarray:
        """The item of the stream that each run is of, int64 (Q,)."""
        return self.plan.document[self.runs]

    @cached_property
    def start(self) -> np.ndarray:
        """The first token of its document that each run holds, int64 (Q,)."""
        return self.plan.start[self.runs]

    @cached_property
    def run_tokens(self) -> np.ndarray:
        """Tokens of each run, int64 (Q,)."""
        return self.plan.length[self.runs]

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens of each row, without padding, int64 (R,)."""
        return np.diff(np.concatenate([[0], np.cumsum(self.run_tokens)])[self.indptr])

    @cached_property
    def padded(self) -> bool:
        """Whether any row is shorter than L."""
        return bool((self.tokens < self.length).any())

    def shards(self, row_bytes: int, shard_bytes: int) -> list[tuple[int, int]]:
        """(first row, end) of files of about `shard_bytes`, one at least, of rows of so many bytes; a row at least."""
        step = max(1, shard_bytes // row_bytes)
        return [(first, min(first + step, len(self))) for first in range(0, max(len(self), 1), step)]

    @cached_property
    def text_tokens(self) -> np.ndarray:
        """Tokens of each run, all but an appended end-of-text token, int64 (Q,)."""
        left = self.stored.lengths[self.stored.view.document_row[self.document]] - self.start
        if min(left.min(initial=0), self.start.min(initial=0)) < 0:
            raise StoreError(
                "the plan of packed_sequences names tokens that documents have not; make it again"
            )
        return np.minimum(self.run_tokens, left)

    def stage(self, folder: OutputFolder, files: Iterable[_File]) -> None:
        """Stage files, each by its name, its rows (first, end) and what writes it; the rows of several are the same
        ones, or do not overlap.

        Raises:
            StoreError: see `OutputFolder.stage`; the plan or the stored ids do not fit.
        """
        files = list(files)
        if self._stored_bytes <= MEMORY_BYTES:
            self._stage_from_memory(folder, files)
        else:
            self._stage_through_files(folder, files)

    @property
    def _stored_bytes(self) -> int:
        return int(self.stored.begins[-1]) * self.stored.dtype.itemsize

    def _stage_from_memory(self, folder: OutputFolder, files: Sequence[_File]) -> None:
        rows = sum(end - first for _, (first, end), _ in files)
        with self.stored.progress("writing sequences", rows, "sequences") as advance:
            for name, span, write in files:
                folder.stage(name, partial(write, self._of_file(span, self._source, None, advance)))

    def _stage_through_files(self, folder: OutputFolder, files: Sequence[_File]) -> None:
        """Scatter the ids to files, and write the export's files from these; by workers where they are worth it."""
        stored, engine = self.stored, self._workers(folder, len(files))
        place = stored.scratch if engine is None else folder.path
        limits = self._limits({span for _, span, _ in files})
        groups, begins, source = self._scattering(limits)
        names = tuple(group.name for group in groups)
        try:
            to_files = partial(scatter, stored.files.listed(), place, stored.dtype)
            each = partial(engine.each, environment=KEEP_MEMORY) if engine else map
            with folder_at(place).explaining("", int(begins[:, -1].sum()), "what passes through it"):
                gathered = each(to_files, groups)
                for _ in counted(stored.progress, "gathering ids", gathered, len(groups), "groups"):
                    pass
            tasks = {}
            for name, span, write in files:
                low, high = np.searchsorted(limits, span)
                buckets = Scattered(place, names, limits[low : high + 1] - span[0], begins[:, low : high + 1])
                tasks[name] = write, self._of_file(span, source, buckets)
            if engine:
                folder.stage_each(engine, _write, tasks, progress=stored.progress, environment=KEEP_MEMORY)
            else:
                for name, task in counted(
                    stored.progress, "writing files", tasks.items(), len(tasks), "files"
                ):
                    folder.stage(name, partial(_write, task))
        finally:
            with suppress(StoreError), folder_at(place).explaining():
                folder_at(place).delete(names)

    def _workers(self, folder: OutputFolder, files: int) -> Engine | None:
        """The engine whose workers write so many files; None where this process does."""
        if self._stored_bytes < WORKERS_FROM_BYTES or files < 2 or not folder.by_workers:
            return None
        engine = self.stored.engine()
        return engine if engine.workers > 1 else None

    def gather(self) -> np.ndarray:
        """The ids of all rows in memory, (R, L); short rows are filled up."""
        blocks = self._of_file((0, len(self)), self._source, None).blocks()
        stored = self.stored
        return np.concatenate([block.padded(self.length, stored.padding, stored.dtype) for block in blocks])

    @cached_property
    def _source(self) -> np.ndarray:
        """Where in memory each run begins, int64 (Q,)."""
        row = self.stored.view.document_row[self.document]
        return self.stored.addresses[row] + self.start * self.stored.dtype.itemsize

    def _of_file(
        self,
        span: tuple[int, int],
        source: np.ndarray,
        scattered: Scattered | None,
        advance: Advance | None = None,
    ) -> FileRows:
        """The rows of a span; source: see `FileRows`, of all runs, int64 (Q,)."""
        first, end = span
        some, stored = slice(self.indptr[first], self.indptr[end]), self.stored
        return FileRows(
            length=self.length,
            indptr=self.indptr[first : end + 1] - self.indptr[first],
            tokens=self.tokens[first:end],
            record=stored.record(self.document[some]),
            start=self.start[some],
            run_tokens=self.run_tokens[some],
            text_tokens=self.text_tokens[some],
            source=source[some],
            scattered=scattered,
            dtype=stored.dtype,
            end_of_text=stored.end_of_text,
            padding=stored.padding,
            advance=advance,
        )

    def _limits(self, spans: Iterable[tuple[int, int]]) -> np.ndarray:
        """Where the buckets of files begin, and the last ends, int64 (buckets + 1,)."""
        step = max(1, MEMORY_BYTES // 8 // (self.length * self.stored.dtype.itemsize))
        return np.unique(np.concatenate([[*range(first, end, step), end] for first, end in spans]))

    def _scattering(self, limits: np.ndarray) -> Scattering:
        stored, view, size = self.stored, self.stored.view, self.stored.dtype.itemsize
        start, ends = offsets(view.documents), np.cumsum(stored.counts) * size
        group_of = (ends - 1) // max(1, MEMORY_BYTES // 8, int(ends[-1]) // MAX_BUCKETS)
        bucket = np.repeat(np.arange(len(limits) - 1), np.diff(self.indptr[limits]))
        row = view.document_row[self.document]
        by_row = np.argsort(row, kind="stable")
        source, taken = np.zeros(len(row), np.int64), np.zeros(len(limits) - 1, np.int64)
        groups, begins = [], []
        for low, high in pairwise([0, *(np.flatnonzero(np.diff(group_of)) + 1).tolist(), len(ends)]):
            some = by_row[slice(*np.searchsorted(row, start[[low, high]], sorter=by_row))]
            some = some[np.argsort(bucket[some], kind="stable")]
            tokens, of = self.text_tokens[some], bucket[some]
            in_buckets = np.bincount(of, tokens, len(taken)).astype(np.int64)
            begins.append(np.concatenate([[0], np.cumsum(in_buckets)]))
            # A bucket is the groups' shares laid end to end; `taken` is what earlier groups put there.
            source[some] = np.cumsum(tokens) - tokens + (taken - begins[-1][:-1])[of]
            taken += in_buckets
            inside = stored.begins[row[some]] - stored.begins[start[low]] + self.start[some]
            groups.append(
                Group(temporary_name(), view.documents[low:high], stored.counts[low:high], inside, tokens)
            )
        return Scattering(groups, np.array(begins) * size, source * size)


def _write(task: tuple[Write, FileRows], file: IO[bytes]) -> None:
    write, file_rows = task
    write(file_rows, file)
