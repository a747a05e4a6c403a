"""A table of any kind as Arrow columns, and its rows in another order as a table of the same kind.

Letters: N rows, D dims.

Known kinds: pandas and polars DataFrames, pyarrow Tables and RecordBatches, `datasets.Dataset`, a dict of columns
(lists, NumPy, Arrow, pandas or polars; NumPy also (N, D)), and a list of dicts. Any other object with Arrow's C stream
(`__arrow_c_stream__`) comes back as a pyarrow Table.

Columns are named as in `core.fields`: `meta.source` is the field `source` of the struct `meta`. Names that are not
strings are converted; dots join the levels of a pandas MultiIndex.

Guarantee: only named columns are converted; a `Dataset` is read through its indices, whatever its format. Rows in
another order keep their types. What Arrow cannot convert or put in another order is refused.
Cost: opening is free; a column costs what its library needs to convert it to Arrow. Arrow imports pandas to convert
lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.arrow import plain_array, text_array
from dagster_divorder.core.fields import column_at, columns_of
from dagster_divorder.core.order.strategy import nearest
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Order = NDArray[np.int64]

KINDS = (
    "a pandas or polars DataFrame, a pyarrow Table, a datasets.Dataset, a dict of columns, a list of dicts, or "
    "anything with __arrow_c_stream__"
)
INSTEAD = {
    ("polars", "LazyFrame"): "table.collect() makes a DataFrame",
    ("polars", "Series"): "table.to_frame() makes a DataFrame",
    ("pandas", "Series"): "table.to_frame() makes a DataFrame",
    ("datasets", "DatasetDict"): 'give one of its splits: table["train"]',
    ("datasets", "IterableDataset"): "it is a stream, which divorder.balance(table, by=...) orders",
    ("pyarrow.dataset", "Dataset"): "table.to_table() reads it",
    ("numpy", "ndarray"): 'name its columns: {"embedding": table}',
    ("builtins", "str"): "read the file first, such as pandas.read_json(path, lines=True)",
    ("pathlib", "Path"): "read the file first, such as pandas.read_json(path, lines=True)",
}
"""Classes that are often taken for tables, and how to make a table of each."""


@dataclass(frozen=True, eq=False)
class Table:
    """rows: N. names: of the columns; for a list of dicts, the keys of any row. field: from a field's name to its
    column (N,), or None. take: from an order, int64 (n,), to its rows, as the kind of table that was opened."""

    rows: int
    names: tuple[str, ...]
    field: Callable[[str], pa.ChunkedArray | None]
    take: Callable[[Order], Any]

    def column(self, name: str) -> pa.ChunkedArray:
        """A field's column, (N,).

        Raises:
            InputError: there is no such field, several have its name, or its values are not of one type.
        """
        column = self.field(name)
        if column is None:
            columns = ", ".join(self.names) or "none"
            raise InputError(
                f"the table has no column {name!r}; its columns are {columns}{nearest(name, self.names)}"
            )
        return column

    def first(self, rows: int) -> Table:
        """The first `rows` rows; all if there are fewer, or if Arrow cannot take some."""
        with suppress(InputError):
            return open_table(self.take(np.arange(min(self.rows, rows))))
        return self


def open_table(table: Any) -> Table:
    """Opens any table; returns a `Table` unchanged.

    Raises:
        InputError: its kind is unknown; the message says how to make a table of it.
    """
    import pyarrow as pa

    if isinstance(table, Table):
        return table
    for (module, name), remedy in INSTEAD.items():
        if _is(table, module, name):
            raise InputError(f"table is a {module}.{name}; expected {KINDS}: {remedy}")
    if _is(table, "pandas", "DataFrame"):
        return _of_columns(
            len(table),
            [_name(name) for name in table.columns],
            lambda at: _pandas_array(table.iloc[:, at]),
            lambda order: table.iloc[order],
        )
    if _is(table, "polars", "DataFrame"):
        return _of_columns(
            table.height, table.columns, lambda at: table.to_series(at).to_arrow(), lambda order: table[order]
        )
    if _is(table, "datasets", "Dataset"):
        return _of_columns(
            len(table),
            table.column_names,
            lambda at: _dataset_column(table, table.column_names[at]),
            table.select,
        )
    if isinstance(table, Mapping):
        return _of_dict(table)
    if not isinstance(table, pa.Table | pa.RecordBatch) and hasattr(table, "__arrow_c_stream__"):
        with _readable("the table's C stream", "a stream of rows that is not yet read"):
            table = pa.table(table)
    if isinstance(table, pa.Table | pa.RecordBatch):
        return _of_columns(
            table.num_rows, table.schema.names, table.column, lambda order: table.take(plain_array(order))
        )
    if isinstance(table, Sequence) and not isinstance(table, str | bytes):
        return _of_rows(table)
    raise InputError(f"table is {type(table).__name__}; expected {KINDS}")


def _is(table: Any, module: str, name: str) -> bool:
    """Whether a table is an instance of class `name` of `module`, without loading the module."""
    return isinstance(table, getattr(sys.modules.get(module), name, ()))


def _name(name: Any) -> str:
    """A column's name in messages and in `by`."""
    return ".".join(map(str, name)) if isinstance(name, tuple) else str(name)


