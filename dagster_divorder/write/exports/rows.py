"""Rows of an export: packed sequences in file order, with token ids of the stored documents; and what a format is.

An export is a folder of files. The tokenizer's files and `manifest.json`, written last, lie in a folder beside it
(docs/exports.md). Most formats name their files `train...`, so `datasets.load_dataset` finds them. Names of row files
carry the export's `tag`, so a new export does not change row files that a trainer reads.

Letters: R rows, Q runs of tokens in them, M items of the stream, E epochs, L tokens a sequence; n rows of a file or
block, q runs and T tokens in them.
Up to MAPPED_BYTES of ids are copied from the store's memory-mapped files; more ids pass through temporary files
(write/permute.py).
Memory: the ids, or one bucket; a block; some 60 bytes a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import IO, Any, Literal

import numpy as np
import xxhash

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.spans import Spans
from dagster_divorder.corpus.stored import Records
from dagster_divorder.engine.base import Engine
from dagster_divorder.engine.progress import Progress, Silent
from dagster_divorder.errors import StoreError
from dagster_divorder.readers.files import padded_rows
from dagster_divorder.store.manifests import EXPORT_VERSION
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View, offsets
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.permute import Permutation, Shard, permute, stage_extended

MAPPED_BYTES = 1 << 30
"""Bytes of stored ids that an export maps at once."""

WORKERS_FROM_BYTES = 4 << 30
"""Bytes of ids from which workers write the files."""
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


@dataclass(frozen=True, eq=False, kw_only=True)
class FileRows:
    """The rows of one file, picklable, without their ids. runs: of the records' positions among the accepted ones.
    dtype: the ids' dtype. padding: see `Tokens`. trained: as in `Rows`, for these rows."""

    runs: PackedSequences
    dtype: np.dtype
    padding: int
    trained: Spans | None = None

    def __len__(self) -> int:
        """n."""
        return len(self.runs)

    @property
    def length(self) -> int:
        """L."""
        return self.runs.sequence_length

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens of each row, without padding, int64 (n,)."""
        return self.runs.tokens

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


@dataclass(frozen=True, eq=False, kw_only=True)
class Tokens:
    """Stored token ids of the training stream.

    files: the files of token_counts. corpus: the records of `view`. records: the position of each item's record, int64
    (M,) rising, equal for repeats of a record. dtype: the stored ids' dtype, uint16
    or uint32. special: ids of the tokenizer's `eos`, `bos` and `pad` tokens. end_of_text: the id after a document's
    last token, if a run is longer than the rest of the document. padding: the id that fills up rows. engine: opens
    the engine. trained: spans of trained tokens among the concatenated ids of all records, each within one; None if
    every token is trained on.
    """

    files: StageFiles
    view: View
    corpus: Records
    records: np.ndarray
    dtype: np.dtype
    special: Mapping[str, int]
    end_of_text: int
    padding: int
    vocabulary: int
    engine: Callable[[], Engine]
    progress: Progress = field(default_factory=Silent)
    trained: Spans | None = None

    @cached_property
    def document_ids(self) -> np.ndarray:
        """Hashes of the texts of all records, uint64 (N, 2)."""
        return self.corpus.fragments.column(self.view.fragments, "text")

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each record, int64 (N,)."""
        return self.files.column(self.view.fragments, "lengths")

    @cached_property
    def begins(self) -> np.ndarray:
        """The first id of each record among all concatenated ids, and the end, int64 (N + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def trained_to_end(self) -> Spans | None:
        """`trained`, for records that end with an end-of-text token, trained on if the token before it is."""
        if self.trained is None:
            return None
        row = np.searchsorted(self.begins, self.trained.first, side="right") - 1
        last = self.trained.last + row
        return Spans(self.trained.first + row, last + (self.trained.last == self.begins[row + 1]))

    def ids(self) -> tuple[list[Callable[[], np.ndarray]], np.ndarray]:
        """A function per fragment that maps its ids; the first id of each, and the end, int64 (fragments + 1,)."""
        files, start = self.files.listed(), self.begins[offsets(self.view.fragments)]
        return [
            partial(_mapped_ids, files, fragment, count, self.dtype)
            for fragment, count in zip(self.view.fragments, np.diff(start).tolist(), strict=True)
        ], start


def _mapped_ids(files: StageFiles, fragment: Fragment, count: int, dtype: np.dtype) -> np.ndarray:
    """The ids of a fragment, (count,), mapped from its file."""
    (ids,) = files.mapped([fragment], "ids")
    if (ids.dtype, len(ids)) != (dtype, count):
        raise StoreError(
            f"token_counts holds {len(ids):,} ids of {ids.dtype} for fragment {fragment.name}, expected {count:,} of "
            f"{dtype}; delete {files.folder} in the store and run again"
        )
    return ids


@dataclass(frozen=True, eq=False)
class Rows:
    """Sequences of a plan in file order.

    sequence: the sequence of each row, int64 (R,); epochs stored as copies repeat sequences. epochs: each epoch's rows
    in reading order, int64 (E, R). A format without an index has one epoch, with all rows.
    """

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

    @cached_property
    def runs(self) -> PackedSequences:
        """The rows' own runs of the stream's items."""
        return self.plan.take(self.sequence)

    @cached_property
    def record(self) -> np.ndarray:
        """Each run's record, int (Q,)."""
        return self.stored.records[self.runs.document]

    @property
    def _first_id(self) -> np.ndarray:
        """Each run's first id among all stored ids, int64 (Q,)."""
        return self.stored.begins[self.record] + self.runs.start

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens of each row, without padding, int64 (R,)."""
        return self.runs.tokens

    @cached_property
    def trained(self) -> Spans | None:
        """Spans of trained places, counted as row x L + place in the row; None if every token is trained on."""
        spans = self.stored.trained_to_end
        if spans is None:
            return None
        length, indptr = self.runs.length, self.runs.indptr
        run, first, last = spans.cut(self._first_id + self.record, length)
        before = np.cumsum(length) - length
        row = np.arange(len(self)).repeat(np.diff(indptr))
        place = (row * self.length + before - before[indptr[row]])[run]
        return Spans(place + first, place + last)

    @cached_property
    def padded(self) -> bool:
        """Whether any row is shorter than L."""
        return bool((self.tokens < self.length).any())

    def shards(self, row_bytes: int, shard_bytes: int) -> list[tuple[int, int]]:
        """(first row, end) of each file of about `shard_bytes`; one empty file without rows."""
        step = max(1, shard_bytes // row_bytes)
        return [(first, min(first + step, len(self))) for first in range(0, max(len(self), 1), step)]

    @cached_property
    def text_tokens(self) -> np.ndarray:
        """Tokens of each run without an appended end-of-text token, int64 (Q,)."""
        remaining = self.stored.lengths[self.record] - self.runs.start
        if min(remaining.min(initial=0), self.runs.start.min(initial=0)) < 0:
            raise StoreError(
                "the plan of packed_sequences names tokens that its documents do not have; make packed_sequences again"
            )
        return np.minimum(self.runs.length, remaining)

    def stage(self, folder: OutputFolder, files: Mapping[str, tuple[int, int]], write: WriteRows) -> None:
        """Stage consecutive files: the rows (first, end) of each.

        Raises:
            StoreError: see `OutputFolder.stage`; the plan does not fit the stored ids.
        """
        stage_extended(
            folder,
            {name: Shard(*span, write) for name, span in files.items()},
            partial(self._stage, folder),
            content=self._content,
            note=self.stored.progress.note,
        )

    def _stage(self, folder: OutputFolder, files: Mapping[str, Shard]) -> None:
        stored, indptr, shards = self.stored, self.runs.indptr, {}
        begin = int(indptr[min(file.first for file in files.values())])
        for name, (first, end, write) in files.items():
            low, high = (indptr[[first, end]] - begin).tolist()
            shards[name] = Shard(low, high, partial(_write, write, self.of_file(first, end)))
        step = block_rows(self.length, stored.dtype)
        blocks = [[*range(file.first, file.end, step), file.end] for file in files.values()]
        breaks = distinct_values(indptr[np.concatenate(blocks)] - begin)
        permute(
            self._permutation(slice(begin, None), breaks),
            shards,
            folder,
            through_files=int(stored.begins[-1]) * stored.dtype.itemsize > MAPPED_BYTES,
            engine=stored.engine,
            workers_from=WORKERS_FROM_BYTES,
            progress=stored.progress,
            unit="runs of tokens",
        )

    def _permutation(self, runs: slice, breaks: np.ndarray | None = None) -> Permutation:
        """The ids of some runs, in row order."""
        stored, (contents, start) = self.stored, self.stored.ids()
        return Permutation(
            contents=contents,
            start=start,
            dtype=stored.dtype,
            first=self._first_id[runs],
            sizes=self.text_tokens[runs],
            lengths=self.runs.length[runs],
            filler=stored.end_of_text,
            breaks=breaks,
        )

    def gather(self) -> np.ndarray:
        """The ids of all rows, (R, L), in memory; `padding` fills up short rows."""
        ids = self._permutation(slice(None)).read().take(0, len(self.record))
        return padded_rows(ids, self.tokens, self.length, self.stored.padding)

    def _content(self, file: Shard) -> str:
        """A hash of everything that decides a file's bytes."""
        stored, (first, end, write), file_rows = self.stored, file, self.of_file(file.first, file.end)
        written = write.func if isinstance(write, partial) else write
        options = sorted((write.keywords if isinstance(write, partial) else {}).items())
        about = [EXPORT_VERSION, written.__module__, written.__qualname__, options, stored.files.key]
        about += [file_rows.length, file_rows.dtype, file_rows.padding, stored.end_of_text]
        hashed = xxhash.xxh3_128(repr(about).encode())
        spans = [] if file_rows.trained is None else [file_rows.trained.first, file_rows.trained.last]
        runs, of_file = file_rows.runs, slice(*self.runs.indptr[[first, end]])
        texts = stored.document_ids.take(runs.document, axis=0)
        for array in (runs.indptr, texts, runs.start, runs.length, self.text_tokens[of_file], *spans):
            hashed.update(np.ascontiguousarray(array).data)
        return hashed.hexdigest()

    def of_file(self, first: int, end: int) -> FileRows:
        """Rows [first, end)."""
        runs = self.runs.part(first, end)
        return FileRows(
            runs=replace(runs, document=self.stored.records[runs.document]),
            dtype=self.stored.dtype,
            padding=self.stored.padding,
            trained=self.trained and self.trained.shifted(first * self.length, end * self.length),
        )


