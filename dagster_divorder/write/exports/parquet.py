"""parquet: `input_ids` list<int32> and `seq_lengths` list<int32> (TRL's name for the lengths of the documents in a
sequence), a row a sequence. Read by `datasets`, transformers' Trainer, TRL, torchtitan and `dagster_divorder.torch`.

Short rows are not padded: a collator pads them and masks the padding. `exports.columns` names further columns, lists of
a value a token:

    labels                             int32: the id of a token that is trained on, -100 of any other
    assistant_masks, completion_mask   int8: 1 for a token that is trained on, 0 for any other
    position_ids                       int32: from 0 in each document of the sequence
    attention_mask                     int8: 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.file_rows import FileRows, IdBlock
from dagster_divorder.write.exports.format import Format, Options
from dagster_divorder.write.exports.raw import row_files, stage_trained
from dagster_divorder.write.exports.rows import Rows

if TYPE_CHECKING:
    import pyarrow.parquet as pq

GROUP_BYTES = 4 << 20
"""Bytes of ids in a row group; a reader of one row decodes its whole group."""


def _lists_of(kind: pa.DataType) -> pa.DataType:
    # Without nulls, or a reader would look for them at every id.
    return pa.list_(pa.field("element", kind, nullable=False))


COLUMNS = {
    "labels": pa.int32(),
    "assistant_masks": pa.int8(),
    "completion_mask": pa.int8(),
    "position_ids": pa.int32(),
    "attention_mask": pa.int8(),
}
"""Types of the values of further columns."""
IGNORED = -100
"""A label that counts in no loss."""


def schema_with(columns: Iterable[str] = ()) -> pa.Schema:
    """Of rows with further columns."""
    kinds = {"input_ids": pa.int32(), "seq_lengths": pa.int32()} | {name: COLUMNS[name] for name in columns}
    return pa.schema([pa.field(name, _lists_of(kind), nullable=False) for name, kind in kinds.items()])


SCHEMA = schema_with()


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    files = row_files(rows, options, np.dtype(np.int32), ".parquet")
    write = partial(_write_file, columns=options.columns)
    rows.stage(folder, {name: (span, write) for name, span in files.items()})
    stage_trained(rows, folder, options)
    columns = {"columns": list(options.columns)} if options.columns else {}
    return {"dtype": "int32", "rows_of_files": [end - first for first, end in files.values()], **columns}


def _write_file(
    file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes], *, columns: Sequence[str]
) -> None:
    schema, count = schema_with(columns), len(file_rows)
    # `schema.empty_table()` imports pandas.
    tables, rest = _tables(file_rows, blocks, columns), pa.Table.from_batches([], schema)
    group = group_rows(file_rows.length)
    with open_writer(file, schema) as writer:
        while count:
            wanted = min(count, group)
            while len(rest) < wanted:
                rest = pa.concat_tables([rest, next(tables)])
            writer.write_table(rest[:wanted], row_group_size=group)
            rest, count = rest[wanted:], count - wanted


def _tables(file_rows: FileRows, blocks: Iterator[IdBlock], columns: Sequence[str]) -> Iterator[pa.Table]:
    for block in blocks:
        end = block.first + len(block.tokens)
        indptr = file_rows.indptr[block.first : end + 1]
        lengths = file_rows.run_tokens[indptr[0] : indptr[-1]]
        values = _values(block, lengths, file_rows.length) if columns else {}
        yield table(
            block.ids, block.tokens, lengths, np.diff(indptr), {name: values[name]() for name in columns}
        )


def _values(block: IdBlock, lengths: np.ndarray, length: int) -> dict[str, Callable[[], np.ndarray]]:
    """Functions that make the values of each further column, (T,). lengths: (Q,) of each document. length: L."""
    trained = np.True_ if block.trained is None else block.trained[block.filled(length)]
    tokens = np.arange(len(block.ids))
    return {
        "labels": lambda: np.where(trained, block.ids.astype(np.int32), np.int32(IGNORED)),
        "assistant_masks": lambda: np.broadcast_to(trained, tokens.shape).astype(np.int8),
        "completion_mask": lambda: np.broadcast_to(trained, tokens.shape).astype(np.int8),
        "position_ids": lambda: tokens - (np.cumsum(lengths) - lengths).repeat(lengths),
        "attention_mask": lambda: np.ones(len(tokens), np.int8),
    }


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


def table(
    ids: np.ndarray,
    tokens: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    further: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> pa.Table:
    """Rows of `schema_with(further)`; int32 arrays are not copied. ids: (T,) without padding. tokens: (n,) of each row.
    lengths: (Q,) of each document. counts: (n,) documents of each row. further: (T,) each, by column."""
    columns = [_lists(tokens, ids), _lists(counts, lengths)]
    columns += [_lists(tokens, values, COLUMNS[name]) for name, values in further.items()]
    return pa.table(columns, schema_with(further))


def _lists(sizes: np.ndarray, values: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """Lists of these sizes. kind: of their values, by default int32."""
    kind = kind or pa.int32()
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    typed = values.astype(kind.to_pandas_dtype(), copy=False)
    flat = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(typed)])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(_lists_of(kind), len(offsets) - 1, buffers, children=[flat])


PARQUET = Format(
    name="parquet",
    write=_write,
    contiguous_ranks=True,
    masks=True,
)
