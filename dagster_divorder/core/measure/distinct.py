"""Distinct clusters per training sequence, for two kinds of packer.

split: sequence i holds the tokens [iL, (i+1)L), so documents are cut, as pretraining packers do.
flush: as in Diversity-Ordered Training. A document that does not fit closes the open sequence, if this holds tokens,
and starts a new one. A document longer than L fills sequences alone; its rest stays open. Short sequences are not
filled up, so there are more sequences than with split.
In both, the last, partial sequence counts as one.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive
from dagster_divorder.core.measure.stream import codes_in_order, n_values_of, tokens_in_order
from dagster_divorder.core.packing.report import distinct_per_sequence
from dagster_divorder.errors import InputError

Packer = Literal["split", "flush"]
PACKERS: tuple[Packer, Packer] = ("split", "flush")


@dataclass(frozen=True)
class Distinct:
    """Distinct clusters per sequence over `count` sequences (std with ddof = 0); all 0 without a sequence."""

    mean: float
    min: float
    max: float
    std: float
    count: float


def distinct_clusters(
    order: ArrayLike,
    tokens: ArrayLike,
    labels: ArrayLike,
    sequence_length: int,
    *,
    packer: Packer = "split",
) -> NDArray[np.int64]:
    """Number of distinct clusters in each sequence, int64 (S,).

    split: out[i] = |{labels[d] : d has a token in [iL, (i+1)L)}|, S = ceil(tokens / L).
    flush: see the module; S depends on the order.
    A document of zero tokens is in no sequence with `split`; with `flush` its label counts in the open sequence, as in
    Diversity-Ordered Training.
    """
    stream = tokens_in_order(order, tokens)
    n_values = n_values_of(labels)
    codes = codes_in_order(order, labels, n_values, len(np.asarray(tokens)))
    return distinct_in_stream(stream, codes, n_values, positive("sequence_length", sequence_length), packer)


def distinct_in_stream(
    tokens: NDArray[np.int64], codes: NDArray[np.int32], n_values: int, sequence_length: int, packer: Packer
) -> NDArray[np.int64]:
    """As `distinct_clusters`, for documents already in order."""
    from dagster_divorder.core.kernels import windows

    kernels = {"split": windows.distinct_split, "flush": windows.distinct_flush}
    if packer not in kernels:
        raise InputError(f"packer is {packer!r}; expected 'split' or 'flush'")
    return kernels[packer](tokens, codes, n_values, sequence_length)


def distinct_in_sequences(
    indptr: NDArray[np.int64], codes: NDArray[np.int32], n_values: int
) -> NDArray[np.int64]:
    """As `distinct_clusters`, for packed sequences: sequence s holds the runs indptr[s]:indptr[s+1]."""
    return distinct_per_sequence(indptr, codes)


def summarize(counts: NDArray[np.int64]) -> Distinct:
    """Mean, min, max, std and count of distinct clusters per sequence, int64 (S,)."""
    if counts.size == 0:
        return Distinct(0.0, 0, 0, 0.0, 0)
    return Distinct(
        float(counts.mean()), int(counts.min()), int(counts.max()), float(counts.std()), len(counts)
    )
