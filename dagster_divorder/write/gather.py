"""The final gather: stored records in output order, in one pass over the fragments.

In one process (`gather`), or in many (`scatter`): then each writes the rows of a group of arrays to a file of their own
order, and any of them reads its stretch of the output (`Scattered`) from all of these files.

Records are scattered from fragment order to output order. What fits in two `BUCKET_BYTES` is ordered in memory; a
larger output goes through at most `MAX_BUCKETS` files of consecutive output positions, each ordered in memory in turn.
One thread decompresses the next fragment, another is a slice ahead of the caller. Memory: twice the larger of
BUCKET_BYTES and output / MAX_BUCKETS, a fragment, and 24 bytes a record; in each of many processes as much, without the
24 bytes.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.engine.ahead import ahead
from dagster_divorder.engine.base import Engine
from dagster_divorder.engine.progress import Advance
from dagster_divorder.settings.places import Place
from dagster_divorder.store.arrays import compact, row_array
from dagster_divorder.store.base import TEMPORARY, Store, temporary_name
from dagster_divorder.store.folders import Folder, folder_at
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.view import View, offsets

BUCKET_BYTES = 128 << 20
SLICE_BYTES = 1 << 20
"""Small, so that the allocator has the memory of the last slice for the next one: pages that the system has to clear
first cost more than copying into them."""
MAX_BUCKETS = 512

Content = Callable[[], pa.Array]
"""Makes an array."""


def gather(
    store: Store, view: View, rows: np.ndarray, sizes: np.ndarray, scratch: Path, advance: Advance
) -> Generator[pa.Array, None, None]:
    """Record content in output order, in consecutive arrays.

    Args:
        rows: int (N,), output position -> row of the view's record fragments.
        sizes: int (N,), bytes of the record at each output position.
        scratch: folder for the bucket files, which are removed again.
        advance: told of the records read.
    """
    contents = ahead(content() for content in stored_records(store, view))
    return ahead(gather_rows(contents, offsets(view.records), rows, sizes, scratch, advance))


def gather_rows(
    contents: Iterator[pa.Array],
    start: np.ndarray,
    rows: np.ndarray,
    sizes: np.ndarray,
    scratch: Path,
    advance: Advance,
) -> Generator[pa.Array, None, None]:
    """Rows of arrays in another order, in consecutive arrays.

    Args:
        contents: the arrays, as if laid end to end; start, int64 (arrays + 1,): where each begins, and the end.
        rows: int64 (M,), output position -> row.
        sizes: int64 (M,), about how many bytes each takes.
        scratch, advance: see `gather`.
    """
    if fits_memory(sizes):
        yield from _in_order(_whole(contents, start, rows, advance), rows)
        return
    cuts = _cuts(sizes)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=scratch) as folder:
        files = [Path(folder) / str(bucket) for bucket in range(len(cuts) - 1)]
        writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        for positions, at, content in scattered_rows(contents, start, rows, advance):
            bucket = np.searchsorted(cuts, positions, side="right") - 1
            # Positions rise, so a bucket's are neighbours.
            numbers, first = np.unique(bucket, return_index=True)
            for number, (low, high) in zip(
                numbers.tolist(), pairwise([*first.tolist(), len(at)]), strict=True
            ):
                batch = pa.record_batch(
                    {
                        "position": row_array(positions[low:high]),
                        "content": content.take(row_array(at[low:high])),
                    }
                )
                if number not in writers:
                    writers[number] = pa.ipc.new_stream(str(files[number]), batch.schema)
                writers[number].write_batch(batch)
        for writer in writers.values():
            writer.close()
        for file in files:
            if file.exists():
                yield from _in_order(*_read_bucket(file))
                file.unlink()


def fits_memory(sizes: np.ndarray) -> bool:
    """Whether rows of these sizes, int, are ordered in memory: in what a bucket and the one after it take."""
    return bool(sizes.sum() <= 2 * BUCKET_BYTES)


def _cuts(sizes: np.ndarray) -> np.ndarray:
    """Where buckets begin, and the end, int64 (buckets + 1,): bucket b holds the output positions [cuts[b],
    cuts[b + 1]), of these sizes."""
    ends = np.cumsum(sizes, dtype=np.int64)
    buckets = int(min(MAX_BUCKETS, max(1, -(-int(ends[-1]) // BUCKET_BYTES)))) if len(ends) else 1
    cuts = np.searchsorted(ends, np.arange(1, buckets) * (ends[-1] / buckets)) if len(ends) else []
    return np.concatenate([[0], cuts, [len(sizes)]]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Scattered:
    """Rows that were scattered into files of a folder, each of equally many batches for every bucket; bucket b holds
    the output positions [cuts[b], cuts[b + 1])."""

    place: Place
    files: tuple[str, ...]
    cuts: np.ndarray

    def parts(self, first: int, end: int) -> Iterator[pa.Array]:
        """The content of output positions [first, end), in those of the arrays of `gather_rows` that they lie in."""
        folder = folder_at(self.place)
        with contextlib.ExitStack() as opened:
            sources = [opened.enter_context(_arrow_source(folder, name)) for name in self.files]
            readers = [pa.ipc.open_file(source) for source, _ in sources]
            for bucket, (low, high) in enumerate(pairwise(self.cuts.tolist())):
                if low < end and first < high:
                    batches = [batch for reader in readers for batch in self._bucket(reader, bucket)]
                    yield from _in_order(
                        *_ordered(pa.Table.from_batches(batches)), max(first - low, 0), end - low
                    )
                    for _, release in sources:
                        release()

    def _bucket(self, reader: pa.ipc.RecordBatchFileReader, bucket: int) -> Iterator[pa.RecordBatch]:
        each = reader.num_record_batches // (len(self.cuts) - 1)
        return (reader.get_batch(number) for number in range(bucket * each, (bucket + 1) * each))


@contextlib.contextmanager
def _arrow_source(folder: Folder, name: str) -> Iterator[tuple[Any, Callable[[], None]]]:
    """A file for Arrow, and what takes the pages that were read of it off this process's memory."""
    source = folder.source(name)
    if not isinstance(source, Path):
        with pa.PythonFile(folder.open(name), "r") as remote:
            yield remote, lambda: None
        return
    with source.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # They stay in the system's cache, and come back where they are looked at again.
    yield pa.BufferReader(mapped), lambda: mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True)
