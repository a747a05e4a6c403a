"""Trait codes: one small whole number a record for each trait that an order balances.

Numbers are cut into quantile bins (length, a quality score, a year); other values are categories (cluster, source,
language, a flag). In both, "missing" is a value too.

Letters: N records, J trait values. Codes are int32 (N,) in [0, J).
Guarantee: codes depend on the column's values alone, not on the order or the chunking of the records.
Cost: numbers O(N log N) for the edges (one sort), O(N log J) for the codes; categories O(N).
Source: the length histogram of Don't Shuffle, Optimize (quantile bins over documents, not over tokens).
Known weakness: appended data changes the ranks of categories, and so their codes; bins stay while `edges` are pinned.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.arrow import is_number, is_text, plain_array
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Edges = NDArray[Any]

MAX_CATEGORIES = 1000
"""A column with more distinct whole numbers is not a category."""
_MAX_WHOLE = 1 << 63
"""Digits of whole numbers below this fit int64."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits of N records in input order: `tokens` int64 (N,); `counted` int64 (N,), the tokens that shares count: of
    conversations those that are trained on; `codes[trait]` int32 (N,) in [0, len(names[trait]))."""

    tokens: NDArray[np.int64]
    counted: NDArray[np.int64]
    codes: dict[str, NDArray[np.int32]]
    names: dict[str, tuple[str, ...]]

    def sizes(self) -> dict[str, int]:
        """Number of values of each trait."""
        return {trait: len(names) for trait, names in self.names.items()}

    def take(self, records: NDArray[np.int64]) -> "Traits":
        """The traits of these records."""
        codes = {trait: codes[records] for trait, codes in self.codes.items()}
        return Traits(self.tokens[records], self.counted[records], codes, self.names)


@dataclass(frozen=True, eq=False)
class Codes:
    """codes: int32 (N,) in [0, J). names: J readable names, by code. edges: of a binned number; else None."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]
    edges: Edges | None = None


@dataclass(frozen=True, eq=False)
class ManyCodes:
    """Several values a record: record i has codes[indptr[i]:indptr[i + 1]], at least one.

    indptr: int64 (N + 1,). codes: int32 (nnz,) in [0, J). names: J readable names, by code.
    """

    indptr: NDArray[np.int64]
    codes: NDArray[np.int32]
    names: tuple[str, ...]

    def shared(self, amounts: NDArray[Any]) -> NDArray[Any]:
        """Splits each record's amount, int (N,), among its values, int (nnz,). Parts are whole, differ by at most 1,
        and sum to the amount."""
        widths = np.diff(self.indptr)
        nth = np.arange(self.indptr[-1]) - self.indptr[:-1].repeat(widths)
        part, over = np.divmod(amounts, widths)
        return part.repeat(widths) + (nth < over.repeat(widths))


