"""The trait rows of packed sequences: the items that an order of sequences balances.

Letters: S sequences, Q runs, N documents, J trait values over all traits.
Guarantee: exact; a row sums to the sequence's tokens in each group. Columns rise inside a row.
Cost: O(Q log of the values a sequence) a trait; 8 bytes an entry and two walks over the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.packing.pieces import PackedSequences
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def sequence_counts(
    packed: PackedSequences, codes: Mapping[str, ArrayLike], n_values: Mapping[str, int]
) -> tuple[csr_matrix, NDArray[np.int32]]:
    """(counts CSR (S, J), groups int32 (J,)): tokens of each trait value in each sequence, one group a trait.

    codes: name -> int (N,), the trait value of each document, in [0, n_values[name]). Columns come in the order of
    `codes`. Entries are int32, or int64 where a sequence may have more than 2**31 - 1 tokens.

    Raises:
        InputError: no trait, or a document has no value in [0, n_values).
    """
    from scipy.sparse import csr_matrix

    from dagster_divorder.core.kernels.packing import distinct_values, fill_counts

    if not codes:
        raise InputError("codes is empty; expected at least one trait, such as the cluster of each document")
    columns = [document_codes(packed, name, codes[name], n_values[name]) for name in codes]
    sizes = [n_values[name] for name in codes]
    starts = np.cumsum([0, *sizes])
    widths = np.zeros(len(packed), np.int64)
    for column, size in zip(columns, sizes, strict=True):
        widths += distinct_values(packed.indptr, packed.document, column, size)
    indptr = np.concatenate([[0], np.cumsum(widths)])
    indices = np.empty(indptr[-1], np.int32)
    small = packed.sequence_length <= np.iinfo(np.int32).max
    data = np.empty(indptr[-1], np.int32 if small else np.int64)
    at = indptr[:-1].copy()
    for column, size, first in zip(columns, sizes, starts[:-1], strict=True):
        fill_counts(
            packed.indptr, packed.document, packed.length, column, size, int(first), at, indices, data
        )
    counts = csr_matrix((data, indices, indptr), shape=(len(packed), int(starts[-1])))
    return counts, np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)


def document_codes(packed: PackedSequences, name: str, codes: ArrayLike, n_values: int) -> NDArray[np.int32]:
    """`codes` as int32 (N,), checked against the plan's documents."""
    array = np.asarray(codes)
    documents = int(packed.document.max(initial=-1)) + 1
    if array.ndim != 1 or len(array) < documents or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"trait {name!r} is {array.dtype} of shape {array.shape}; expected a whole number for each of "
            f"{documents} documents or more"
        )
    if array.size and (array.min() < 0 or array.max() >= n_values):
        raise InputError(
            f"trait {name!r} runs from {array.min()} to {array.max()}; expected values in [0, {n_values})"
        )
    return np.ascontiguousarray(array, np.int32)
