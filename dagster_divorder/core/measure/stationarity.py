"""Tests an order for drift: features of its sequences against shuffles of the same sequences.

Letters: S sequences, F values of a mix, D dims, G kinds of occurrences, O orders, R shuffles, W windows, B batches, T
stretches, P pieces of an order.

An order can keep the shares that it balances and drift in all others, so features that it never saw are measured.
The measures of a feature: the distance of the farthest tenth from the whole, and the mean distance of a batch from the
whole. A measure drifts if it exceeds the mean of R shuffles of the same sequences by more than SPREADS of their
standard deviations, and by more than the factor TOLERANCE.
In an order of several stretches (`core.measure.windows`), the shuffles move sequences only inside them, and batches are
compared with the mix of their stretch. What differs between stretches is not drift.

Guarantee: the same bytes for the same features and seed. Fewer than 1 % of random orders drift in any feature
(docs/decisions/measures.md).
Cost: O(R x entries of a feature) time; one feature at a time in memory.
Known weakness: drift inside a tenth that evens out in every batch is not detected, nor is drift in a feature that is
not tested. Drift inside stretches that is small compared with what differs between them shows only in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.windows import shuffled_inside

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Kind = Literal["mix", "vector", "occurrences"]

SHUFFLES = 24
SPREADS = 6.0
"""Standard deviations above the shuffles' mean. Fewer shuffles or spreads let more random orders fail."""
TOLERANCE = 1.05
"""Ratio to the shuffles' mean below which a difference is too small to count as drift."""
TENTHS = 10
FEWEST = 5 * TENTHS
"""Fewest sequences for a test."""
FEWEST_BATCHES = 2 * TENTHS
"""Fewest batches of a sample."""
NUMBERS = 1 << 22
"""Most numbers of windows that are compared at a time."""
WINDOW_BATCHES = 4
"""Batches that a sample takes from one of many stretches."""
MEASURES = {"tenths": "farthest tenth", "batch": "mean batch"}


@dataclass(frozen=True, eq=False)
class Feature:
    """A property of sequences that should not depend on their position.

    Values by kind. mix: counts (S, F), CSR or an array, compared as shares, such as tokens by source. vector: float
    (S, D). occurrences: CSR (S, G), things that should be spread over the order, such as the parts of each long
    document. seen: whether the order balanced it. inside: whether a section holds each thing whole, as it does a
    document; shuffles then stay inside sections.
    """

    name: str
    kind: Kind
    values: Any
    seen: bool = False
    inside: bool = False


