"""parquet: `input_ids` list<int32> and `seq_lengths` list<int32> (TRL's name for the lengths of the documents in a
sequence), a row a sequence. Read by `datasets`, transformers' Trainer, TRL, torchtitan and `dagster_divorder.torch`.

Short rows are not padded: a collator pads them and masks the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.file_rows import FileRows, IdBlock
from dagster_divorder.write.exports.format import Format, Options
from dagster_divorder.write.exports.raw import row_files
from dagster_divorder.write.exports.rows import Rows

if TYPE_CHECKING:
    import pyarrow.parquet as pq

GROUP_BYTES = 4 << 20
"""Bytes of ids in a row group; a reader of one row decodes its whole group."""
# Without nulls, or a reader would look for them at every id.
_IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))
SCHEMA = pa.schema([pa.field(name, _IDS, nullable=False) for name in ("input_ids", "seq_lengths")])


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    files = row_files(rows, options, np.dtype(np.int32), ".parquet")
    rows.stage(folder, {name: (span, _write_file) for name, span in files.items()})
    return {"dtype": "int32", "rows_of_files": [end - first for first, end in files.values()]}


def _write_file(file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes]) -> None:
    # `SCHEMA.empty_table()` imports pandas.
    tables, rest, count = _tables(file_rows, blocks), pa.Table.from_batches([], SCHEMA), len(file_rows)
    group = group_rows(file_rows.length)
    with open_writer(file, SCHEMA) as writer:
        while count:
            wanted = min(count, group)
            while len(rest) < wanted:
                rest = pa.concat_tables([rest, next(tables)])
            writer.write_table(rest[:wanted], row_group_size=group)
            rest, count = rest[wanted:], count - wanted


def _tables(file_rows: FileRows, blocks: Iterator[IdBlock]) -> Iterator[pa.Table]:
    for block in blocks:
        end = block.first + len(block.tokens)
        indptr = file_rows.indptr[block.first : end + 1]
        yield table(block.ids, block.tokens, file_rows.run_tokens[indptr[0] : indptr[-1]], np.diff(indptr))


def group_rows(length: int) -> int:
    """Rows of L tokens in a row group."""
    return max(1, GROUP_BYTES // (4 * length))


def open_writer(file: IO[bytes], schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of tables to a file; close it."""
    import pyarrow.parquet as pq

    # Ids have too many values for a dictionary, and compressing them gains little for its time.
    return pq.ParquetWriter(
        pa.PythonFile(file, "w"), schema, use_dictionary=False, compression="none", write_statistics=False
    )


def table(ids: np.ndarray, tokens: np.ndarray, lengths: np.ndarray, counts: np.ndarray) -> pa.Table:
    """Rows of SCHEMA; int32 arrays are not copied. ids: (T,) without padding. tokens: (n,) of each row. lengths: (Q,)
    of each document. counts: (n,) documents of each row."""
    return pa.table([_lists(tokens, ids), _lists(counts, lengths)], SCHEMA)


def _lists(sizes: np.ndarray, values: np.ndarray) -> pa.Array:
    """Lists of int32 of these sizes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    flat = pa.Array.from_buffers(
        pa.int32(), len(values), [None, pa.py_buffer(values.astype(np.int32, copy=False))]
    )
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(_IDS, len(offsets) - 1, buffers, children=[flat])


PARQUET = Format(
    name="parquet",
    write=_write,
    contiguous_ranks=True,
)
