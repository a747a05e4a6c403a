"""parquet: a row a sequence, with `input_ids` list<int32> and `seq_lengths` list<int32>.

`seq_lengths` is TRL's name for the document lengths in a sequence. `datasets`, transformers' Trainer, TRL, torchtitan
and `dagster_divorder.torch` read the files. Short rows are not padded: a collator pads them and masks the padding.
`exports.columns` names further columns, lists with one value a token:

    labels                             int32: the id of a token that is trained on, -100 for other tokens
    assistant_masks, completion_mask   int8: 1 for a token that is trained on, 0 for other tokens
    position_ids                       int32: from 0 in each document of the sequence
    attention_mask                     int8: 1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

import numpy as np
import pyarrow as pa

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.file_rows import FileRows, IdBlock
from dagster_divorder.write.exports.format import Format, Options
from dagster_divorder.write.exports.raw import row_files, stage_trained
from dagster_divorder.write.exports.rows import Rows

GROUP_BYTES = 4 << 20
"""Bytes of ids in a row group; a reader of one row decodes the whole row group."""


def _lists_of(kind: pa.DataType) -> pa.DataType:
    # Values are not nullable, so readers skip null checks at every id.
    return pa.list_(pa.field("element", kind, nullable=False))


COLUMNS = {
    "labels": pa.int32(),
    "assistant_masks": pa.int8(),
    "completion_mask": pa.int8(),
    "position_ids": pa.int32(),
    "attention_mask": pa.int8(),
}
"""Value types of further columns."""
IGNORED = -100
"""The label that losses ignore."""


def schema_with(columns: Iterable[str] = ()) -> pa.Schema:
    """The schema of rows with further columns."""
    kinds = {"input_ids": pa.int32(), "seq_lengths": pa.int32()} | {name: COLUMNS[name] for name in columns}
    return pa.schema([pa.field(name, _lists_of(kind), nullable=False) for name, kind in kinds.items()])


SCHEMA = schema_with()


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    files = row_files(rows, options, np.dtype(np.int32), ".parquet")
    rows.stage(folder, files, partial(_write_file, columns=options.columns))
    stage_trained(rows, folder, options)
    columns = {"columns": list(options.columns)} if options.columns else {}
    return {"dtype": "int32", "rows_of_files": [end - first for first, end in files.values()], **columns}


def _write_file(
    file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes], *, columns: Sequence[str]
) -> None:
    import pyarrow.parquet as pq

    schema, group = schema_with(columns), max(1, GROUP_BYTES // (4 * file_rows.length))
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
    indptr = file_rows.indptr[block.first : block.first + len(block.tokens) + 1]
    lengths = file_rows.run_tokens[indptr[0] : indptr[-1]]
    columns = [_lists(block.tokens, block.ids, pa.int32()), _lists(np.diff(indptr), lengths, pa.int32())]
    further = ((name, _values(name, block, lengths, file_rows.length)) for name in schema.names[2:])
    columns += [_lists(block.tokens, values, COLUMNS[name]) for name, values in further]
    return pa.table(columns, schema)


def _values(name: str, block: IdBlock, lengths: np.ndarray, length: int) -> np.ndarray:
    """The values of a further column, (T,). lengths: (q,) of each document. length: L."""
    tokens = np.arange(len(block.ids))
    if name == "position_ids":
        return tokens - (np.cumsum(lengths) - lengths).repeat(lengths)
    if name == "attention_mask" or block.trained is None:
        trained = np.ones(len(tokens), bool)
    else:
        trained = block.trained[block.filled(length)]
    return np.where(trained, block.ids.astype(np.int32), np.int32(IGNORED)) if name == "labels" else trained


def _lists(sizes: np.ndarray, values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Lists of these sizes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    typed = values.astype(kind.to_pandas_dtype(), copy=False)
    flat = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(typed)])
    return pa.Array.from_buffers(_lists_of(kind), len(sizes), [None, pa.py_buffer(offsets)], children=[flat])


PARQUET = Format(
    name="parquet",
    write=_write,
    contiguous_ranks=True,
    masks=True,
)