@dataclass(frozen=True, kw_only=True)
class DriftMeasure:
    """One measure of a feature: the order's value, and the mean and standard deviation of the shuffles' values."""

    value: float
    shuffled: float
    spread: float

    @classmethod
    def of(cls, values: Floats) -> DriftMeasure:
        """values: float64 (O,), of the order and of its shuffles."""
        value, others = float(values[0]), values[1:]
        return cls(value=value, shuffled=float(others.mean()), spread=float(others.std(ddof=1)))

    @property
    def drifts(self) -> bool:
        """Whether the order is worse than shuffling, beyond the shuffles' own spread."""
        return self.value > max(self.shuffled + SPREADS * self.spread, TOLERANCE * self.shuffled)

    @property
    def excess(self) -> float:
        """Distance above the shuffles' mean in their standard deviations; 0 if nothing varies."""
        return (self.value - self.shuffled) / self.spread if self.spread else 0.0


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The result for one feature.

    measures: by name, of MEASURES; `batch` only with two or more batches. Distances are total variation for mixes and
    Euclidean for mean vectors; for occurrences `tenths` is chi2 over its degrees of freedom.
    along: distance of each tenth from the whole, in the order of training; shuffled_along: the 5th and 95th percentile
    of the shuffles' tenths.
    """

    feature: str
    seen: bool
    measures: dict[str, DriftMeasure]
    along: list[float]
    shuffled_along: list[float]

    @property
    def worst(self) -> str:
        """The measure farthest above shuffling, among those that drift if any does."""
        return max(self.measures, key=lambda name: (self.measures[name].drifts, self.measures[name].excess))

    @property
    def drifts(self) -> bool:
        return any(measure.drifts for measure in self.measures.values())


@dataclass(frozen=True, kw_only=True)
class Stationarity:
    """sequences: number of tested sequences. features: empty below FEWEST sequences. stretches: of the order; what
    differs between them is not drift."""

    sequences: int
    features: list[Drift]
    stretches: int = 1

    @property
    def by_excess(self) -> list[Drift]:
        """All features, the farthest above shuffling first."""
        return sorted(self.features, key=lambda drift: -drift.measures[drift.worst].excess)

    @property
    def drifting(self) -> list[Drift]:
        return [feature for feature in self.by_excess if feature.drifts]

    @property
    def passed(self) -> bool:
        """Whether no feature drifts."""
        return not self.drifting

    def claim(self) -> str:
        """The result in a sentence."""
        if not self.features:
            return f"{self.sequences:,} sequences are too few to judge drift; expected {FEWEST} or more."
        inside = f" inside its {self.stretches} stretches" if self.stretches > 1 else ""
        looked = f"{len(self.features)} features of {self.sequences:,} sequences"
        if self.passed:
            unseen = sum(not feature.seen for feature in self.features)
            return (
                f"Nothing drifts{inside}: of {looked}, {unseen} of them unseen by the order, none is clearly worse "
                "than shuffled."
            )
        names = ", ".join(feature.feature for feature in self.drifting)
        return f"Of {looked}, {len(self.drifting)} drift along the order{inside}, worse than any shuffle: {names}."

    def rows(self) -> list[dict[str, Any]]:
        """One row a feature: its name, whether the order balanced it, its worst measure beside the shuffles' mean, and
        whether it drifts."""
        return [
            {
                "feature": drift.feature,
                "balanced": "yes" if drift.seen else "no",
                "measure": MEASURES[drift.worst],
                "in order": drift.measures[drift.worst].value,
                "shuffled": drift.measures[drift.worst].shuffled,
                "drifts": "yes" if drift.drifts else "no",
            }
            for drift in self.by_excess
        ]

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Stationarity:
        """The inverse of `dataclasses.asdict`; also reads its JSON."""
        features = [
            Drift(
                **{**drift, "measures": {name: DriftMeasure(**of) for name, of in drift["measures"].items()}}
            )
            for drift in fields["features"]
        ]
        return cls(**{**fields, "features": features})


def stationarity(
    features: Iterable[Feature],
    sequences: int,
    *,
    batch: int,
    seed: int = 0,
    stretch: Ints | None = None,
    section: Ints | None = None,
) -> Stationarity:
    """Compares every feature, in the order of its S = `sequences` rows, with shuffles; below FEWEST rows none.

    batch: sequences a batch; a partial last batch is ignored. stretch, section: int64 (S,), of each row, rising; None:
    one.
    """
    if sequences < FEWEST:
        return Stationarity(sequences=sequences, features=[])
    stretch = np.zeros(sequences, np.int64) if stretch is None else np.unique(stretch, return_inverse=True)[1]

    def with_shuffles(inside: Ints) -> Ints:
        """The identity, and SHUFFLES random orders inside parts of the order, int64 (O, S)."""
        random = np.random.default_rng([seed, sequences])
        return np.stack([np.arange(sequences), *(shuffled_inside(inside, random) for _ in range(SHUFFLES))])

    orders = with_shuffles(stretch)
    in_sections = orders if section is None or not np.ptp(section) else with_shuffles(section)
    drifts = [
        drift_of(feature, in_sections if feature.inside else orders, batch, stretch) for feature in features
    ]
    return Stationarity(sequences=sequences, features=drifts, stretches=int(stretch[-1]) + 1)


def drift_of(feature: Feature, orders: Ints, batch: int, stretch: Ints) -> Drift:
    """One feature in the order orders[0], beside the shuffles orders[1:], int64 (O, S)."""
    edges = np.arange(TENTHS + 1) * orders.shape[1] // TENTHS
    if feature.kind == "occurrences":
        tenths, freedom = _chi2(feature.values, orders, edges)
        figures = {"tenths": tenths.sum(axis=1) / freedom}
    else:
        each = list(_distances(feature, orders, edges, batch, stretch))
        tenths = np.stack([of_order for of_order, _ in each])
        figures = {"tenths": tenths.max(axis=1)}
        if len(stretch) // batch > 1:
            figures["batch"] = np.array([batches.mean() for _, batches in each])
    return Drift(
        feature=feature.name,
        seen=feature.seen,
        measures={name: DriftMeasure.of(values) for name, values in figures.items()},
        along=tenths[0].tolist(),
        shuffled_along=np.quantile(tenths[1:], (0.05, 0.95)).tolist(),
    )


def sampled_places(
    sequences: int, batch: int, at_most: int, bounds: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Places of evenly spaced whole batches of an order, int64: at most `at_most` sequences, but at least
    FEWEST_BATCHES batches if there are as many.

    bounds: int64 (T + 1,), places where stretches begin and end. WINDOW_BATCHES are then taken from each of evenly
    spaced stretches, since only batches of one stretch can be compared.
    """
    batches = max(1, -(-sequences // batch))
    wanted = min(batches, max(at_most // batch, FEWEST_BATCHES))
    if wanted == batches:
        return np.arange(sequences)
    chosen = np.arange(wanted) * (sequences // batch) // wanted
    if bounds is not None:
        first, last = -(-bounds[:-1] // batch), bounds[1:] // batch
        first, inside = first[last > first], (last - first)[last > first]
        if len(inside):
            each = int(min(WINDOW_BATCHES, np.median(inside)))
            windows = np.unique(np.arange(max(1, wanted // each)) * len(inside) // max(1, wanted // each))
            chosen = np.concatenate(
                [first[at] + np.unique(np.arange(each) * inside[at] // each) for at in windows]
            )
    places: NDArray[np.int64] = (chosen[:, np.newaxis] * batch + np.arange(batch)).ravel()
    return places


def _distances(
    feature: Feature, orders: Ints, edges: Ints, batch: int, stretch: Ints
) -> Iterator[tuple[Floats, Floats]]:
    """By order, the distances of a mix, or of mean vectors, from the whole: of its tenths (TENTHS,) and of its full
    batches (B,). edges: first places of tenths, and the end of the last. Batches are compared with their stretch."""
    if feature.kind == "mix":
        values, distance = feature.values, _total_variation
        weight = np.asarray(values.sum(axis=1), np.float64).ravel()
    else:
        values, distance, weight = np.asarray(feature.values, np.float64), _euclidean, np.ones(len(stretch))
    begins = np.arange(len(stretch) // batch + 1) * batch
    borders = np.flatnonzero(np.diff(stretch, prepend=-1, append=-1))
    # A piece lies in one tenth, one batch and one stretch.
    pieces = np.unique(np.concatenate([edges, begins, borders]))
    tenths, batches, stretches = (
        _summing(np.arange(len(pieces) - 1), np.searchsorted(pieces, of), np.float64)
        for of in (edges, begins, borders)
    )
    wide = np.promote_types(values.dtype, np.int32)

    def summed(order: Ints) -> tuple[Any, Floats]:
        """(sums of the values in each piece, (P, F); its weight, float64 (P,))."""
        return _summing(order, pieces, wide) @ values, np.add.reduceat(weight[order], pieces[:-1])

    # Shuffles stay inside stretches, so that each mean holds for all of them.
    sums, weights = summed(orders[0])
    totals = _dense(stretches @ sums)
    whole = totals.sum(axis=0, keepdims=True) / max(weights.sum(), 1)
    means = totals / np.maximum(stretches @ weights, 1)[:, np.newaxis]
    for order in orders:
        sums, weights = summed(order)
        inside = stretches.multiply(weights).T.tocsr()
        yield (
            _from_means(tenths @ sums, (tenths @ weights)[:, np.newaxis], whole, distance),
            _from_means(batches @ sums, batches @ inside, means, distance),
        )


def _summing(items: Ints, bounds: Ints, dtype: Any) -> csr_array:
    """Times an array of rows: the sums of the rows items[bounds[w]:bounds[w + 1]], by w."""
    from scipy.sparse import csr_array

    ones = np.ones(bounds[-1], dtype)
    return csr_array((ones, items[: bounds[-1]], bounds), shape=(len(bounds) - 1, len(items)))


def _from_means(sums: Any, weights: Any, means: Floats, distance: Callable[[Floats], Floats]) -> Floats:
    """Distance of each window's mean from those asked, float64 (W,). sums: (W, F). weights: (W, T), of the rows for
    which each of the means (T, F) is asked."""
    found, at_once = np.zeros(sums.shape[0]), max(1, NUMBERS // sums.shape[1])
    for at in range(0, len(found), at_once):
        some = slice(at, at + at_once)
        total = np.maximum(np.asarray(weights[some].sum(axis=1)), 1)
        found[some] = distance(_dense(sums[some]) - weights[some] @ means) / total
    return found


def _total_variation(gaps: Floats) -> Floats:
    return np.asarray(np.abs(gaps).sum(axis=1) / 2)


def _euclidean(gaps: Floats) -> Floats:
    return np.asarray(np.linalg.norm(gaps, axis=1))


def _dense(values: Any) -> Floats:
    return np.asarray(values.todense() if hasattr(values, "todense") else values, np.float64)


def _chi2(occurrences: Any, orders: Ints, edges: Ints) -> tuple[Floats, float]:
    """(each tenth's part of chi2 over all columns, float64 (O, TENTHS); the degrees of freedom)."""
    sequence, which = occurrences.nonzero()
    kinds = occurrences.shape[1]
    expected = np.bincount(which, minlength=kinds)[:, np.newaxis] * (np.diff(edges) / edges[-1])
    parts = np.zeros((len(orders), TENTHS))
    for row, order in enumerate(orders):
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        tenth = np.searchsorted(edges, place[sequence], side="right") - 1
        seen = np.bincount(which * TENTHS + tenth, minlength=kinds * TENTHS).reshape(kinds, TENTHS)
        chi2 = np.divide((seen - expected) ** 2, expected, out=np.zeros_like(expected), where=expected > 0)
        parts[row] = chi2.sum(axis=0)
    return parts, max(1.0, (TENTHS - 1.0) * np.count_nonzero(expected[:, 0]))
