"""Permutes runs of many arrays into files. Writes the curated output and the exports.

    in memory       arrays --gather--> output files
    through files   arrays --gather--> a sorted file a group of arrays --merge, bucket by bucket--> output files

A *run* is some consecutive values of one array: the bytes of a line, a row of a table, tokens of a document. A sorted
file holds the runs of a group of arrays in output order. A *bucket* is a range of output positions in one output file,
and its part of a sorted file is a *piece*. If workers pay off, each sorted file and each output file is a call of the
engine.

Guarantee: the same bytes for any number of workers, and of numbers also by both ways.
Cost: some 5.5 processor seconds a GB through files; these take as much space as the output.
Memory: the arrays; through files a group or a bucket, of tables twice; some 50 bytes a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, takewhile
from math import isqrt
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import plain_array
from dagster_divorder.engine.base import Engine, ahead
from dagster_divorder.engine.local import KEEP_MEMORY
from dagster_divorder.engine.progress import Advance, Progress
from dagster_divorder.errors import StoreError
from dagster_divorder.store.folder import LocalFolder, temporary_name
from dagster_divorder.write.curated import OutputFolder

BUCKET_BYTES = 64 << 20
"""Bytes of a group or a bucket."""
PIECE_BYTES = 64 << 10
"""Least mean bytes of a piece: where pieces would be smaller, groups and buckets are larger."""
EXTENDED_SHARD_BYTES = 256 << 20
"""Most bytes of a file of an output that appends extend, because its last file is written again each time."""
SLICE_BYTES = 1 << 20
"""Small, so that each slice reuses the last slice's memory: the system clears new pages."""

Values = Any
"""Numbers (n,), or rows of a table as a pa.StructArray."""
ReadArray = Callable[[], Values]
"""Returns an array. Picklable."""
WriteArrays = Callable[..., object]
"""Writes a file, the last argument, from an iterator over consecutive arrays of its values. Picklable."""


class Shard(NamedTuple):
    """A file: its output positions [first, end), and the function that writes it."""

    first: int
    end: int
    write: WriteArrays


