"""Rows of an export: packed sequences in file order, with token ids of the stored documents.

Letters: R rows, Q runs of tokens in them, M items of the stream, E epochs, L tokens a sequence.
Up to MAPPED_BYTES of ids are copied from the store's memory-mapped files; more ids pass through temporary files
(write/permute.py).
Memory: the ids, or one bucket; a block; some 60 bytes a run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from dagster_divorder.core.arrow import binary_array
from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.rows import row_entries
from dagster_divorder.core.spans import Spans
from dagster_divorder.corpus.stored import Records
from dagster_divorder.engine.ahead import ahead
from dagster_divorder.engine.base import Engine
from dagster_divorder.engine.memory import MAPPED_BYTES
from dagster_divorder.engine.progress import Advance, Progress, Silent
from dagster_divorder.errors import StoreError
from dagster_divorder.store.arrays import compact
from dagster_divorder.store.manifests import EXPORT_VERSION
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import View, offsets
from dagster_divorder.write.curated import AlteredFileError, Beginning, OutputFolder
from dagster_divorder.write.exports.file_rows import (
    FileRows,
    IdBlock,
    WriteRows,
    block_rows,
    mapped_ids,
    stretches,
    trained_rows,
)
from dagster_divorder.write.permute import Permutation, Shard, permute

WORKERS_FROM_BYTES = 4 << 30
"""Bytes of ids from which workers write the files."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Tokens:
    """Stored token ids of the training stream.

    files: the files of token_counts. corpus: the records of `view`. records: the position of each item's record, int64
    (M,) rising, equal for repeats of a record; None if the items are the records. dtype: the stored ids' dtype, uint16
    or uint32. special: ids of the tokenizer's `eos`, `bos` and `pad` tokens. end_of_text: the id after a document's last
    token, if a run is longer than the rest of the document. padding: the id that fills up rows. directory: the
    tokenizer's folder. scratch: folder for temporary files. engine: opens the engine. trained: spans of trained tokens
    among the concatenated ids of all records, each within one; None if every token is trained on.
    """

    files: StageFiles
    view: View
    corpus: Records
    records: np.ndarray | None
    dtype: np.dtype
    special: Mapping[str, int]
    end_of_text: int
    padding: int
    vocabulary: int
    directory: Path
    scratch: Path
    engine: Callable[[], Engine]
    progress: Progress = field(default_factory=Silent)
    trained: Spans | None = None

    def record(self, items: np.ndarray) -> np.ndarray:
        """The position of each item's record among the accepted ones, int64 (n,)."""
        return items if self.records is None else self.records[items]

    @cached_property
    def document_ids(self) -> np.ndarray:
        """Hashes of the texts of all records, uint64 (N, 2)."""
        return self.corpus.text_ids(self.view.fragments)

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
        """`trained`, for records that each end with an end-of-text token. That token is trained on if the token
        before it is."""
        if self.trained is None:
            return None
        row = np.searchsorted(self.begins, self.trained.first, side="right") - 1
        last = self.trained.last + row
        return Spans(self.trained.first + row, last + (self.trained.last == self.begins[row + 1]))

    @cached_property
    def ids(self) -> list[Callable[[], np.ndarray]]:
        """A function per fragment that maps the ids of its documents from its file."""
        files, counts = self.files.listed(), np.diff(self.begins[offsets(self.view.fragments)]).tolist()
        return [
            partial(mapped_ids, files, fragment, count, self.dtype)
            for fragment, count in zip(self.view.fragments, counts, strict=True)
        ]

    @cached_property
    def addresses(self) -> np.ndarray:
        """The memory address of each record's ids, int64 (N,). Maps all files."""
        rows = [fragment.rows for fragment in self.view.fragments]
        first = self.begins[offsets(self.view.fragments)[:-1]]
        base = np.array([ids.ctypes.data for ids in self.mapped], np.int64) - first * self.dtype.itemsize
        return base.repeat(rows) + self.begins[:-1] * self.dtype.itemsize

    @cached_property
    def mapped(self) -> list[np.ndarray]:
        """The ids of each fragment's documents, mapped from its file."""
        return [ids() for ids in self.ids]


