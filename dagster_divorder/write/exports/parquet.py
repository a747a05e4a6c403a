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
    """A function per further column that returns its values, (T,). lengths: (Q,) of each document. length: L."""
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
    """A writer of tables to a file; the caller closes it."""
    import pyarrow.parquet as pq

    # Ids have too many distinct values for a dictionary. Compression gains little for its time.
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
    """Rows of `schema_with(further)`; int32 arrays are not copied. ids: (T,) without padding. tokens: per row, (n,).
    lengths: of each document, (Q,). counts: documents in each row, (n,). further: values by column, (T,) each."""
    columns = [_lists(tokens, ids), _lists(counts, lengths)]
    columns += [_lists(tokens, values, COLUMNS[name]) for name, values in further.items()]
    return pa.table(columns, schema_with(further))


def _lists(sizes: np.ndarray, values: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    """Lists of these sizes. kind: the values' type, by default int32."""
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