class _Group:
    """What makes some arrays, and the name of a file for their rows. start: where each array begins when they are laid
    end to end, and the end; positions: int64 (n,), where in the output each of rows, int64 (n,), comes."""

    name: str
    contents: Sequence[Content]
    start: np.ndarray
    positions: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True, slots=True)
class _Scatter:
    """Writes the rows of a group to its file; their number."""

    place: Place
    cuts: np.ndarray

    def __call__(self, group: _Group) -> int:
        held = [list[pa.RecordBatch]() for _ in self.cuts[1:]]
        with contextlib.closing(ahead(content() for content in group.contents)) as contents:
            for positions, at, content in scattered_rows(
                contents, group.start, group.rows, lambda count: None
            ):
                output = group.positions[positions]
                order = np.argsort(output)
                output, at = output[order], at[order]
                for batches, (low, high) in zip(
                    held, pairwise(np.searchsorted(output, self.cuts).tolist()), strict=True
                ):
                    columns = [row_array(output[low:high]), content.take(row_array(at[low:high]))]
                    batches.append(pa.record_batch(columns, ["position", "content"]))
        with (
            folder_at(self.place).create(group.name, group.name, lasting=False) as file,
            pa.ipc.new_file(pa.PythonFile(file, "w"), held[0][0].schema) as writer,
        ):
            for batch in chain.from_iterable(held):
                writer.write_batch(batch)
        return len(group.rows)