_File: TypeAlias = tuple[tuple[int, int], WriteRows]
"""A file's rows (first, end), and the function that writes the file."""


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

    @property
    def runs(self) -> np.ndarray:
        """Each run's number in the plan, int64 (Q,)."""
        return self._entries[0]

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        return row_entries(self.plan.indptr, self.sequence)

    @property
    def indptr(self) -> np.ndarray:
        """The first run of each row, and the end, int64 (R + 1,)."""
        return self._entries[1]

    @cached_property
    def document(self) -> np.ndarray:
        """Each run's item in the stream, int64 (Q,)."""
        return self.plan.document[self.runs]

    @cached_property
    def start(self) -> np.ndarray:
        """Each run's first token in its document, int64 (Q,)."""
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
    def trained(self) -> Spans | None:
        """Spans of trained places, counted as row x L + place in the row; None if every token is trained on."""
        spans = self.stored.trained_to_end
        if spans is None:
            return None
        document = self.stored.record(self.document)
        run, first, last = spans.cut(self.stored.begins[document] + document + self.start, self.run_tokens)
        before = np.cumsum(self.run_tokens) - self.run_tokens
        row = np.arange(len(self)).repeat(np.diff(self.indptr))
        place = (row * self.length + before - before[self.indptr[row]])[run]
        return Spans(place + first, place + last)

    @cached_property
    def padded(self) -> bool:
        """Whether any row is shorter than L."""
        return bool((self.tokens < self.length).any())

    def shards(self, row_bytes: int, shard_bytes: int) -> list[tuple[int, int]]:
        """(first row, end) of each file of about `shard_bytes`, for rows of `row_bytes`. A file has at least one row.
        Without rows there is one empty file."""
        step = max(1, shard_bytes // row_bytes)
        return [(first, min(first + step, len(self))) for first in range(0, max(len(self), 1), step)]

    @cached_property
    def text_tokens(self) -> np.ndarray:
        """Tokens of each run without an appended end-of-text token, int64 (Q,).

        Raises:
            StoreError: a run begins outside its document.
        """
        remaining = self.stored.lengths[self.stored.record(self.document)] - self.start
        if min(remaining.min(initial=0), self.start.min(initial=0)) < 0:
            raise StoreError(
                "the plan of packed_sequences names tokens that its documents do not have; make packed_sequences again"
            )
        return np.minimum(self.run_tokens, remaining)

    def stage(
        self,
        folder: OutputFolder,
        files: Mapping[str, _File],
        beside: Mapping[str, _File] | None = None,
        sizes: np.ndarray | None = None,
    ) -> None:
        """Stage consecutive files, and files `beside` them, whose writers read no blocks. sizes: bytes of each row,
        int64 (R,), if the files are their rows end to end.

        If the folder extends a published output, unchanged files are taken over, and a file of rows end to end that
        goes on where a published one ends begins with a copy of it.

        Raises:
            StoreError: see `OutputFolder.stage`; the plan does not fit the stored ids.
        """
        beside, contents = beside or {}, dict[str, dict[str, Any]]()
        if folder.extends:
            contents = {name: {"content": self._content(*file)} for name, file in files.items()}
            contents |= {
                name: {"content": self._content(*file, by_place=True)} for name, file in beside.items()
            }
            # New rows come last, so all files before the first new file are unchanged.
            kept = {*takewhile(lambda name: folder.take_over(name, contents[name]["content"]), files)}
            kept |= {name for name in beside if folder.take_over(name, contents[name]["content"])}
            if kept:
                self.stored.progress.note(f"{len(kept):,} of {len(contents):,} files are unchanged")
            if sizes is not None:
                for name, file in files.items():
                    contents[name]["begins"] = self._begins(file, sizes)
            files, beside = (
                {name: file for name, file in each.items() if name not in kept} for each in (files, beside)
            )
        first = next(iter(files), "")
        behind = self._behind_published(folder, files[first]) if first and folder.extends else None
        try:
            self._stage(folder, {**files, **({first: behind} if behind else {})}, beside)
        except AlteredFileError as error:
            self.stored.progress.note(f"{error}: all of it is written again")
            self._stage(folder, files, beside)
        for name, content in contents.items():
            folder.entries[name] = {**folder.entries[name], **content}

    def _begins(self, file: _File, sizes: np.ndarray) -> dict[str, Any]:
        """What the manifest says of the rows of a file that stay if rows are added: their number, bytes and a hash of
        what decides these. These are all rows but a last one that is not full: more tokens may be packed into it."""
        (first, end), write = file
        end -= bool(end > first and self.tokens[end - 1] < self.length)
        return {
            "rows": end - first,
            "bytes": int(sizes[first:end].sum()),
            "content": self._content((first, end), write),
        }

    def _behind_published(self, folder: OutputFolder, file: _File) -> _File | None:
        """A file whose first rows are copied from a published file; None if no published file begins as it does."""
        (first, end), write = file
        for name, entry in folder.published.items():
            begins = entry.get("begins")
            if not begins or not 0 < begins["rows"] <= end - first:
                continue
            middle = first + begins["rows"]
            if begins["content"] == self._content((first, middle), write):
                beginning = Beginning(folder.path, name, begins["bytes"], entry)
                return (middle, end), partial(_write_behind, beginning, write)
        return None

    def _stage(self, folder: OutputFolder, files: Mapping[str, _File], beside: Mapping[str, _File]) -> None:
        stored, all_files = self.stored, {**files, **beside}
        if not files or int(stored.begins[-1]) * stored.dtype.itemsize <= MAPPED_BYTES:
            rows = sum(end - first for (first, end), _ in files.values())
            with stored.progress("writing sequences", rows, "sequences") as advance:
                for name, ((first, end), write) in all_files.items():
                    read = end if name in files else first
                    with closing(ahead(self._mapped_blocks(first, read, advance))) as blocks:
                        folder.stage(name, partial(write, self._of_file(first, end), blocks))
            return
        before = min(first for (first, _), _ in files.values())
        rest = replace(self, sequence=self.sequence[before:], epochs=self.epochs[:, before:])
        permutation, at = rest._permutation(
            [(first - before, end - before) for (first, end), _ in files.values()]
        )
        shards = {}
        for name, ((first, end), write) in all_files.items():
            positions = (0, 0) if name not in files else (int(at[first - before]), int(at[end - before]))
            shards[name] = Shard(*positions, partial(_write, write, self._of_file(first, end)))
        permute(
            permutation,
            shards,
            folder,
            engine=stored.engine,
            workers_from=WORKERS_FROM_BYTES,
            scratch=stored.scratch,
            progress=stored.progress,
            unit="runs of tokens",
        )

    def _content(self, span: tuple[int, int], write: WriteRows, *, by_place: bool = False) -> str:
        """A hash of everything that decides a file's bytes. by_place: the file holds positions of records."""
        stored, (first, end) = self.stored, span
        runs, file_rows = slice(self.indptr[first], self.indptr[end]), self._of_file(first, end)
        written = write.func if isinstance(write, partial) else write
        options = sorted((write.keywords if isinstance(write, partial) else {}).items())
        about = [EXPORT_VERSION, written.__module__, written.__qualname__, options, stored.files.key]
        about += [file_rows.length, file_rows.dtype, file_rows.padding, stored.end_of_text]
        hashed = xxhash.xxh3_128(repr(about).encode())
        spans = [] if file_rows.trained is None else [file_rows.trained.first, file_rows.trained.last]
        for array in (
            file_rows.indptr,
            stored.document_ids.take(stored.record(self.document[runs]), axis=0),
            file_rows.start,
            file_rows.run_tokens,
            self.text_tokens[runs],
            *spans,
            *([file_rows.record] if by_place else []),
        ):
            hashed.update(np.ascontiguousarray(array).data)
        return hashed.hexdigest()

    def gather(self) -> np.ndarray:
        """The ids of all rows, (R, L), in memory; `padding` fills up short rows."""
        stored, blocks = self.stored, self._mapped_blocks(0, len(self), lambda rows: None)
        return np.concatenate([block.padded(self.length, stored.padding, stored.dtype) for block in blocks])

    @cached_property
    def _source(self) -> np.ndarray:
        """The memory address of each run, int64 (Q,)."""
        row = self.stored.record(self.document)
        return self.stored.addresses[row] + self.start * self.stored.dtype.itemsize

    def _mapped_blocks(self, first: int, end: int, advance: Advance) -> Generator[IdBlock, None, None]:
        """Rows [first, end) in blocks, copied from the mapped files."""
        from dagster_divorder.core.kernels.token_runs import copy_runs

        step = block_rows(self.length, self.stored.dtype)
        for begin in range(first, end, step):
            until = min(begin + step, end)
            runs = slice(self.indptr[begin], self.indptr[until])
            ids = np.empty(int(self.tokens[begin:until].sum()), self.stored.dtype)
            copy_runs(
                self._source[runs],
                self.run_tokens[runs],
                self.text_tokens[runs],
                self.stored.end_of_text,
                ids,
            )
            yield IdBlock(
                begin - first,
                ids,
                self.tokens[begin:until],
                trained_rows(self.trained, begin, until, self.length),
            )
            advance(until - begin)

    def _of_file(self, first: int, end: int) -> FileRows:
        """Rows [first, end)."""
        runs = slice(self.indptr[first], self.indptr[end])
        return FileRows(
            length=self.length,
            indptr=self.indptr[first : end + 1] - self.indptr[first],
            tokens=self.tokens[first:end],
            record=self.stored.record(self.document[runs]),
            start=self.start[runs],
            run_tokens=self.run_tokens[runs],
            dtype=self.stored.dtype,
            padding=self.stored.padding,
            trained=self.trained and self.trained.shifted(first * self.length, end * self.length),
        )

    def _permutation(self, spans: Sequence[tuple[int, int]]) -> tuple[Permutation, np.ndarray]:
        """Returns the stretches of stored ids in row order, and the first stretch of each row, int64 (R + 1,).

        An *edge* is a position among all stored ids where a run or a fragment begins or ends. A stretch lies between
        two neighbouring edges. A run is one stretch, or several if another copy of its document is cut differently. The
        last stretch is the end-of-text token.
        """
        stored, view = self.stored, self.stored.view
        first = stored.begins[stored.record(self.document)] + self.start
        end, fragments = first + self.text_tokens, stored.begins[offsets(view.fragments)]
        edges = distinct_values(np.concatenate([first, end, fragments]))
        # A search for rising positions takes a third of the time.
        rising = np.argsort(first)
        low = np.empty(len(first), np.int64)
        low[rising] = np.searchsorted(edges, first[rising])
        high = low + (first < end)
        cut = edges[high] < end
        high[cut] = np.searchsorted(edges, end[cut])
        start, appended = np.searchsorted(edges, fragments), len(edges) - 1
        widths = high - low + self.run_tokens - self.text_tokens
        begins = np.concatenate([[0], np.cumsum(widths)])
        rows = (low - begins[:-1]).repeat(widths)
        rows += np.arange(len(rows))
        rows[rows >= high.repeat(widths)] = appended
        at, step = begins[self.indptr], block_rows(self.length, stored.dtype)
        contents = [
            partial(stretches, ids, edges[begin : until + 1])
            for ids, (begin, until) in zip(stored.ids, pairwise(start), strict=True)
        ]
        end_of_text = np.array([stored.end_of_text], stored.dtype).tobytes()
        permutation = Permutation(
            contents=[*contents, partial(binary_array, [end_of_text])],
            start=np.append(start, appended + 1),
            rows=compact(rows),
            sizes=compact(np.append(np.diff(edges), 1) * stored.dtype.itemsize)[rows],
            breaks=distinct_values(np.concatenate([at[[*range(*span, step), span[1]]] for span in spans])),
            through_files=True,
        )
        return permutation, at


def _write_behind(
    beginning: Beginning, write: WriteRows, file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes]
) -> None:
    """Write a file that begins as a published one does, then rows.

    Raises:
        AlteredFileError: see `Beginning.copy`.
    """
    beginning.copy(file)
    write(file_rows, blocks, file)


def _write(write: WriteRows, file_rows: FileRows, parts: Iterator[pa.Array], file: IO[bytes]) -> None:
    write(file_rows, file_rows.blocks(parts), file)
