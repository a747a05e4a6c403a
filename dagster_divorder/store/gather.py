"""The final gather: stored records in output order, in one pass over the fragments.

Records are scattered from fragment order to output order. What fits in `BUCKET_BYTES` is ordered in memory; a larger
output goes through at most `MAX_BUCKETS` files of consecutive output positions, each ordered in memory in turn. Memory:
some four times the larger of BUCKET_BYTES and output / MAX_BUCKETS, plus 24 bytes a record.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from dagster_divorder.engine.progress import Advance
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.view import View, offsets

BUCKET_BYTES = 128 << 20
MAX_BUCKETS = 512


def gather(
    store: LocalStore, view: View, order: np.ndarray, sizes: np.ndarray, scratch: Path, advance: Advance
) -> Iterator[pa.Array]:
    """Record content in output order, in consecutive arrays.

    Args:
        order: int64 (N,), output position -> input position.
        sizes: int64 (record rows of the view,), bytes of each record.
        scratch: folder for the bucket files, which are removed again.
        advance: told of the records read.
    """
    rows = view.record_row[order]
    ends = np.cumsum(sizes[rows])
    buckets = int(min(MAX_BUCKETS, max(1, -(-int(ends[-1]) // BUCKET_BYTES)))) if len(ends) else 1
    # Bucket b holds the output positions [cuts[b], cuts[b + 1]).
    cuts = np.searchsorted(ends, np.arange(1, buckets) * (ends[-1] / buckets)) if len(ends) else []
    cuts = np.concatenate([[0], cuts, [len(rows)]]).astype(np.int64)
    by_row = np.argsort(rows, kind="stable")
    if buckets == 1:
        yield _ordered(_scattered(store, view, rows, by_row, advance))
        return
    with tempfile.TemporaryDirectory(prefix=".tmp-gather-", dir=scratch) as folder:
        files = [Path(folder) / str(bucket) for bucket in range(buckets)]
        writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        for positions, content in _scattered(store, view, rows, by_row, advance):
            bucket = np.searchsorted(cuts, positions, side="right") - 1
            by_bucket = np.argsort(bucket, kind="stable")
            numbers, first = np.unique(bucket[by_bucket], return_index=True)
            for number, at in zip(numbers.tolist(), np.split(by_bucket, first[1:]), strict=True):
                batch = pa.record_batch({"position": positions[at], "content": content.take(pa.array(at))})
                if number not in writers:
                    writers[number] = pa.ipc.new_stream(str(files[number]), batch.schema)
                writers[number].write_batch(batch)
        for writer in writers.values():
            writer.close()
        for file in files:
            if file.exists():
                with pa.memory_map(str(file)) as source:
                    batches = pa.ipc.open_stream(source).read_all().to_batches()
                    yield _ordered((batch["position"].to_numpy(), batch["content"]) for batch in batches)
                file.unlink()


def _scattered(
    store: LocalStore, view: View, rows: np.ndarray, by_row: np.ndarray, advance: Advance
) -> Iterator[tuple[np.ndarray, pa.Array]]:
    """Fragment by fragment: output positions and the content that belongs there."""
    start = offsets(view.records)
    ordered = rows[by_row]
    for at, fragment in enumerate(view.records):
        low, high = np.searchsorted(ordered, start[at : at + 2])
        if low < high:
            content = read_content(store, fragment.file)
            content = content.chunk(0) if content.num_chunks == 1 else content.combine_chunks()
            yield by_row[low:high], content.take(pa.array(ordered[low:high] - start[at]))
        advance(int(high - low))


def _ordered(parts: Iterator[tuple[np.ndarray, pa.Array]]) -> pa.Array:
    positions, contents = zip(*parts, strict=True)
    return pa.concat_arrays(contents).take(pa.array(np.argsort(np.concatenate(positions), kind="stable")))
