"""Windows of an order of sequences, compared with the mix that is asked there.

Letters: S sequences, Q entries, J trait values, T stretches, P windows.

A window is some successive sequences, and shares are of the tokens that count in it. A stretch is a part of training
with an asked mix of its own: a phase, a window of a score, a beginning that stays (`core.order.sections`). Its mix is
the one that its own sequences have; one stretch has the mix of all sequences. A window across a border is compared with
both mixes, by its tokens in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.order.schedule import Pieces, asked_rank

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.measures import AskedMix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Counts(NamedTuple):
    """Counted tokens of each value of a trait in each sequence: sequence s holds tokens[q] >= 0 tokens of the value
    codes[q] in [0, n_values), for q in indptr[s]:indptr[s + 1]. Several entries may have one value."""

    indptr: Ints
    codes: NDArray[Any]
    tokens: NDArray[Any]
    n_values: int

    @classmethod
    def of(cls, indptr: ArrayLike, codes: ArrayLike, tokens: ArrayLike, n_values: int) -> Counts:
        """Counts from arrays of any whole numbers."""
        values, counted = np.ascontiguousarray(codes, np.int32), np.ascontiguousarray(tokens, np.int64)
        return cls(np.asarray(indptr, np.int64), values, counted, n_values)

    @property
    def size(self) -> Ints:
        """Counted tokens of each sequence, int64 (S,)."""
        return np.diff(np.concatenate([[0], np.cumsum(self.tokens, dtype=np.int64)])[self.indptr])


class Deviations(NamedTuple):
    """By window, float64 (P,): with g_j the distance of the share of value j from its asked share, in [0, 1], worst =
    max_j |g_j|, the largest share error; tv = 1/2 sum_j |g_j|, the total variation; l2 = sqrt(sum_j g_j^2)."""

    worst: Floats
    tv: Floats
    l2: Floats


@dataclass(frozen=True, eq=False)
class Laid:
    """The sequences of one trait in an order, int64 (n,), which may name some again and others never."""

    counts: Counts
    order: Ints
    mix: AskedMix

    @classmethod
    def of(
        cls, counts: Counts, order: ArrayLike, stretch: ArrayLike | None = None, *, again: int = 0
    ) -> Laid:
        """stretch: int (S,), of each sequence, by number; None: one. again: sequences that follow once more, from the
        first on; mixes are those of `order` without them."""
        order = np.asarray(order, np.int64)
        read = np.concatenate([order, order[:again]])
        return cls(counts, read, asked_mix(counts, order, read, stretch))

    def deviations(self, starts: Ints, ends: Ints) -> Deviations:
        """Of the windows of the sequences at the places [starts, ends), int64 (P,) each, never falling."""
        from dagster_divorder.core.kernels.measures import window_deviations

        indptr, codes, tokens, _ = self.counts
        return Deviations(*window_deviations(indptr, codes, tokens, self.order, self.mix, starts, ends))

    def sliding(self, size: int) -> Deviations:
        """Of `size` successive sequences from every place on."""
        starts = np.arange(max(0, len(self.order) - size + 1))
        return self.deviations(starts, starts + size)


def asked_mix(counts: Counts, order: Ints, read: Ints, stretch: ArrayLike | None = None) -> AskedMix:
    """The mix along the sequences `read`. A stretch has the mix of its sequences, each as often as `order` names it.
    stretch: int (S,)."""
    from dagster_divorder.core.kernels.measures import AskedMix, stretch_totals

    indptr, codes, tokens, values = counts
    sequences = len(indptr) - 1
    of_sequence = np.zeros(sequences, np.int64) if stretch is None else np.asarray(stretch, np.int64)
    totals = np.zeros((int(of_sequence.max(initial=0)) + 1, values))
    stretch_totals(indptr, codes, tokens, np.bincount(order, minlength=sequences), of_sequence, totals)
    shares = totals / np.maximum(totals.sum(axis=1, keepdims=True), 1)
    along, before = of_sequence[read], np.concatenate([[0], np.cumsum(counts.size[read])])
    begins = np.flatnonzero(np.diff(along, prepend=-1))
    share = shares[along[begins]] if len(begins) else shares[:1]
    at = before[begins] if len(begins) else before
    # Pieces without tokens end where they begin.
    asked = share * np.diff(at, append=before[-1])[:, np.newaxis]
    return AskedMix(at.astype(np.float64), np.cumsum(asked, axis=0) - asked, share)


def shuffled_inside(stretch: Ints, random: np.random.Generator) -> Ints:
    """A shuffle of items inside their stretches, int64 (N,). stretch: int (N,), by place; stretches keep their
    order."""
    shuffled = random.permutation(len(stretch))
    return shuffled[np.argsort(stretch[shuffled], kind="stable")]


def off_schedule(rank: Floats, tokens: Ints, pieces: Pieces, edges: Ints) -> float:
    """Mean distance between the mean rank of a batch's tokens and the rank that a schedule asks for at its middle,
    weighted by tokens.

    rank: float64 (N,), of the runs in order, NaN for none, which are ignored. tokens: int64 (N,). pieces: of the
    schedule. edges: int64 (B + 1,), the runs at which batches begin and end.
    """
    ends = np.append(0, np.cumsum(tokens))[edges]
    asked = asked_rank(pieces, 0.5 * (ends[1:] + ends[:-1]) / max(1, ends[-1]))
    known = np.where(np.isnan(rank), 0, tokens)
    sums, weights = (
        np.diff(np.append(0.0, np.cumsum(values))[edges]) for values in (known * np.nan_to_num(rank), known)
    )
    means = np.divide(sums, weights, out=asked.copy(), where=weights > 0)
    return float(np.abs(means - asked) @ weights / max(weights.sum(), 1.0))
