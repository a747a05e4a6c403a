"""Rows of an export: packed sequences in the order of a file, their token ids gathered from the stored documents.

Letters: R rows, Q runs of tokens in them, S packed sequences, N accepted records, L tokens a sequence.
Ids that fit into MEMORY_BYTES are gathered from the store's files, mapped into memory; more go through files of
consecutive rows, each gathered in memory in turn. Memory: the ids or MEMORY_BYTES, a block, and some 40 bytes a run.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.rows import row_entries
from dagster_divorder.engine.ahead import ahead
from dagster_divorder.errors import StoreError
from dagster_divorder.store.local import TEMPORARY
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View, offsets

MEMORY_BYTES = 2 << 30
BLOCK_BYTES = 4 << 20
"""Of ids that a format is given at a time."""


@dataclass(frozen=True, eq=False)
class Block:
    """Rows [first, first + n): their ids (T,) laid end to end without padding, and the tokens of each, int64 (n,)."""

    first: int
    ids: np.ndarray
    tokens: np.ndarray

    def padded(self, length: int, padding: int, dtype: np.dtype) -> np.ndarray:
        """The ids (n, length), rows that are shorter filled up."""
        if (self.tokens == length).all():
            return self.ids.astype(dtype, copy=False).reshape(-1, length)
        rows = np.full((len(self.tokens), length), padding, dtype)
        rows[self.filled(length)] = self.ids
        return rows

    def filled(self, length: int) -> np.ndarray:
        """bool (n, length): where there is a token, and no padding."""
        found: np.ndarray = np.arange(length) < self.tokens[:, None]
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Tokens:
    """Stored token ids of the documents of a view.

    files: of token_counts. dtype: of the stored ids, uint16 or uint32. special: ids of the `eos`, `bos` and `pad`
    tokens that the tokenizer has. end_of_text: the id that follows the last token of a document where a run is longer
    than what the document has left; padding: the id that fills up rows. directory: of the tokenizer. names: what people
    know the records at some positions, int64 (n,), by. scratch: folder for files of a moment.
    """

    files: StageFiles
    view: View
    dtype: np.dtype
    special: Mapping[str, int]
    end_of_text: int
    padding: int
    vocabulary: int
    directory: Path
    names: Callable[[np.ndarray], list[str]]
    scratch: Path

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every document row of the view, int64."""
        return self.files.column(self.view.documents, "lengths")

    @cached_property
    def begins(self) -> np.ndarray:
        """Where each document row begins among all ids laid end to end, int64 (document rows + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def mapped(self) -> list[np.ndarray]:
        """The ids of the documents of each fragment, mapped from its file."""
        return list(self.ids_of(self.view.documents))

    def ids_of(self, fragments: Sequence[Fragment]) -> Iterator[np.ndarray]:
        """The ids of some fragments, mapped, and as many as their documents have: what copies them checks no address.

        Raises:
            StoreError: there are more or fewer, or they are of another dtype.
        """
        counts = np.diff(self.begins[offsets(self.view.documents)])
        expected = dict(zip(self.view.documents, counts.tolist(), strict=True))
        for fragment, ids in zip(fragments, self.files.mapped(fragments, "ids"), strict=True):
            if (ids.dtype, len(ids)) != (self.dtype, expected[fragment]):
                raise StoreError(
                    f"token_counts holds {len(ids):,} ids of {ids.dtype} for fragment {fragment.name}, expected "
                    f"{expected[fragment]:,} of {self.dtype}; delete {self.files.folder} in the store and run again"
                )
            yield ids

    @property
    def addresses(self) -> np.ndarray:
        """Where in memory `mapped` holds each document row's ids, int64 (document rows,)."""
        rows = [fragment.rows for fragment in self.view.documents]
        first = self.begins[offsets(self.view.documents)[:-1]]
        base = np.array([ids.ctypes.data for ids in self.mapped], np.int64) - first * self.dtype.itemsize
        return base.repeat(rows) + self.begins[:-1] * self.dtype.itemsize


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
        """The record that each run is of, as a position among the accepted ones, int64 (Q,)."""
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

    def blocks(self) -> Generator[Block, None, None]:
        """All rows in blocks, the next one gathered while the last one is used."""
        return ahead(self._blocks())

    def _blocks(self) -> Generator[Block, None, None]:
        size = self.stored.dtype.itemsize
        if int(self.stored.begins[-1]) * size <= MEMORY_BYTES:
            row = self.stored.view.document_row[self.document]
            yield from self._gather(0, len(self), self.stored.addresses[row] + self.start * size)
            return
        per_file = max(1, MEMORY_BYTES // 2 // (self.length * size))
        limits = [*range(0, len(self), per_file), len(self)]
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=self.stored.scratch) as folder:
            source = self._scatter(Path(folder), np.array(limits))
            held = np.empty(per_file * self.length, self.stored.dtype)
            for number, (first, end) in enumerate(pairwise(limits)):
                path = Path(folder) / str(number)
                with open(path, "rb") as file:
                    file.readinto(held.data)
                path.unlink()
                yield from self._gather(first, end, held.ctypes.data + source * size)

    def _gather(self, first: int, end: int, source: np.ndarray) -> Iterator[Block]:
        """Rows [first, end) in blocks; source: where in memory each run begins, int64 (Q,)."""
        from dagster_divorder.core.kernels.token_runs import copy_runs

        step = max(1, BLOCK_BYTES // (self.length * self.stored.dtype.itemsize))
        for begin in range(first, end, step):
            until = min(begin + step, end)
            some = slice(self.indptr[begin], self.indptr[until])
            length, tokens = self.run_tokens[some], self.tokens[begin:until]
            block = np.empty(int(tokens.sum()), self.stored.dtype)
            copy_runs(source[some], length, self.own[some], self.stored.end_of_text, block)
            yield Block(begin, block, tokens)

    @cached_property
    def own(self) -> np.ndarray:
        """Tokens of each run that the document has of its own: all but an end of text, int64 (Q,)."""
        left = self.stored.lengths[self.stored.view.document_row[self.document]] - self.start
        if min(left.min(initial=0), self.start.min(initial=0)) < 0:
            raise StoreError(
                "the plan of packed_sequences names tokens that documents have not; make it again"
            )
        return np.minimum(self.run_tokens, left)

    def _scatter(self, folder: Path, limits: np.ndarray) -> np.ndarray:
        """Write the runs' own tokens to a file for each stretch of rows between limits, in one pass over the stored
        fragments; where in its file each run lies, int64 (Q,)."""
        from dagster_divorder.core.kernels.token_runs import copy_runs

        bucket = (
            np.searchsorted(limits, np.repeat(np.arange(len(self)), np.diff(self.indptr)), side="right") - 1
        )
        written, source = np.zeros(len(limits) - 1, np.int64), np.zeros(len(self.document), np.int64)
        by_fragment = list(self.stored.view.by_fragment(self.document))
        begins, start = self.stored.begins, offsets(self.stored.view.documents)
        at_row = dict(zip(self.stored.view.documents, start.tolist(), strict=False))
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(open(folder / str(n), "wb")) for n in range(len(written))]
            held = self.stored.ids_of([fragment for fragment, _, _ in by_fragment])
            for (fragment, runs, rows), ids in zip(by_fragment, held, strict=True):
                first = at_row[fragment]
                inside = begins[first + rows] - begins[first] + self.start[runs]
                order = np.argsort(bucket[runs], kind="stable")
                numbers, cuts = np.unique(bucket[runs][order], return_index=True)
                for number, (low, high) in zip(
                    numbers.tolist(), pairwise([*cuts.tolist(), len(order)]), strict=True
                ):
                    some = order[low:high]
                    own = self.own[runs[some]]
                    block = np.empty(int(own.sum()), self.stored.dtype)
                    copy_runs(ids.ctypes.data + inside[some] * ids.itemsize, own, own, 0, block)
                    source[runs[some]] = written[number] + np.cumsum(own) - own
                    written[number] += len(block)
                    files[number].write(block.data)
        return source
