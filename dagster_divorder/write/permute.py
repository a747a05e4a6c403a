"""Permutes rows of many arrays into files. Writes the curated output, `text` exports and large exports.

    in memory       arrays --take--> output files
    through files   arrays --take--> a file a group of arrays, bucket by bucket --take--> output files
    in place        arrays --write--> output files (write/in_place.py: long lines)

A *bucket* is a range of output positions. One bucket at a time is in memory, while its output files are written. If
workers pay off, each group and each output file is a call of the engine.

`take` copies the values of large_binary arrays (lines, runs of token ids) once. Until then Arrow's views stand for the
values, 16 bytes each. Structs (rows of Parquet) are concatenated first.
Guarantee: the same bytes for any number of workers.
Memory: MEMORY_BYTES or a bucket, structs twice; two arrays; 24 bytes a row.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import binary_array
from dagster_divorder.engine.ahead import ahead
from dagster_divorder.engine.base import Engine
from dagster_divorder.engine.local import KEEP_MEMORY
from dagster_divorder.engine.progress import Advance, Progress
from dagster_divorder.errors import StoreError
from dagster_divorder.store.arrays import compact, row_array
from dagster_divorder.store.folder import LocalFolder, temporary_name
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.in_place import can_stage_in_place, stage_in_place

MEMORY_BYTES = 256 << 20
"""Maximum bytes of rows that are ordered in memory."""
BUCKET_BYTES = 128 << 20
SLICE_BYTES = 1 << 20
"""Small, so that each slice reuses the last slice's memory. The system clears new pages, which costs more than the
copy."""
MAX_BUCKETS = 512
WORKERS_FROM_CORES = 4
"""With fewer workers, one process writes lines in place if it can. It uses a core and a half, and less memory."""
VIEWED_BYTES = 1 << 30
"""Maximum bytes of values in one buffer: offsets in Arrow's views end at 2 GiB."""

ReadArray = Callable[[], pa.Array]
"""Returns an array: large_binary without nulls, or Parquet rows as a struct. Picklable."""
WriteArrays = Callable[[Iterator[pa.Array], IO[bytes]], object]
"""Writes a file from consecutive arrays of its rows. Picklable."""


class Shard(NamedTuple):
    """A file: its output positions [first, end), and the function that writes it."""

    first: int
    end: int
    write: WriteArrays


