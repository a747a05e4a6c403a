"""Columns of a table as trait codes, which an order balances.

Letters: N rows, J trait values, D dims, K clusters.

| a column of | is |
|---|---|
| text, booleans, categoricals (of numbers too), `ClassLabel` | categories |
| whole numbers, also as floats: at most MOST_CATEGORIES different ones, some of them repeated | categories |
| other numbers, decimals | quantile bins |
| dates, times, durations | quantile bins, by time |
| lists of text, whole numbers or booleans | several values a row, which share its tokens |
| vectors: lists of floats of one length, NumPy (N, D) | clusters (spherical k-means), and coordinates |

Nulls and NaN are one value of their own, as are null and empty lists. Rows without a vector have their own cluster.

An order sees two traits of vectors: the cluster of each row, and its direction along COMPONENTS principal components,
as coordinates. Coordinates bring unseen features nearer to the whole than clusters alone do (docs/decisions/tables.md).
Strategies that take no coordinates see only the clusters.

Guarantee: the same values give the same codes, whatever the kind of the table and however its columns are chunked.
Known weakness: more than MOST_CATEGORIES distinct whole numbers are taken for sizes, even if they name things (classes,
ids): give those as text or as a categorical.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.arrow import is_list, is_text
from dagster_divorder.core.order.traits import Codes, ManyCodes, as_category, category_codes, column_codes
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import Table
from dagster_divorder.view.words import clip

if TYPE_CHECKING:
    import pyarrow as pa

By = str | Iterable[str] | Mapping[str, float]
TraitCodes = Codes | ManyCodes

MOST_CATEGORIES = 64
"""Most distinct whole numbers that are categories; more are sizes."""
COMPONENTS = 64
"""Principal components of vectors that an order sees. With more, windows are nearer to the whole and cost more."""
SAMPLE = 1 << 14
"""Most vectors that principal components are fitted to."""


@dataclass(frozen=True, eq=False)
class VectorCodes(Codes):
    """Codes of the clusters of vectors. directions: float32 (N, C), of length 1, or 0 for a row without a vector."""

    directions: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))


def weights_of(by: By) -> dict[str, float]:
    """The weight of each balanced column, by its name.

    Raises:
        InputError: `by` names no column or one twice, or is no str, list or mapping.
    """
    if isinstance(by, str):
        return {by: 1.0}
    # A column itself, such as table["topic"], is an array: it has a dtype.
    names = (
        list(by) if isinstance(by, Iterable) and not (isinstance(by, bytes) or hasattr(by, "dtype")) else []
    )
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"by is {clip(repr(by), 60)}; expected the name of a column, a list of names, or a mapping of names to "
            'weights: {"topic": 1, "length": 0.5}'
        )
    if len(set(names)) < len(names):
        raise InputError(f"by names {max(names, key=names.count)!r} twice; expected each column once")
    if not isinstance(by, Mapping):
        return dict.fromkeys(names, 1.0)
    for name, weight in by.items():
        if not isinstance(weight, Real):
            raise InputError(f"the weight of {name!r} is {weight!r}; expected a number above 0")
    return {name: float(weight) for name, weight in by.items()}


def trait_of(table: Table, name: str, *, bins: int, clusters: int, seed: int) -> TraitCodes:
    """Codes of the rows by one column. Nulls aside, numbers get at most `bins` codes and vectors at most `clusters`.

    Raises:
        InputError: the column does not exist, its type makes no trait (the message lists the types that do), or its
            values hardly repeat (`category_codes`).
    """
    import pyarrow as pa

    types = pa.types
    column = _without_nan(table.column(name))
    kind = column.type
    if types.is_struct(kind):
        fields = ", ".join(f"{name}.{child.name}" for child in kind)
        raise InputError(
            f"column {name!r} holds {kind}; expected plain values: name one of its fields, {fields}"
        )
    if types.is_temporal(kind) and not types.is_interval(kind):
        # Dates, times and durations as whole numbers that rise with time.
        narrow = types.is_date32(kind) or types.is_time32(kind)
        whole = column.cast(pa.int32() if narrow else pa.int64())
        return column_codes(whole, bins=bins, name=f"column {name!r}")
    if is_list(kind):
        if types.is_floating(kind.value_type):
            return _vector_trait(name, column, clusters, seed)
        return _list_trait(name, column)
    return _value_trait(name, column, bins)


def _value_trait(name: str, column: pa.ChunkedArray, bins: int) -> Codes:
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, column.type
    if types.is_dictionary(kind) or is_text(kind) or types.is_boolean(kind) or types.is_null(kind):
        return category_codes(column, balanced=f"column {name!r}")
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
        raise InputError(
            f"column {name!r} holds {kind}; expected text, numbers, booleans, dates, lists of these or vectors: "
            f"{'decode it to text' if binary else 'make a column of these'}"
        )
    # Numbers that all differ, such as the sizes in a small table, are not categories.
    if pc.count_distinct(column).as_py() < len(column) - column.null_count:
        column = as_category(column, MOST_CATEGORIES)
    return column_codes(column, bins=bins, name=f"column {name!r}", balanced=True)


def _list_trait(name: str, column: pa.ChunkedArray) -> ManyCodes:
    """Codes of lists (N,); a list that is null or empty holds one null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, inner = pa.types, column.type.value_type
    values = inner.value_type if types.is_dictionary(inner) else inner
    if not (is_text(values) or types.is_integer(values) or types.is_boolean(values) or types.is_null(values)):
        raise InputError(
            f"column {name!r} holds {column.type}; expected lists of text, whole numbers or booleans, or of floats of "
            "one length: make a column of these"
        )
    widths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    flat = pc.list_flatten(column)
    flat_text = flat if types.is_dictionary(inner) else flat.cast(pa.large_string())
    flat_codes = category_codes(flat_text, balanced=f"column {name!r}")
    indptr = np.concatenate([[0], np.cumsum(np.maximum(widths, 1))])
    names, none = flat_codes.names, indptr[:-1][widths == 0]
    if len(none) and not pc.any(pc.is_null(flat)).as_py():
        names = (*names, "(missing)")
    codes = np.full(indptr[-1], len(names) - 1, np.int32)
    full = np.ones(len(codes), bool)
    full[none] = False
    codes[full] = flat_codes.codes
    return ManyCodes(indptr, codes, names)


