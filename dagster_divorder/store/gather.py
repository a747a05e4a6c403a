"""The final gather: stored records in output order, in one pass over the fragments.

Records are scattered from fragment order to output order. What fits in `BUCKET_BYTES` is ordered in memory; a larger
output goes through at most `MAX_BUCKETS` files of consecutive output positions, each ordered in memory in turn. One
thread decompresses the next fragment, another is a slice ahead of the caller. Memory: twice the larger of BUCKET_BYTES
and output / MAX_BUCKETS, a fragment, and 32 bytes a record.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from dagster_divorder.engine.ahead import ahead
from dagster_divorder.engine.progress import Advance
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.base import TEMPORARY, Store
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.view import View, offsets

BUCKET_BYTES = 256 << 20
SLICE_BYTES = 1 << 20
"""Small, so that the allocator has the memory of the last slice for the next one: pages that the system has to clear
first cost more than copying into them."""
MAX_BUCKETS = 512


def gather(
    store: Store, view: View, order: np.ndarray, sizes: np.ndarray, scratch: Path, advance: Advance
) -> Generator[pa.Array, None, None]:
    """Record content in output order, in consecutive arrays.

    Args:
        order: int64 (N,), output position -> input position.
        sizes: int64 (record rows of the view,), bytes of each record.
        scratch: folder for the bucket files, which are removed again.
        advance: told of the records read.
    """
    contents = _contents(store, [fragment.file for fragment in view.records])
    rows = view.record_row[order]
    return ahead(gather_rows(contents, offsets(view.records), rows, sizes[rows], scratch, advance))


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
    if sizes.sum() <= BUCKET_BYTES:
        yield from _in_order(_whole(contents, start, rows, advance), rows)
        return
    ends = np.cumsum(sizes)
    buckets = int(min(MAX_BUCKETS, max(1, -(-int(ends[-1]) // BUCKET_BYTES)))) if len(ends) else 1
    # Bucket b holds the output positions [cuts[b], cuts[b + 1]).
    cuts = np.searchsorted(ends, np.arange(1, buckets) * (ends[-1] / buckets)) if len(ends) else []
    cuts = np.concatenate([[0], cuts, [len(rows)]]).astype(np.int64)
    del ends
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=scratch) as folder:
        files = [Path(folder) / str(bucket) for bucket in range(buckets)]
        writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        for positions, at, content in _scattered(contents, start, rows, advance):
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


def _contents(store: Store, files: list[str]) -> Iterator[pa.Array]:
    """Content of fragments."""

    def each() -> Generator[pa.Array, None, None]:
        for file in files:
            content = read_content(store, file)
            yield content.chunk(0) if content.num_chunks == 1 else content.combine_chunks()

    return ahead(each())


def _whole(contents: Iterator[pa.Array], start: np.ndarray, rows: np.ndarray, advance: Advance) -> pa.Array:
    """All arrays as one."""
    wanted, _ = np.histogram(rows, start)
    chunks = []
    for content, count in zip(contents, wanted.tolist(), strict=True):
        chunks.append(content)
        advance(count)
    return pa.concat_arrays(chunks)


def _scattered(
    contents: Iterator[pa.Array], start: np.ndarray, rows: np.ndarray, advance: Advance
) -> Iterator[tuple[np.ndarray, np.ndarray, pa.Array]]:
    """Array by array: output positions, rising; where in it they find theirs; the array."""
    # Positions by row, in runs of one fragment.
    by_row = np.argsort(rows, kind="stable")
    ends = np.searchsorted(rows, start, sorter=by_row)
    for at, content in enumerate(contents):
        positions = np.sort(by_row[ends[at] : ends[at + 1]])
        if len(positions):
            yield positions, rows[positions] - start[at], content
        advance(len(positions))


def _read_bucket(file: Path) -> tuple[pa.Array, np.ndarray]:
    """Content of a bucket file, and its rows by rising position."""
    with pa.memory_map(str(file)) as source:
        table = pa.ipc.open_stream(source).read_all()
        content = table.column("content").combine_chunks()
    return content, np.argsort(table.column("position").to_numpy(), kind="stable")


def _in_order(content: pa.Array, rows: np.ndarray) -> Iterator[pa.Array]:
    """`content[rows]` in slices of some SLICE_BYTES, so that it is not in memory twice."""
    step = max(1, SLICE_BYTES * len(content) // max(1, content.nbytes))
    for first in range(0, len(rows), step):
        yield content.take(row_array(rows[first : first + step]))