class _Runs(NamedTuple):
    """Runs in memory. take: returns the values of runs [low, high). step: runs of a slice."""

    take: Callable[[int, int], Values]
    step: int

    def parts(
        self, first: int, end: int, breaks: np.ndarray | None, advance: Advance
    ) -> Generator[Values, None, None]:
        """Yields the values of runs [first, end) in slices."""
        if breaks is None:
            inner = np.arange((first // self.step + 1) * self.step, end, self.step)
        else:
            inner = breaks[slice(*np.searchsorted(breaks, [first + 1, end]))]
        for low, high in pairwise([first, *inner.tolist(), end]):
            if low < high:
                yield self.take(low, high)
                advance(high - low)


@dataclass(frozen=True, eq=False, kw_only=True)
class Permutation:
    """Runs of arrays, in the order of the output. Values are numbered over all arrays.

    contents: functions that return the arrays. start: the first value of each array, and the end, int64 (arrays + 1,).
    dtype: of numbers; None for rows of a table. first: the first value of the run at each output position, int64 (M,);
        it lies in one array.
    sizes: values of each run, int (M,). Of a table, where a run is one row, its approximate bytes.
    lengths: values of each run in the output, int (M,); None: the sizes. The number `filler` fills up longer runs.
    breaks: output positions where slices end, int64 rising from 0 to M; None: slices of some SLICE_BYTES.
    """

    contents: Sequence[ReadArray]
    start: np.ndarray
    dtype: np.dtype | None
    first: np.ndarray
    sizes: np.ndarray
    lengths: np.ndarray | None = None
    filler: int = 0
    breaks: np.ndarray | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of a unit of `sizes`."""
        return self.dtype.itemsize if self.dtype else 1

    @property
    def nbytes(self) -> int:
        """Bytes of all runs."""
        return int(self.sizes.sum()) * self.itemsize

    def arrays(self) -> np.ndarray:
        """The number of each run's array, uint32 (M,)."""
        array = np.searchsorted(self.start, self.first, side="right") - 1
        # An empty run may begin where the last array ends.
        return np.minimum(array, len(self.contents) - 1).astype(np.uint32)

    def within(self, runs: Any, **changed: Any) -> Permutation:
        """Some runs, without breaks. runs: an index of the runs."""
        lengths = None if self.lengths is None else self.lengths[runs]
        part = replace(self, first=self.first[runs], sizes=self.sizes[runs], lengths=lengths, breaks=None)
        return replace(part, **changed)

    def read(self) -> _Runs:
        """Reads the arrays that hold a run."""
        array = self.arrays()
        used = np.flatnonzero(np.bincount(array, minlength=len(self.contents))).tolist()
        read, first = [self.contents[number]() for number in used], self.first - self.start[array]
        array = np.searchsorted(used, array)
        if self.dtype is None:
            whole = pa.concat_arrays(read) if read else pa.nulls(0)
            rows = np.cumsum([0, *map(len, read)])[array] + first
            step = SLICE_BYTES * len(whole) // max(1, whole.nbytes)
            return _Runs(lambda low, high: whole.take(plain_array(rows[low:high])), max(1, step))
        from dagster_divorder.core.kernels.token_runs import copy_runs

        lengths = self.sizes if self.lengths is None else self.lengths
        address = np.array([numbers.ctypes.data for numbers in read], np.int64)[array] + first * self.itemsize

        def take(low: int, high: int, kept: object = read) -> np.ndarray:
            length, size = (each[low:high].astype(np.int64, copy=False) for each in (lengths, self.sizes))
            taken = np.empty(int(length.sum()), self.dtype)
            copy_runs(address[low:high], length, size, self.filler, taken)
            return taken

        step = SLICE_BYTES * len(first) // max(1, int(lengths.sum()) * self.itemsize)
        return _Runs(take, max(1, step))


def permute(
    permutation: Permutation,
    shards: Mapping[str, Shard],
    output: OutputFolder,
    *,
    through_files: bool,
    engine: Callable[[], Engine],
    workers_from: int,
    progress: Progress,
    unit: str,
) -> None:
    """Stage files of permuted runs. shards: consecutive files, by name. through_files: whether runs pass through
    temporary files. engine: opens the engine, for several files of `workers_from` bytes or more in all. unit: plural
    name of runs.

    Raises:
        StoreError: see `OutputFolder.stage`.
    """
    count = sum(shard.end - shard.first for shard in shards.values())
    writing = partial(progress, f"writing {unit}", count, unit)
    if not (through_files and len(permutation.first)):
        runs = permutation.read()
        with writing() as advance:
            for name, (first, end, write) in shards.items():
                parts = runs.parts(first, end, permutation.breaks, advance)
                output.stage(name, partial(_write, write, parts))
        return
    size, workers = permutation.nbytes, None
    if len(shards) > 1 and size >= workers_from and isinstance(output.path, Path):
        workers = opened if (opened := engine()).workers > 1 else None
    bucket_bytes = max(BUCKET_BYTES, isqrt(size * PIECE_BYTES))
    cuts = _cuts(permutation, shards.values(), bucket_bytes)
    group, groups = _split(permutation, cuts, bucket_bytes)
    tasks = [(temporary_name(), runs) for runs in groups]
    calls = partial(workers.each, environment=KEEP_MEMORY) if workers else map
    begins = np.empty((len(tasks), len(cuts)), np.int64)
    try:
        with (
            output.here.explaining(),
            progress(f"gathering {unit}", len(group), unit) as advance,
        ):
            for number, written in enumerate(calls(partial(_sort, output.here), tasks)):
                begins[number] = written
                advance(len(groups[number].first))
        paths = [output.here.source(name) for name, _ in tasks]
        merges = {}
        for name, (first, end, write) in shards.items():
            low, high = np.searchsorted(cuts, [first, end])
            breaks = None if permutation.breaks is None else permutation.breaks - first
            part = permutation.within(slice(first, end), contents=[], start=cuts[:0], breaks=breaks)
            buckets = slice(low, high + 1)
            merges[name] = _Merge(
                write, part, group[first:end], cuts[buckets] - first, paths, begins[:, buckets]
            )
        if workers:
            output.stage_each(workers, _Merge.__call__, merges, progress=progress, environment=KEEP_MEMORY)
        else:
            with writing() as advance:
                for name, merge in merges.items():
                    output.stage(name, partial(merge, advance=advance))
    finally:
        with contextlib.suppress(StoreError), output.here.explaining():
            output.here.delete([name for name, _ in tasks])


def stage_extended(
    folder: OutputFolder,
    files: Mapping[str, Shard],
    stage: Callable[[Mapping[str, Shard]], None],
    *,
    content: Callable[[Shard], str],
    note: Callable[[str], object],
) -> None:
    """Stage consecutive files by `stage`. If the folder extends a published output, new positions come last, so all
    files before the first new file are taken over. content: returns a hash of all that decides a file's bytes."""
    if not folder.extends:
        stage(files)
        return
    contents = {name: content(file) for name, file in files.items()}
    kept = {*takewhile(lambda name: folder.take_over(name, contents[name]), files)}
    if kept:
        note(f"{len(kept):,} of {len(files):,} files are unchanged")
    if missing := {name: file for name, file in files.items() if name not in kept}:
        stage(missing)
    for name, hashed in contents.items():
        folder.entries[name] = {**folder.entries[name], "content": hashed}


def _write(write: WriteArrays, parts: Generator[Values, None, None], file: IO[bytes]) -> None:
    with contextlib.closing(ahead(parts)) as coming:
        write(coming, file)


def _cuts(permutation: Permutation, shards: Iterable[Shard], bucket_bytes: int) -> np.ndarray:
    """The first position of each bucket, and the end, int64 (buckets + 1,). Buckets end where a shard does."""
    ends = np.cumsum(permutation.sizes, dtype=np.int64) * permutation.itemsize
    cuts = np.searchsorted(ends, np.arange(bucket_bytes, ends[-1], bucket_bytes))
    if permutation.breaks is not None:
        cuts = permutation.breaks[np.searchsorted(permutation.breaks, cuts)]
    return np.unique([*cuts.tolist(), *(limit for shard in shards for limit in (shard.first, shard.end))])


def _split(
    permutation: Permutation, cuts: np.ndarray, group_bytes: int
) -> tuple[np.ndarray, list[Permutation]]:
    """The number of each run's group, int (M,); the runs of each group in output order, with breaks at the cuts. A
    group is some consecutive arrays, whose runs take some `group_bytes`."""
    array, start = permutation.arrays(), permutation.start
    sizes = np.bincount(array, permutation.sizes, len(permutation.contents)) * permutation.itemsize
    of_array = (np.cumsum(sizes) - sizes) // group_bytes
    limits = [*np.flatnonzero(np.diff(of_array, prepend=-1)).tolist(), len(of_array)]
    number = np.repeat(np.arange(len(limits) - 1), np.diff(limits))
    group = number[array].astype(np.min_scalar_type(len(limits)))
    counts, groups = np.bincount(group, minlength=len(limits) - 1), []
    positions = np.split(np.argsort(group, kind="stable"), np.cumsum(counts)[:-1])
    for runs, (low, high) in zip(positions, pairwise(limits), strict=True):
        arrays = {"contents": permutation.contents[low:high], "start": start[low : high + 1]}
        groups.append(permutation.within(runs, **arrays, lengths=None, breaks=np.searchsorted(runs, cuts)))
    return group, groups


def _sort(folder: LocalFolder, task: tuple[str, Permutation]) -> np.ndarray:
    """Write the runs of a group into a file; returns the first byte of each piece, and the end, int64 (buckets + 1,).
    task: the file's name; the runs, with breaks at buckets."""
    name, group = task
    assert group.breaks is not None
    runs, begins = group.read(), [0]
    with folder.create(name, name, lasting=False) as file:
        for low, high in pairwise(group.breaks.tolist()):
            if low < high and group.dtype:
                file.write(runs.take(low, high).data)
            elif low < high:
                batch = pa.RecordBatch.from_struct_array(runs.take(low, high))
                # A stream, because each piece has its own dictionaries.
                with pa.ipc.new_stream(pa.PythonFile(file, "w"), batch.schema) as writer:
                    writer.write_batch(batch)
            begins.append(file.tell())
    return np.array(begins)


def _read_piece(path: Path, begin: int, end: int, dtype: np.dtype | None) -> Values:
    data = np.fromfile(path, np.uint8, end - begin, offset=begin)
    if dtype:
        return data.view(dtype)
    return pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch().to_struct_array()


@dataclass(frozen=True, eq=False)
class _Merge:
    """Writes a file whose runs lie in sorted files. runs: without arrays. group: of each run, int (n,). cuts:
    the first run of each bucket, and the end, int64 (buckets + 1,). begins: the first byte of each piece, and the end,
    int64 (groups, buckets + 1)."""

    write: WriteArrays
    runs: Permutation
    group: np.ndarray
    cuts: np.ndarray
    paths: Sequence[Path]
    begins: np.ndarray

    def __call__(self, file: IO[bytes], advance: Advance = lambda runs: None) -> None:
        _write(self.write, self._parts(advance), file)

    def _parts(self, advance: Advance) -> Generator[Values, None, None]:
        for bucket, (low, high) in enumerate(pairwise(self.cuts.tolist())):
            breaks = None if self.runs.breaks is None else self.runs.breaks - low
            yield from self._bucket(bucket, slice(low, high)).read().parts(0, high - low, breaks, advance)

    def _bucket(self, bucket: int, runs: slice) -> Permutation:
        """The runs of a bucket, over its pieces."""
        order = np.argsort(self.group[runs], kind="stable")
        widths = self.runs.sizes[runs][order] if self.runs.dtype else np.ones(len(order), np.int64)
        ends = np.concatenate([[0], np.cumsum(widths)])
        first = np.empty(len(order), np.int64)
        first[order] = ends[:-1]
        groups = np.arange(len(self.paths) + 1)
        begins, bytes_end = self.begins[:, bucket : bucket + 2].T.tolist()
        return self.runs.within(
            runs,
            contents=[
                partial(_read_piece, path, begin, end, self.runs.dtype)
                for path, begin, end in zip(self.paths, begins, bytes_end, strict=True)
            ],
            start=ends[np.searchsorted(self.group[runs], groups, sorter=order)],
            first=first,
        )


def shard_limits(sizes: np.ndarray, shard_bytes: int) -> list[int]:
    """Output positions where shards of about `shard_bytes` end, for runs of these sizes, int (M,); at least one run a
    shard, and one empty shard without runs."""
    ends = np.cumsum(sizes, dtype=np.int64)
    shards = -(-int(ends[-1]) // shard_bytes) if len(ends) else 1
    limits = np.searchsorted(ends, np.arange(1, shards) * shard_bytes, side="right")
    return [*np.unique(limits[(limits > 0) & (limits < len(sizes))]).tolist(), len(sizes)]