def vectors_of(name: str, column: pa.ChunkedArray) -> NDArray[np.float32]:
    """The n rows that are not null, lists of floats, as float32 (n, D) vectors, scaled to numbers of at most 1.

    Raises:
        InputError: vectors differ in length, or hold NaN, infinity or nulls.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = column.filter(pc.is_valid(column))
    widths = pc.list_value_length(lists).to_numpy()
    if len(widths) and (widths != widths[0]).any():
        raise InputError(
            f"column {name!r} holds lists of {widths.min()} to {widths.max()} floats; expected vectors of one length, "
            "or lists of text or whole numbers"
        )
    flat = pc.list_flatten(lists)
    if flat.null_count:
        raise InputError(
            f"column {name!r} holds vectors with nulls in them; expected numbers, or null for a whole row"
        )
    values = flat.cast(pa.float32()).to_numpy()
    vectors = values.reshape(len(widths), -1) if len(widths) else np.zeros((0, 1), np.float32)
    if not vectors.shape[1]:
        raise InputError(f"column {name!r} holds vectors without dims; expected at least one")
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        rows = np.flatnonzero(column.is_valid().to_numpy())
        raise InputError(
            f"row {rows[np.argmin(finite)]} of column {name!r} holds NaN or infinity; expected finite numbers, or null "
            "for a whole row"
        )
    # Only directions count. Scaling by a power of two rounds nothing, and no square then overflows.
    _, power = np.frexp(np.abs(vectors).max(initial=0.0))
    return np.ldexp(vectors, -power)


def _vector_trait(name: str, column: pa.ChunkedArray, clusters: int, seed: int) -> VectorCodes:
    from dagster_divorder.core.topics import cluster
    from dagster_divorder.core.vectors import pca

    vectors, valid = vectors_of(name, column), column.is_valid().to_numpy().astype(bool)
    codes, names = np.zeros(len(column), np.int32), list[str]()
    directions = np.zeros((len(column), min(COMPONENTS, vectors.shape[1])), np.float32)
    if len(vectors):
        fit = cluster.fit(vectors, clusters, seed=seed)
        codes[valid], _ = cluster.assign(vectors, fit)
        names = [str(number) for number in range(len(fit.centroids))]
        sample = vectors
        if len(vectors) > SAMPLE:
            sample = vectors[np.random.default_rng(seed).choice(len(vectors), SAMPLE, replace=False)]
        along = pca.project(vectors, pca.fit(sample, COMPONENTS))
        directions[valid, : along.shape[1]] = along
    if column.null_count:
        codes[~valid] = len(names)
        names.append("(missing)")
    return VectorCodes(codes, tuple(names), directions=directions)


def _without_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers with null in place of NaN; 16-bit ones as 32-bit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type):
        return column
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    return pc.if_else(pc.is_nan(column), None, column)
