"""What a file of an export holds, and ids that lie in files of their own until it is written.

Letters: n rows, q runs of tokens in them, T tokens, L tokens a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import IO

import numpy as np

from dagster_divorder.engine.ahead import ahead
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import StoreError
from dagster_divorder.settings.places import Place
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment
from dagster_divorder.write.permute import shard_limits

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
        return np.arange(length) < self.tokens[:, None]


@dataclass(frozen=True, slots=True)
class Scattered:
    """Ids in files of a folder: bucket b holds rows [limits[b], limits[b + 1]) of a `FileRows`, and is what lies
    between begins[f, b] and begins[f, b + 1], in bytes, of each file f, laid end to end."""

    place: Place
    files: tuple[str, ...]
    limits: np.ndarray
    begins: np.ndarray

    def buckets(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """(first row, end, bytes) of each bucket."""
        folder = folder_at(self.place)
        with ExitStack() as opened:
            files = [opened.enter_context(folder.open(name)) for name in self.files]
            for bucket, (first, end) in enumerate(pairwise(self.limits.tolist())):
                begins, ends = self.begins[:, bucket], self.begins[:, bucket + 1]
                at = [0, *np.cumsum(ends - begins).tolist()]
                held = np.empty(at[-1], np.uint8)
                for file, begin, (low, high) in zip(files, begins.tolist(), pairwise(at), strict=True):
                    file.seek(begin)
                    while low < high:
                        low += file.readinto(held[low:high].data)  # type: ignore[attr-defined]
                yield first, end, held


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class FileRows:
    """The rows of one file, picklable, with all that a worker needs to write it.

    indptr, int64 (n + 1,): where the runs of each row begin; tokens, int64 (n,), of each row, without padding. Of each
    run, int64 (q,): the position of its record among the accepted ones, and its first token in that; its tokens, and
    text_tokens, all but an appended end-of-text token; source, the byte at which they begin, of their bucket or, where
    nothing was `scattered`, of this process's memory. length: L. dtype: of the ids; end_of_text and padding: see
    `Tokens`. advance: in this process told of rows.
    """

    length: int
    indptr: np.ndarray
    tokens: np.ndarray
    record: np.ndarray
    start: np.ndarray
    run_tokens: np.ndarray
    text_tokens: np.ndarray
    source: np.ndarray
    scattered: Scattered | None
    dtype: np.dtype
    end_of_text: int
    padding: int
    advance: Advance | None = None

    def __len__(self) -> int:
        """n."""
        return len(self.tokens)

    def blocks(self) -> Generator[Block, None, None]:
        """The rows in blocks, the next one gathered while the last one is used."""
        return ahead(self._blocks())

    def _blocks(self) -> Generator[Block, None, None]:
        if self.scattered is None:
            yield from self._gather(0, len(self), 0)
            return
        for first, end, held in self.scattered.buckets():
            yield from self._gather(first, end, held.ctypes.data)

    def _gather(self, first: int, end: int, address: int) -> Iterator[Block]:
        """Rows [first, end) in blocks; address: of their bucket."""
        from dagster_divorder.core.kernels.token_runs import copy_runs

        step = max(1, BLOCK_BYTES // (self.length * self.dtype.itemsize))
        for begin in range(first, end, step):
            until = min(begin + step, end)
            some = slice(self.indptr[begin], self.indptr[until])
            tokens = self.tokens[begin:until]
            block = np.empty(int(tokens.sum()), self.dtype)
            copy_runs(
                address + self.source[some],
                self.run_tokens[some],
                self.text_tokens[some],
                self.end_of_text,
                block,
            )
            yield Block(begin, block, tokens)
            if self.advance:
                self.advance(len(tokens))


Write = Callable[[FileRows, IO[bytes]], object]
"""Writes the file of some rows; picklable."""


def mapped_ids(
    files: StageFiles, fragments: Sequence[Fragment], counts: Sequence[int], dtype: np.dtype
) -> Iterator[np.ndarray]:
    """The ids of some fragments, mapped, and as many as their documents have: what copies them checks no address.

    Raises:
        StoreError: there are more or fewer, or they are of another dtype.
    """
    for fragment, count, ids in zip(fragments, counts, files.mapped(fragments, "ids"), strict=True):
        if (ids.dtype, len(ids)) != (dtype, count):
            raise StoreError(
                f"token_counts holds {len(ids):,} ids of {ids.dtype} for fragment {fragment.name}, expected "
                f"{count:,} of {dtype}; delete {files.folder} in the store and run again"
            )
        yield ids


@dataclass(frozen=True, slots=True)
class Group:
    """Fragments of so many ids each, and the name of a file for the runs that they hold, in its order: of each the
    first token among the ids of all fragments laid end to end, and its tokens, int64 (q,)."""

    name: str
    fragments: Sequence[Fragment]
    counts: Sequence[int]
    inside: np.ndarray
    text_tokens: np.ndarray


def scatter(files: StageFiles, place: Place, dtype: np.dtype, group: Group) -> None:
    """Write the file of a group into a folder."""
    from dagster_divorder.core.kernels.token_runs import copy_runs

    size, tokens = dtype.itemsize, group.text_tokens
    mapped = list(mapped_ids(files, group.fragments, group.counts, dtype))
    first = np.cumsum([0, *group.counts[:-1]])
    base = np.array([ids.ctypes.data for ids in mapped], np.int64) - first * size
    source = base[np.searchsorted(first, group.inside, side="right") - 1] + group.inside * size
    with folder_at(place).create(group.name, group.name, lasting=False) as file:
        for low, high in pairwise([0, *shard_limits(tokens * size, BLOCK_BYTES)]):
            block = np.empty(int(tokens[low:high].sum()), dtype)
            copy_runs(source[low:high], tokens[low:high], tokens[low:high], 0, block)
            file.write(block.data)