def _of_columns(
    rows: int, names: Sequence[str], column: Callable[[int], Any], take: Callable[[Order], Any]
) -> Table:
    """column: from a column's place to the column, as Arrow."""
    import pyarrow as pa

    def field(name: str) -> pa.ChunkedArray | None:
        parents = [name] if name in names else columns_of([name], names)
        places = [place for place, parent in enumerate(names) if parent in parents]
        with _readable(f"column {name!r}"):
            columns = [_chunked(column(place)) for place in places]
        found = column_at(pa.table(columns, [names[place] for place in places]), name) if places else None
        return None if found is None else _chunked(found)

    moved = _readable("a column", "a type that Arrow can put in another order: cast it")(take)
    return Table(rows, tuple(names), field, moved)


def _of_dict(table: Mapping[Any, Any]) -> Table:
    names, columns = [_name(name) for name in table], list(table.values())
    for name, column in zip(names, columns, strict=True):
        if isinstance(column, str | bytes | Mapping) or not hasattr(column, "__len__"):
            raise InputError(
                f"table[{name!r}] is {type(column).__name__}; expected the values of a column, one for each row, in a "
                "list or an array"
            )
    sizes = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the columns have {sizes} rows; expected the same number in each")
    return _of_columns(
        next(iter(sizes.values()), 0),
        names,
        lambda at: to_arrow(columns[at]),
        lambda order: {name: _take(column, order) for name, column in table.items()},
    )


def _of_rows(table: Sequence[Any]) -> Table:
    for at, row in enumerate(table):
        if not isinstance(row, dict):
            raise InputError(f"row {at} of the table is {type(row).__name__}; expected {KINDS}")
    if not table:  # no row says which columns there are
        return Table(0, (), lambda name: _chunked(to_arrow([])), lambda order: [])
    keys = [*dict.fromkeys(key for row in table for key in row)]
    return _of_columns(
        len(table),
        [_name(key) for key in keys],
        lambda at: to_arrow([row.get(keys[at]) for row in table]),
        lambda order: [table[at] for at in order.tolist()],
    )


@contextmanager
def _readable(of: str, wanted: str = "values of one type: convert them, to strings say") -> Iterator[None]:
    """Turns errors of Arrow into an InputError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"{of} cannot be read: {error}; expected {wanted}") from error


def _take(column: Any, order: Order) -> Any:
    """The values of a dict's column in an order, as the kind of the column."""
    import pyarrow as pa

    if isinstance(column, list | tuple):
        return type(column)(column[at] for at in order.tolist())
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column.take(plain_array(order))
    return column.iloc[order] if hasattr(column, "iloc") else column[order]


def _chunked(column: Any) -> pa.ChunkedArray:
    """A column as the storage of its extension type, in a form that Arrow can compute with."""
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        column = pa.chunked_array([column])
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    kind = column.type
    if pa.types.is_dictionary(kind) and pa.types.is_string_view(kind.value_type):
        # Polars streams its texts as string views, with which Arrow cannot compute.
        column = column.cast(pa.dictionary(kind.index_type, pa.large_string()))
    return column.cast(pa.large_string()) if pa.types.is_string_view(kind) else column


def _pandas_array(series: Any) -> pa.Array | pa.ChunkedArray:
    import pyarrow as pa

    if hasattr(series, "cat"):
        # Arrow cannot hold some kinds of categories, such as the intervals of `pandas.cut`.
        series = series.cat.rename_categories(list(map(str, series.cat.categories)))
    if series.dtype == object:
        return to_arrow(series.tolist())
    return pa.array(series, from_pandas=True)


def _dataset_column(dataset: Any, name: str) -> pa.ChunkedArray:
    """A column of a `datasets.Dataset` as stored, whatever its format; `ClassLabel` labels by name."""
    import pyarrow as pa

    column = dataset.select_columns([name]).with_format("arrow")[:].column(0)
    names = getattr(dataset.features[name], "names", None)
    if names is None or not pa.types.is_integer(column.type):
        return column
    import pyarrow.compute as pc

    # -1 means no label.
    known = pc.if_else(pc.greater_equal(column, 0), column, None)
    return text_array(names).take(known).dictionary_encode()


def to_arrow(values: Any) -> pa.Array | pa.ChunkedArray:
    """A column as Arrow: a list, a NumPy array (N,) or (N, D), or any object that Arrow can read.

    Raises:
        pa.ArrowException, OverflowError, TypeError, ValueError: its values do not share one Arrow type.
    """
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if "pandas" in type(values).__module__.split("."):
        return _pandas_array(sys.modules["pandas"].Series(values))
    if hasattr(values, "__arrow_c_stream__"):
        return pa.chunked_array(values)
    if np.ma.isMaskedArray(values):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return _list_array(values)
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] and array.dtype.kind in "iuf":
        return pa.FixedSizeListArray.from_arrays(plain_array(array.ravel()), array.shape[1])
    if array.ndim != 1:
        raise ValueError(f"it has the shape {array.shape} of {array.dtype}; expected (N,), or numbers (N, D)")
    if array.dtype.kind in "OUT":
        return _list_array(array.tolist())
    return pa.array(array, from_pandas=True)


def _list_array(values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    # NaN is missing among texts and numbers, and no number of a vector.
    nested = any(isinstance(value, list | tuple | np.ndarray) for value in values)
    return pa.array(values, from_pandas=not nested)
