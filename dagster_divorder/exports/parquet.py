"""parquet: `input_ids` list<int32> and `seq_lengths` list<int32> (TRL's name for the lengths of the documents in a
sequence), a row a sequence. Read by `datasets`, transformers' Trainer, TRL, torchtitan and `dagster_divorder.torch`.

Rows are as long as they are: a collator pads, and masks what it pads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
import pyarrow as pa

from dagster_divorder.exports.format import Format, Options
from dagster_divorder.exports.rows import Rows
from dagster_divorder.exports.stretch import Block, Stretch
from dagster_divorder.store.curated import OutputFolder

GROUP_BYTES = 4 << 20
"""Of ids in a row group, which a reader of one row decodes whole."""
# Without nulls, for which a reader would look at every id.
_IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))
SCHEMA = pa.schema([pa.field(name, _IDS, nullable=False) for name in ("input_ids", "seq_lengths")])


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    shards = rows.shards(4 * rows.length, options.shard_bytes)
    names = (f"train-{number:05d}-of-{len(shards):05d}.parquet" for number in range(len(shards)))
    rows.stage(folder, [(name, span, _write_file) for name, span in zip(names, shards, strict=True)])
    return {"dtype": "int32", "rows_of_files": [end - first for first, end in shards]}


def _write_file(stretch: Stretch, file: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    tables, rest, count = _tables(stretch), SCHEMA.empty_table(), len(stretch)
    group = max(1, GROUP_BYTES // (4 * stretch.length))
    # Ids have too many values for a dictionary, and compress little for the time that it takes.
    with pq.ParquetWriter(
        pa.PythonFile(file, "w"), SCHEMA, use_dictionary=False, compression="none", write_statistics=False
    ) as writer:
        while count:
            wanted = min(count, group)
            while len(rest) < wanted:
                rest = pa.concat_tables([rest, next(tables)])
            writer.write_table(rest[:wanted], row_group_size=group)
            rest, count = rest[wanted:], count - wanted


def _tables(stretch: Stretch) -> Iterator[pa.Table]:
    for block in stretch.blocks():
        end = block.first + len(block.tokens)
        some = slice(stretch.indptr[block.first], stretch.indptr[end])
        runs = stretch.indptr[block.first : end + 1] - stretch.indptr[block.first]
        columns = [_lists(_ends(block), block.ids), _lists(runs, stretch.run_tokens[some])]
        yield pa.table(columns, SCHEMA)


def _ends(block: Block) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(block.tokens)])


def _lists(offsets: np.ndarray, values: np.ndarray) -> pa.Array:
    """Lists of int32 over the arrays' own memory."""
    flat = pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values.astype(np.int32))])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(_IDS, len(offsets) - 1, buffers, children=[flat])


PARQUET = Format(
    name="parquet",
    write=_write,
    slices=True,
)