def _write(write: WriteRows, file_rows: FileRows, parts: Iterator[np.ndarray], file: IO[bytes]) -> None:
    write(file_rows, file_rows.blocks(parts), file)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an export's files are written. tag: 8 hex digits of the export's key, in file names. shard_bytes: approximate
    file size. batch: sequences in a global batch. labels: whether `parquet` has labels."""

    tag: str
    shard_bytes: int
    batch: int = 1
    labels: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Format:
    """One format.

    write: stages the row files in a folder; returns the format's manifest entries, such as the ids' `dtype`.
    epochs: `copies` stores later epochs as further rows; `index` stores them as row numbers, in `Rows.epochs`.
    contiguous_ranks: trainers give each rank a contiguous part of the export. `exports.world_size` then lays out the
        rows by `trainers.rows_for_contiguous_ranks`.
    masks: the files mark trained tokens.
    """

    name: str
    write: Callable[[Rows, OutputFolder, Options], Mapping[str, Any]]
    names: str = r"train.*"
    """A regular expression that matches the format's file names."""
    epochs: Literal["copies", "index"] = "copies"
    contiguous_ranks: bool = False
    masks: bool = False
    check: Callable[[Rows], object] = lambda rows: None
    """Raises InputError for rows that the format cannot hold; called before any writing."""


def fits_uint16(rows: Rows) -> bool:
    """Whether all ids, including padding, fit two bytes."""
    return max(rows.stored.vocabulary, rows.stored.padding + 1) <= 1 << 16
