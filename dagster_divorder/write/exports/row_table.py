"""The table of an export's rows, `_/train.TAG.rows.arrow`: what each holds, for readers that log the mix or share rows.

An Arrow file, a row for each row of the files: `tokens` int32, without padding; `counted` int32, those that shares
count; `documents` int32; `attention` float64, the squared lengths of its documents. For each trait `TRAIT.values`
list<int32>, the values in the row, rising, and `TRAIT.tokens` list<int32>, the counted tokens of each. The schema's
metadata has the values' names: `traits`, JSON, trait -> names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.core.arrow import plain_array
from dagster_divorder.core.measure.runs import ReadRuns, RunCounter
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.rows import Rows

BATCH_ROWS = 1 << 16
"""Rows of a record batch; one is in memory at a time."""
LISTS = pa.list_(pa.int32())


def stage_row_table(folder: OutputFolder, name: str, rows: Rows, traits: Traits, counted: RunCounter) -> None:
    """Stage the table. traits: of the stream's items."""
    lists = [(f"{trait}.{part}", LISTS) for trait in traits.codes for part in ("values", "tokens")]
    numbers = [
        ("tokens", pa.int32()),
        ("counted", pa.int32()),
        ("documents", pa.int32()),
        ("attention", pa.float64()),
    ]
    names = orjson.dumps({trait: list(values) for trait, values in traits.names.items()})
    schema = pa.schema(numbers + lists, metadata={"traits": names})

    def write(file: IO[bytes]) -> None:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(file, schema, options=options) as writer:
            for columns in _batches(rows, traits, counted):
                writer.write_batch(pa.record_batch(columns, schema))

    folder.stage(name, write)


def _batches(rows: Rows, traits: Traits, counted: RunCounter) -> Iterator[list[pa.Array]]:
    for first in range(0, len(rows), BATCH_ROWS):
        edges = rows.runs.indptr[first : first + BATCH_ROWS + 1]
        runs, size = slice(edges[0], edges[-1]), len(edges) - 1
        row = np.repeat(np.arange(size), np.diff(edges))
        item, tokens = rows.runs.document[runs], rows.runs.length[runs]
        weight = counted(ReadRuns(item, rows.runs.start[runs], tokens, edges - edges[0]))
        yield [
            plain_array(np.bincount(row, tokens, size).astype(np.int32)),
            plain_array(np.bincount(row, weight, size).astype(np.int32)),
            plain_array(np.bincount(row, minlength=size).astype(np.int32)),
            plain_array(np.bincount(row, tokens.astype(np.float64) ** 2, size)),
            *(
                column
                for codes in traits.codes.values()
                for column in _by_value(row, codes[item], weight, size)
            ),
        ]


def _by_value(row: np.ndarray, code: np.ndarray, weight: np.ndarray, size: int) -> tuple[pa.Array, pa.Array]:
    """The values of one trait in each of `size` rows, and their tokens."""
    values = int(code.max(initial=0)) + 1
    cell, inverse = np.unique(row * values + code, return_inverse=True)
    offsets = np.searchsorted(cell, np.arange(size + 1) * values).astype(np.int32)
    tokens = np.bincount(inverse, weight, len(cell)).astype(np.int32)
    return tuple(
        pa.ListArray.from_arrays(plain_array(offsets), plain_array(part.astype(np.int32)))
        for part in (cell % values, tokens)
    )