def quantile_edges(values: ArrayLike, bins: int) -> Edges:
    """Inner edges (<= bins - 1,), `_unrounded` and strictly rising, that cut (N,) numbers into equally full bins.

    Edge b is the value at rank b N / bins, so if no value repeats, the bins' sizes differ by at most 1. Equal edges
    become one, and an edge at the minimum is dropped, so no bin is empty. NaN is ignored.
    """
    numbers = _unrounded(values)
    numbers = np.sort(numbers[~np.isnan(numbers)])
    if numbers.size == 0:
        return np.zeros(0)
    cuts = np.unique(numbers[np.arange(1, bins) * numbers.size // bins])
    return cuts[cuts > numbers[0]]


def bin_codes(values: ArrayLike, edges: ArrayLike) -> NDArray[np.int32]:
    """Bin of each number, int32 (N,): b where edges[b-1] <= value < edges[b]; NaN has len(edges) + 1."""
    numbers, cuts = _unrounded(values), _unrounded(edges)
    codes = np.searchsorted(cuts, numbers, side="right").astype(np.int32)
    codes[np.isnan(numbers)] = len(cuts) + 1
    return codes


def _unrounded(values: ArrayLike) -> NDArray[Any]:
    """Numbers as float64; whole numbers unchanged if float64 would round them."""
    numbers = np.asarray(values)
    floats = numbers.astype(np.float64, copy=False)
    return numbers if numbers.dtype.kind in "iu" and np.abs(floats).max(initial=0) >= 1 << 53 else floats


def category_codes(
    values: "pa.Array | pa.ChunkedArray", max_values: int = MAX_CATEGORIES, *, balanced: str = ""
) -> Codes:
    """Codes of a column of text, booleans or other plain values (N,).

    Names are sorted by falling frequency, equally frequent ones bytewise. With more than `max_values` distinct values,
    the max_values - 1 most frequent keep their names and the others share "(other)". Nulls are "(missing)". Both come
    last. balanced: the column's name, if an order balances it; its values then have to repeat.

    Raises:
        InputError: a balanced column has more than `max_values` distinct values, and most of them occur once.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _plain(values)
    # large_string stays: a chunk may be too big for the 32-bit offsets of string.
    text = column if pa.types.is_large_string(column.type) else column.cast(pa.string())
    parts = text.dictionary_encode().unify_dictionaries().chunks
    distinct = parts[0].dictionary if parts else pa.array([], pa.string())
    index = _filled([part.indices for part in parts], np.int32(len(distinct)))
    counts = np.bincount(index, minlength=len(distinct) + 1)
    n_missing = counts[-1]
    present = len(index) - int(n_missing)
    if balanced and len(distinct) > max_values and 2 * len(distinct) > present:
        raise InputError(
            f"{balanced} has {len(distinct):,} distinct values in {present:,} rows, so no window can carry their mix; "
            "balance values that repeat, such as a language or a site, or give rare values one name"
        )

    kept = len(distinct) if len(distinct) <= max_values else max_values - 1
    ranking = pa.table({"count": plain_array(counts[:-1]), "name": distinct})
    by = [("count", "descending"), ("name", "ascending")]
    ranked = pc.select_k_unstable(ranking, kept, by) if kept else pa.array([], pa.uint64())
    names = distinct.take(ranked).to_pylist()
    code_of = np.full(len(distinct) + 1, len(names), np.int32)
    code_of[np.from_dlpack(ranked)] = np.arange(kept, dtype=np.int32)
    if kept < len(distinct):
        names.append(_unused("(other)", names))
    if n_missing:
        code_of[-1] = len(names)
        names.append(_unused("(missing)", names))
    return Codes(code_of[index], tuple(names))


def _filled(parts: "Sequence[pa.Array]", null: np.number[Any]) -> NDArray[Any]:
    """Chunks of numbers as one array of the type of `null`, which replaces nulls."""
    import pyarrow.compute as pc

    fill = plain_array(np.array([null]))[0]
    return np.concatenate(
        [np.zeros(0, null.dtype), *(np.from_dlpack(pc.coalesce(part, fill)) for part in parts)]
    )


def column_codes(
    values: "pa.Array | pa.ChunkedArray",
    *,
    bins: int,
    edges: ArrayLike | None = None,
    name: str = "the column",
    balanced: bool = False,
) -> Codes:
    """Codes of any column (N,): quantile bins for a number, categories for text and booleans.

    bins: most bins of a number. edges: pinned bin edges, from an earlier `Codes.edges`, used instead of this column's
    own. name: the column's name in messages. balanced: whether an order balances it (`category_codes`).

    Raises:
        InputError: the column is not of numbers, text or booleans, or the values of a balanced column hardly repeat.
    """
    import pyarrow as pa

    column, types = _plain(values), pa.types
    kind = column.type
    if is_number(kind):
        numbers = _filled(column.cast("double", safe=False).chunks, np.float64(np.nan))
        missing = np.isnan(numbers)
        for whole in () if types.is_floating(kind) else (np.uint64, np.int64):
            with suppress(pa.ArrowInvalid):
                numbers = _filled(column.cast(pa.from_numpy_dtype(whole)).chunks, whole(0))
        cuts = quantile_edges(numbers[~missing], bins) if edges is None else _unrounded(edges)
        if edges is None and not cuts.size and bins > 1:
            # A rare value among equal ones, such as a label of 1 among zeros, is cut off.
            cuts = np.unique(numbers[~missing])[1:2]
        codes = bin_codes(numbers, cuts)
        codes[missing] = len(cuts) + 1
        return Codes(codes, _bin_names(cuts, types.is_integer(kind) or cuts.dtype.kind in "iu"), cuts)
    if not (is_text(kind) or types.is_boolean(kind) or types.is_null(kind)):
        raise InputError(
            f"{name} holds {kind}; a trait is made of numbers, text or booleans: convert it to one of these"
        )
    return category_codes(column, balanced=name if balanced else "")


def as_category(column: "pa.ChunkedArray", most: int = MAX_CATEGORIES) -> "pa.ChunkedArray":
    """Whole numbers as text (1 and 1.0 as "1") if all are whole and at most `most` are distinct; else the column
    unchanged."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    kind = column.type
    whole = types.is_integer(kind) or (types.is_decimal(kind) and kind.scale == 0)
    if not whole and types.is_floating(kind):
        whole = is_whole(column)
    return number_text(column) if whole and pc.count_distinct(column).as_py() <= most else column


def is_whole(numbers: "pa.ChunkedArray") -> bool:
    """Whether numbers are whole, and one is not null."""
    import pyarrow.compute as pc

    return bool(pc.all(_are_whole(numbers), min_count=1).as_py())


def number_text(number: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Numbers as their shortest text; whole ones with all digits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = number.cast(pa.large_string())
    if not pa.types.is_floating(number.type):
        return text
    digits = number.cast(pa.int64(), safe=False).cast(pa.large_string())
    return pc.if_else(pc.fill_null(_are_whole(number), False), digits, text)


def _are_whole(number: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Whether each number is whole and fits int64, bool; null for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    number = number.cast(pa.float64())
    return pc.and_(pc.equal(pc.floor(number), number), pc.less(pc.abs(number), float(_MAX_WHOLE)))


def _plain(values: "pa.Array | pa.ChunkedArray") -> "pa.ChunkedArray":
    """In chunks, without dictionary encoding."""
    import pyarrow as pa

    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _bin_names(edges: Edges, whole: bool) -> tuple[str, ...]:
    """Names of the len(edges) + 2 bin codes: the ranges, and "(missing)"."""
    if len(edges) == 0:
        return ("all", "(missing)")
    digits = next(d for d in (6, 9, 12, 17) if d == 17 or len({f"{e:.{d}g}" for e in edges}) == len(edges))
    at = [f"{int(e)}" if whole and np.isfinite(e) else f"{e:.{digits}g}" for e in edges]
    if whole:
        upper = [f"{int(e) - 1}" for e in edges]
        inner = [
            low if low == high else f"{low} to {high}" for low, high in zip(at[:-1], upper[1:], strict=True)
        ]
    else:
        inner = [f"{low} to below {high}" for low, high in pairwise(at)]
    return (f"below {at[0]}", *inner, f"{at[-1]} and above", "(missing)")


def _unused(name: str, names: list[str]) -> str:
    while name in names:
        name = f"({name})"
    return name
