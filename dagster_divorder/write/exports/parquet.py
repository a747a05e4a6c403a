"""parquet: a row a sequence, with `input_ids` list<int32> and `seq_lengths` list<int32>.

`seq_lengths` is TRL's name for the document lengths in a sequence. `datasets`, transformers' Trainer, TRL, torchtitan
and `dagster_divorder.torch` read the files. Short rows are not padded: a collator pads them and masks the padding.
If there is a loss mask, the column `labels` list<int32> has the id of a token that is trained on, and -100 for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, Any

import numpy as np
import pyarrow as pa

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.raw import row_files, stage_trained
from dagster_divorder.write.exports.rows import FileRows, Format, IdBlock, Options, Rows

GROUP_BYTES = 4 << 20
"""Bytes of ids in a row group; a reader of one row decodes the whole row group."""


# Values are not nullable, so readers skip null checks at every id.
LISTS = pa.list_(pa.field("element", pa.int32(), nullable=False))
IGNORED = -100
"""The label that losses ignore."""


def schema_of(labels: bool) -> pa.Schema:
    """The schema of rows."""
    names = ("input_ids", "seq_lengths", "labels")[: 3 if labels else 2]
    return pa.schema([pa.field(name, LISTS, nullable=False) for name in names])


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    files = row_files(rows, options, np.dtype(np.int32), ".parquet")
    rows.stage(folder, files, partial(_write_file, labels=options.labels))
    stage_trained(rows, folder, options)
    columns = {"columns": ["labels"]} if options.labels else {}
    return {"dtype": "int32", "rows_of_files": [end - first for first, end in files.values()], **columns}


def _write_file(file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes], *, labels: bool) -> None:
    import pyarrow.parquet as pq

    schema, group = schema_of(labels), max(1, GROUP_BYTES // (4 * file_rows.length))
    # `schema.empty_table()` imports pandas.
    rest = pa.Table.from_batches([], schema)
    # Ids have too many distinct values for a dictionary. Compression gains little for its time.
    how: dict[str, Any] = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    with pq.ParquetWriter(pa.PythonFile(file, "w"), schema, **how) as writer:
        for block in blocks:
            rest = pa.concat_tables([rest, _table(file_rows, block, schema)])
            full = len(rest) // group * group
            if full:
                writer.write_table(rest[:full], row_group_size=group)
                rest = rest[full:]
        if len(rest):
            writer.write_table(rest)


def _table(file_rows: FileRows, block: IdBlock, schema: pa.Schema) -> pa.Table:
    """The rows of a block; int32 ids are not copied."""
    indptr = file_rows.runs.indptr[block.first : block.first + len(block.tokens) + 1]
    lengths = file_rows.runs.length[indptr[0] : indptr[-1]]
    columns = [_lists(block.tokens, block.ids), _lists(np.diff(indptr), lengths)]
    if len(schema) > len(columns):
        trained = True if block.trained is None else block.trained[block.filled(file_rows.length)]
        labels = np.where(trained, block.ids.astype(np.int32), np.int32(IGNORED))
        columns.append(_lists(block.tokens, labels))
    return pa.table(columns, schema)


def _lists(sizes: np.ndarray, values: np.ndarray) -> pa.Array:
    """Lists of these sizes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    flat = pa.Array.from_buffers(
        pa.int32(), len(values), [None, pa.py_buffer(values.astype(np.int32, copy=False))]
    )
    return pa.Array.from_buffers(LISTS, len(sizes), [None, pa.py_buffer(offsets)], children=[flat])


PARQUET = Format(
    name="parquet",
    write=_write,
    contiguous_ranks=True,
    masks=True,
)
