"""The user's own Parquet files, whose rows belong to records by a key column.

The key column names the record of each row: by the records' own id, under its field's name, or by `record_id`
(hexadecimal, as in `load_results().documents`). Rows count from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from dagster_divorder.core.arrow import is_text
from dagster_divorder.corpus.columns import as_id
from dagster_divorder.errors import InputError
from dagster_divorder.store.ids import hash_all, words

if TYPE_CHECKING:
    import pyarrow as pa

KeyedBy = Literal["id", "record_id"]
"""`id` means the records' own ids, whatever their field is called."""


def read_schema(path: Path) -> tuple[pa.Schema, int]:
    """(the columns of a Parquet file; its number of rows). Raises InputError: the file is not Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}; write or copy it again") from error


def key_column(path: Path, schema: pa.Schema, id_field: str | None) -> tuple[KeyedBy, str]:
    """How the rows of a file are keyed, and the key column. id_field: the field of the records' own ids. Raises
    InputError: the column is missing or has another type."""
    import pyarrow as pa

    keys: dict[KeyedBy, str | None] = {"id": id_field, "record_id": "record_id"}
    keyed_by, key = next(((by, key) for by, key in keys.items() if key in schema.names), (None, None))
    if keyed_by is None or key is None:
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise InputError(
            f"{path} has the columns {columns}; expected a key column for each row's vector: record_id, as in "
            f"load_results(store).documents, or {repr(id_field) if id_field else 'the field of input.id_field'}, your "
            "own ids"
        )
    if schema.names.count(key) > 1:
        raise InputError(f"{path} has several columns {key!r}; rename all but one")
    kind = schema.field(key).type
    text = kind.value_type if pa.types.is_dictionary(kind) else kind
    fits, expected = is_text(text), "strings of 32 hexadecimal digits"
    if keyed_by == "id":
        fits, expected = is_text(text) or pa.types.is_integer(text), "strings or whole numbers"
    if not fits:
        raise InputError(f"{path}: the column {key!r} has type {kind}; expected {expected}")
    return keyed_by, key


def key_values(path: Path, keyed_by: KeyedBy, key: str, column: pa.Array, first: int) -> np.ndarray:
    """Keys of n consecutive rows from row `first` on, uint64 (n, 2): ids, or hashes of the text of own ids. Raises
    InputError: a key is null or not an id."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if (at := first_true(column.is_null())) >= 0:
        raise InputError(
            f"{path}: {key!r} is null in row {first + at}; expected the key of this row's vector: fill it in, or "
            f"leave out the row"
        )
    if keyed_by == "id":
        return words(hash_all(str(as_id(value)).encode() for value in column.to_pylist()))
    text = column.cast(pa.large_string())
    if (at := first_true(pc.invert(pc.match_substring_regex(text, "^[0-9a-fA-F]{32}$")))) >= 0:
        raise InputError(
            f"{path}: {key!r} is {text[at].as_py()!r} in row {first + at}; expected 32 hexadecimal digits, as in "
            f"load_results(store).documents"
        )
    return words(bytes.fromhex("".join(text.to_pylist())))


def read_columns(path: Path, columns: Sequence[str], block: int) -> Iterator[tuple[int, list[pa.Array]]]:
    """(first row, columns) of at most `block` consecutive rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = 0
    try:
        # Through a buffer; otherwise a whole row group, often the whole file, is in memory.
        with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            for batch in file.iter_batches(block, columns=columns):
                yield first, batch.select(columns).columns
                first += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is damaged after row {first}: {error}; write or copy it again") from error


def first_true(flags: pa.BooleanArray) -> int:
    """Position of the first true flag, -1 if none is true."""
    return int(flags.index(True).as_py())