@dataclass(frozen=True, eq=False, kw_only=True)
class Permutation:
    """Rows of arrays in the order of the output.

    contents: functions that return the arrays. Rows are numbered over all arrays. start: the first row of each array,
        and the end, int64 (arrays + 1,).
    rows: the row at each output position, int (M,).
    sizes: approximate bytes at each output position, int (M,). exact: rows are lines of exactly these sizes.
    terminator: bytes after each large_binary value.
    breaks: output positions where slices end, int64 rising from 0 to M; None: slices of some SLICE_BYTES.
    through_files: whether rows pass through temporary files (see `passes_files`).
    """

    contents: Sequence[ReadArray]
    start: np.ndarray
    rows: np.ndarray
    sizes: np.ndarray
    exact: bool = False
    terminator: bytes = b""
    breaks: np.ndarray | None = None
    through_files: bool

    def cuts(self) -> np.ndarray:
        """The first position of each bucket, and the end, int64 (buckets + 1,)."""
        ends = np.cumsum(self.sizes, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        buckets = min(MAX_BUCKETS, max(1, -(-total // BUCKET_BYTES)))
        cuts = np.searchsorted(ends, np.arange(1, buckets) * (total / buckets))
        if self.breaks is not None:
            cuts = self.breaks[np.searchsorted(self.breaks, cuts)]
        # A row larger than a bucket gets its own bucket.
        return np.unique(np.concatenate([[0], cuts, [len(ends)]])).astype(np.int64)

    def groups(self, cuts: np.ndarray) -> Iterator[_Group]:
        """Groups of consecutive arrays; the rows of a group take about a quarter of a bucket."""
        by_row, firsts = _sort_by_row(self.rows, self.start)
        ends = np.concatenate([[0], np.cumsum(self.sizes[by_row], dtype=np.int64)])[firsts[1:]]
        group_of = ends * min(MAX_BUCKETS, 4 * (len(cuts) - 1)) // (ends[-1] + 1)
        limits = [0, *(np.flatnonzero(np.diff(group_of)) + 1).tolist(), len(self.contents)]
        for low, high in pairwise(limits):
            positions = np.sort(by_row[firsts[low] : firsts[high]])
            if len(positions):
                start = self.start[low : high + 1] - self.start[low]
                rows = self.rows[positions] - self.start[low]
                yield _Group(temporary_name(), self.contents[low:high], start, positions, rows)

    def in_memory(self) -> _Taken:
        """Reads every array with a row of the output."""
        sizes, array = np.diff(self.start), np.searchsorted(self.start, self.rows, side="right") - 1
        used = np.bincount(array, minlength=len(sizes)) > 0
        skipped = np.cumsum(np.where(used, 0, sizes))
        rows = self.rows if used.all() else self.rows - skipped[array]
        wanted = (content for content, each in zip(self.contents, used.tolist(), strict=True) if each)
        with contextlib.closing(ahead(content() for content in wanted)) as contents:
            values = _values(list(contents), self.terminator)
        return _Taken(np.array([0, len(rows)]), self.breaks, lambda bucket: (values, rows))


def permute(
    permutation: Permutation,
    shards: Mapping[str, Shard],
    output: OutputFolder,
    *,
    engine: Callable[[], Engine],
    workers_from: int,
    scratch: Path,
    progress: Progress,
    unit: str,
) -> None:
    """Stage files of permuted rows.

    Args:
        shards: consecutive files, by name.
        engine: opens the engine; called for several files of `workers_from` bytes or more in all.
        scratch: local folder for temporary files, used without workers.
        unit: plural name of rows, for progress.

    Raises:
        StoreError: see `OutputFolder.stage`.
    """
    size, workers = int(permutation.sizes.sum()), None
    if len(shards) > 1 and size >= workers_from and isinstance(output.path, Path):
        workers = opened if (opened := engine()).workers > 1 else None
    in_place = permutation.exact and can_stage_in_place(permutation.sizes)
    if in_place and not (workers and workers.workers >= WORKERS_FROM_CORES):
        with (
            progress(f"writing {unit}", len(permutation.rows), unit) as advance,
            contextlib.closing(
                rows_by_array(permutation.contents, permutation.start, permutation.rows)
            ) as arrays,
        ):
            firsts = {name: shard.first for name, shard in shards.items()}
            stage_in_place(output, arrays, permutation.sizes, firsts, advance)
        return
    if not permutation.through_files:
        _stage_here(output, permutation.in_memory(), shards, progress, unit)
        return
    folder, cuts = output.here if workers else LocalFolder(scratch), permutation.cuts()
    groups = list(permutation.groups(cuts))
    names = [group.name for group in groups]
    begins: list[np.ndarray] = []
    try:
        with (
            folder.explaining("", size, "what passes through it"),
            progress(f"gathering {unit}", len(permutation.rows), unit) as advance,
        ):
            calls = partial(workers.each, environment=KEEP_MEMORY) if workers else map
            for group, written in zip(groups, calls(partial(_scatter, folder, cuts), groups), strict=True):
                begins.append(written)
                advance(len(group.rows))
        scattered = _Scattered(
            [folder.source(name) for name in names],
            cuts,
            np.array(begins),
            permutation.breaks,
            permutation.terminator,
        )
        if workers:
            output.stage_each(workers, scattered.write, shards, progress=progress, environment=KEEP_MEMORY)
        else:
            with scattered.opened() as taken:
                _stage_here(output, taken, shards, progress, unit)
    finally:
        with contextlib.suppress(StoreError), folder.explaining():
            folder.delete(names)


def _stage_here(
    output: OutputFolder, taken: _Taken, shards: Mapping[str, Shard], progress: Progress, unit: str
) -> None:
    rows = sum(shard.end - shard.first for shard in shards.values())
    with progress(f"writing {unit}", rows, unit) as taken.advance:
        for name, shard in shards.items():
            output.stage(name, partial(taken.write, shard))


class _Views(NamedTuple):
    """Values of large_binary arrays. views: of Arrow, uint64 (n, 2); the last is the terminator if `terminated`."""

    views: np.ndarray
    data: list[pa.Buffer]
    terminated: bool

    @property
    def nbytes(self) -> int:
        return int((self.views[:, 0] & np.uint64(0xFFFFFFFF)).sum())

    def __len__(self) -> int:
        return len(self.views) - self.terminated

    def take(self, rows: np.ndarray) -> pa.Array:
        if self.terminated:
            rows = np.stack([rows, np.full_like(rows, len(self))], axis=1).reshape(-1)
        views = pa.py_buffer(self.views[rows])
        taken = pa.Array.from_buffers(pa.binary_view(), len(rows), [None, views, *self.data])
        return taken.cast(pa.large_binary())


class _Structs(NamedTuple):
    """The concatenated rows of struct arrays."""

    whole: pa.Array

    @property
    def nbytes(self) -> int:
        return int(self.whole.nbytes)

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, rows: np.ndarray) -> pa.Array:
        return self.whole.take(row_array(rows))


def _values(arrays: list[pa.Array], terminator: bytes) -> _Views | _Structs:
    if arrays and not pa.types.is_large_binary(arrays[0].type):
        return _Structs(pa.concat_arrays(arrays))
    arrays = [*arrays, binary_array([terminator] if terminator else [])]
    whole = pa.concat_arrays(
        [part.cast(pa.binary_view()) for array in arrays for part in _within_reach(array)]
    )
    _, views, *data = whole.buffers()
    pairs = np.frombuffer(views, np.uint64).reshape(-1, 2)[whole.offset :][: len(whole)]
    return _Views(pairs, data, bool(terminator))


def _within_reach(array: pa.Array) -> Iterator[pa.Array]:
    """A large_binary array, cut into parts of some VIEWED_BYTES, each with its own buffer."""
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset :][: len(array) + 1]
    cuts = np.flatnonzero(np.diff((bounds[:-1] - bounds[0]) // VIEWED_BYTES)) + 1
    for low, high in pairwise([0, *cuts.tolist(), len(array)]):
        part = bounds[low : high + 1] - bounds[low]
        within = data.slice(bounds[low], part[-1]) if data else pa.py_buffer(b"")
        yield pa.Array.from_buffers(pa.large_binary(), high - low, [None, pa.py_buffer(part), within])


@dataclass(eq=False)
class _Taken:
    """Reads ranges of output positions from buckets. Bucket b holds the positions [cuts[b], cuts[b + 1]). load: returns
    the values of a bucket and their order, int (n,)."""

    cuts: np.ndarray
    breaks: np.ndarray | None
    load: Callable[[int], tuple[_Views | _Structs, np.ndarray]]
    advance: Advance = lambda rows: None
    _bucket: int = -1
    _loaded: tuple[_Views | _Structs, np.ndarray, int] | None = None

    def write(self, shard: Shard, file: IO[bytes]) -> None:
        with contextlib.closing(ahead(self.parts(shard.first, shard.end))) as parts:
            shard.write(parts, file)

    def parts(self, first: int, end: int) -> Generator[pa.Array, None, None]:
        """The rows at output positions [first, end), in consecutive arrays."""
        for bucket, (low, high) in enumerate(pairwise(self.cuts.tolist())):
            if low >= end or high <= first:
                continue
            if self._bucket != bucket:
                self._loaded = None  # One bucket is in memory at a time.
                values, rows = self.load(bucket)
                step = max(1, SLICE_BYTES * len(values) // max(1, values.nbytes))
                self._loaded, self._bucket = (values, rows, step), bucket
                del values, rows
            yield from self._slices(max(first, low), min(end, high), low)

    def _slices(self, first: int, end: int, low: int) -> Iterator[pa.Array]:
        """The rows at output positions [first, end), all in the loaded bucket, which begins at `low`."""
        assert self._loaded is not None
        values, rows, step = self._loaded
        if self.breaks is None:
            inner = list(range(low + ((first - low) // step + 1) * step, end, step))
        else:
            inner = self.breaks[slice(*np.searchsorted(self.breaks, [first + 1, end]))].tolist()
        for at, to in pairwise([first, *inner, end]):
            yield values.take(rows[at - low : to - low])
            self.advance(to - at)


class _Group(NamedTuple):
    """Consecutive arrays, and the name of a file for their rows.

    contents, start: as in a `Permutation`, for these arrays. positions: output positions, int64 (n,). rows: the row
    at each of these positions, int64 (n,).
    """

    name: str
    contents: Sequence[ReadArray]
    start: np.ndarray
    positions: np.ndarray
    rows: np.ndarray


def _sort_by_row(rows: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the output positions by rising row, int64 (M,), and the index of each array's first position and the end,
    int64 (arrays + 1,). rows, start: see `Permutation`."""
    by_row = np.argsort(rows, kind="stable")
    # NumPy would copy all rows for a wider type.
    return by_row, np.searchsorted(rows, compact(start), sorter=by_row)


def rows_by_array(
    contents: Sequence[ReadArray], start: np.ndarray, rows: np.ndarray
) -> Generator[tuple[np.ndarray, np.ndarray, pa.Array], None, None]:
    """Yields for each array with a row: its output positions, int64 (n,) rising; its row at each position, int64 (n,);
    the array. Reads the next array meanwhile. contents, start, rows: see `Permutation`."""
    by_row, firsts = _sort_by_row(rows, start)
    used = np.flatnonzero(np.diff(firsts)).tolist()
    with contextlib.closing(ahead(contents[number]() for number in used)) as arrays:
        for number, array in zip(used, arrays, strict=True):
            positions = np.sort(by_row[firsts[number] : firsts[number + 1]])
            yield positions, rows[positions] - start[number], array


def _scatter(folder: LocalFolder, cuts: np.ndarray, group: _Group) -> np.ndarray:
    """Write the file of a group; returns the first byte of each bucket, and the end, int64 (buckets + 1,)."""
    buckets = [list[pa.RecordBatch]() for _ in cuts[1:]]
    with contextlib.closing(rows_by_array(group.contents, group.start, group.rows)) as arrays:
        for of_group, rows, content in arrays:
            positions = group.positions[of_group]
            limits = np.searchsorted(positions, cuts).tolist()
            for batches, (low, high) in zip(buckets, pairwise(limits), strict=True):
                if low < high:
                    columns = [row_array(positions[low:high]), content.take(row_array(rows[low:high]))]
                    batches.append(pa.record_batch(columns, ["position", "content"]))
    begins = [0]
    with folder.create(group.name, group.name, lasting=False) as file:
        sink = pa.PythonFile(file, "w")
        for batches in buckets:
            if batches:
                # Each array of a column may have its own dictionary; a stream may replace dictionaries.
                with pa.ipc.new_stream(sink, batches[0].schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
            begins.append(sink.tell())
    return np.array(begins)


@dataclass(frozen=True, eq=False)
class _Scattered:
    """Rows in the files of groups. Bucket b is the bytes [begins[g, b], begins[g, b + 1]) of each group g's file."""

    paths: Sequence[Path]
    cuts: np.ndarray
    begins: np.ndarray
    breaks: np.ndarray | None
    terminator: bytes

    def write(self, shard: Shard, file: IO[bytes]) -> None:
        with self.opened() as taken:
            taken.write(shard, file)

    @contextlib.contextmanager
    def opened(self) -> Iterator[_Taken]:
        with contextlib.ExitStack() as stack:
            files = [_Bytes(stack.enter_context(open(path, "rb", buffering=0))) for path in self.paths]
            yield _Taken(self.cuts, self.breaks, partial(self._load, files))

    def _load(self, files: list[_Bytes], bucket: int) -> tuple[_Views | _Structs, np.ndarray]:
        for file in files:
            file.release()
        positions, chunks = [], []
        for file, (begin, end) in zip(files, self.begins[:, bucket : bucket + 2].tolist(), strict=True):
            if begin < end:
                for batch in pa.ipc.open_stream(file.read(begin, end)):
                    positions.append(np.frombuffer(batch["position"].buffers()[1], np.int64))
                    chunks.append(batch["content"])
        values = _values(chunks, self.terminator)
        return values, np.argsort(np.concatenate(positions), kind="stable")


class _Bytes:
    """A file that is read in stretches, mapped into memory if the file system can."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._mapped: mmap.mmap | None = None
        with contextlib.suppress(OSError):
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, begin: int, end: int) -> pa.Buffer:
        if self._mapped is not None:
            return pa.py_buffer(self._mapped).slice(begin, end - begin)
        self._file.seek(begin)
        return pa.py_buffer(self._file.read(end - begin))

    def release(self) -> None:
        """Drop the pages already read from this process's memory; the system's cache keeps the pages."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)


def passes_files(sizes: np.ndarray, *, as_lines: bool = False) -> bool:
    """Whether rows of these sizes, int (M,), exceed MEMORY_BYTES and cannot be written in place as lines."""
    return int(sizes.sum()) > MEMORY_BYTES and not (as_lines and can_stage_in_place(sizes))


def shard_limits(sizes: np.ndarray, shard_bytes: int) -> list[int]:
    """Output positions where shards end, for rows of these sizes, int (M,). A shard holds about `shard_bytes`, and at
    least one row. Without rows there is one empty shard."""
    ends = np.cumsum(sizes, dtype=np.int64)
    shards = -(-int(ends[-1]) // shard_bytes) if len(ends) else 1
    limits = np.searchsorted(ends, np.arange(1, shards) * shard_bytes, side="right")
    return [*np.unique(limits[(limits > 0) & (limits < len(sizes))]).tolist(), len(sizes)]