def scatter(
    engine: Engine,
    contents: Sequence[Content],
    start: np.ndarray,
    rows: np.ndarray,
    sizes: np.ndarray,
    place: Place,
    advance: Advance,
    environment: Mapping[str, str],
) -> Scattered:
    """Rows of arrays in another order, for other processes, in files that do not have to last.

    Args:
        contents: what makes each array, picklable.
        start, rows, sizes: see `gather_rows`.
        place: folder for the files, which are temporary ones of it.
        advance: told of the rows read.
        environment: of the workers.
    """
    cuts = _cuts(sizes)
    by_row = np.argsort(rows, kind="stable")
    firsts = np.searchsorted(rows, start, sorter=by_row)
    # Groups are as large as buckets.
    ends = np.concatenate([[0], np.cumsum(sizes[by_row], dtype=np.int64)])[firsts[1:]]
    group_of = ends * (len(cuts) - 1) // (ends[-1] + 1)
    groups = []
    for low, high in pairwise([0, *(np.flatnonzero(np.diff(group_of)) + 1).tolist(), len(contents)]):
        some = by_row[firsts[low] : firsts[high]]
        if len(some):
            of = start[low : high + 1] - start[low]
            groups.append(_Group(temporary_name(), contents[low:high], of, some, rows[some] - start[low]))
    scattered = Scattered(place, tuple(group.name for group in groups), cuts)
    try:
        for records in engine.each(_Scatter(place, cuts), groups, environment=environment):
            advance(records)
    except BaseException:
        folder_at(place).delete(scattered.files)
        raise
    return scattered


def stored_records(store: Store, view: View) -> list[Content]:
    """What reads the records of each fragment."""
    return [partial(_read_array, store, fragment.file) for fragment in view.records]


def _read_array(store: Store, file: str) -> pa.Array:
    content = read_content(store, file)
    return content.chunk(0) if content.num_chunks == 1 else content.combine_chunks()


def _whole(contents: Iterator[pa.Array], start: np.ndarray, rows: np.ndarray, advance: Advance) -> pa.Array:
    """All arrays as one."""
    wanted, _ = np.histogram(rows, start)
    chunks = []
    for content, count in zip(contents, wanted.tolist(), strict=True):
        chunks.append(content)
        advance(count)
    return pa.concat_arrays(chunks)


def scattered_rows(
    contents: Iterator[pa.Array], start: np.ndarray, rows: np.ndarray, advance: Advance
) -> Iterator[tuple[np.ndarray, np.ndarray, pa.Array]]:
    """Array by array: output positions, rising; where in it they find theirs; the array. Parameters: see
    `gather_rows`."""
    # Positions by row, in runs of one fragment.
    by_row = np.argsort(rows, kind="stable")
    ends = np.searchsorted(rows, compact(start), sorter=by_row)
    for at, content in enumerate(contents):
        positions = np.sort(by_row[ends[at] : ends[at + 1]])
        if len(positions):
            yield positions, rows[positions] - start[at], content
        advance(len(positions))


def _read_bucket(file: Path) -> tuple[pa.Array, np.ndarray]:
    """Content of a bucket file, and its rows by rising position."""
    with pa.memory_map(str(file)) as source:
        return _ordered(pa.ipc.open_stream(source).read_all())


def _ordered(table: pa.Table) -> tuple[pa.Array, np.ndarray]:
    """Content of a bucket, and its rows by rising position."""
    content = table.column("content").combine_chunks()
    return content, np.argsort(table.column("position").to_numpy(), kind="stable")


def _in_order(
    content: pa.Array, rows: np.ndarray, first: int = 0, end: int | None = None
) -> Iterator[pa.Array]:
    """`content[rows]` in slices of some SLICE_BYTES, so that it is not in memory twice; of these what lies in
    [first, end)."""
    step = max(1, SLICE_BYTES * len(content) // max(1, content.nbytes))
    end = len(rows) if end is None else min(end, len(rows))
    for low in range(first // step * step, end, step):
        yield content.take(row_array(rows[max(low, first) : min(low + step, end)]))
