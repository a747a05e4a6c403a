"""Tests an order for drift: features of its sequences against shuffles of the same sequences.

Letters: S sequences, F values of a mix, D dims, G kinds of occurrences, R shuffles.

An order can keep the shares that it balances and drift in all others, so features that it never saw are measured too.
The measures of a feature: its rank correlation (Spearman) with the position, the distance of the farthest tenth from
the whole, and the mean distance of a batch from the whole. A measure drifts if it exceeds the mean of R shuffles of the
same sequences by more than SPREADS of their standard deviations, and by more than the factor TOLERANCE.
In an order of several stretches (`core.measure.stretches`), the shuffles move sequences only inside them, and batches
are compared with the mix of their stretch. What differs between stretches is not drift.

Guarantee: the same bytes for the same features and seed. Fewer than 1 % of random orders drift in any feature
(docs/decisions/stationarity.md).
Cost: O(R x entries of a feature) time; one feature at a time in memory, and 8 R S bytes.
Known weakness: drift inside a tenth that evens out in every batch is not detected, nor is drift in a feature that is
not tested. Drift inside stretches that is small compared with what differs between them shows only in batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.measure.stretches import shuffled_inside
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Distances = Callable[[NDArray[np.int64]], Sequence[NDArray[np.float64]]]
"""From an order (S,) to the distances of its groups of neighbours, one array for each grouping."""
Kind = Literal["mix", "vector", "number", "occurrences", "neighbours"]

SHUFFLES = 24
SPREADS = 6.0
"""Standard deviations above the shuffles' mean. Over some fifteen features, 0.8 % of random orders fail with 16
shuffles, 0.4 % with 24, 0.1 % with 48; with 5 standard deviations 2.8, 1.4 and 0.6 %."""
TOLERANCE = 1.05
"""Ratio to the shuffles' mean below which a difference is too small to count as drift."""
TENTHS = 10
LEADING = 8
"""Values or dims, those with the largest variance, that each have their own rank correlation."""
FEWEST = 5 * TENTHS
"""Fewest sequences for a test."""
FEWEST_BATCHES = 2 * TENTHS
"""Fewest batches of a sample."""
WINDOW_BATCHES = 4
"""Batches that a sample takes from one of many stretches."""
MEASURES = {
    "rank": "rank correlation with position",
    "tenths": "farthest tenth",
    "batch": "mean batch",
    "neighbours": "neighbours alike",
}
"""Measures by name, with their descriptions."""


@dataclass(frozen=True, eq=False)
class Feature:
    """A property of sequences that should not depend on their position.

    Values by kind. mix: counts CSR (S, F), compared as shares, such as tokens by source. vector: float (S, D). number:
    float (S,). occurrences: CSR (S, G), things that should be spread over the order, such as the parts of each long
    document. neighbours: CSR (S, G), things that neighbouring sequences should not share. seen: whether the order
    balanced it. inside: whether a section holds each thing whole, as it does a document; shuffles then stay inside
    sections.
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

    measures: by name, those that its kind has and the number of sequences allows. `rank`: the largest |Spearman| of the
    position with a number, with the distance of a mix or vector from the whole, or with a leading value or dim.
    `tenths`: the largest distance of a tenth from the whole. `batch`: the mean distance of a batch from the whole.
    Distances are total variation for mixes, Euclidean for mean vectors, and in standard deviations for numbers; for
    occurrences `tenths` is chi2 over its degrees of freedom. `neighbours`: share of neighbouring sequences with
    something in common.
    along: distance of each tenth from the whole, in the order of training; shuffled_along: the 5th and 95th percentile
    of the shuffles' tenths. Both are empty for neighbours.
    """

    feature: str
    kind: Kind
    seen: bool
    measures: dict[str, DriftMeasure]
    along: tuple[float, ...]
    shuffled_along: tuple[float, ...]

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
    features: tuple[Drift, ...]
    stretches: int = 1

    @property
    def drifting(self) -> list[Drift]:
        """Features that drift, the farthest above shuffling first."""
        return [feature for feature in self.by_excess if feature.drifts]

    @property
    def by_excess(self) -> list[Drift]:
        """All features, the farthest above shuffling first."""
        return sorted(self.features, key=lambda drift: -drift.measures[drift.worst].excess)

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
        unseen = sum(not feature.seen for feature in self.features)
        if self.passed:
            return (
                f"Nothing drifts{inside}: of {looked}, {unseen} of them unseen by the order, none is clearly worse "
                "than shuffled."
            )
        names = ", ".join(feature.feature for feature in self.drifting)
        return f"Of {looked}, {len(self.drifting)} drift along the order{inside}, worse than any shuffle: {names}."

    def text(self) -> str:
        """The claim and the drifting features, in Markdown."""
        lines = [
            f"- {drift.feature}: {MEASURES[drift.worst]} {drift.measures[drift.worst].value:.3g}, shuffled "
            f"{drift.measures[drift.worst].shuffled:.3g}"
            for drift in self.drifting
        ]
        return "\n".join([self.claim(), *([""] if lines else []), *lines])

    def rows(self) -> list[dict[str, Any]]:
        """One row a feature, the farthest above shuffling first: its name, whether the order balanced it, its worst
        measure beside the shuffles' mean, and whether it drifts."""
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
                **drift
                | {"measures": {name: DriftMeasure(**measure) for name, measure in drift["measures"].items()}}
                | {name: tuple(drift[name]) for name in ("along", "shuffled_along")}
            )
            for drift in fields["features"]
        ]
        return cls(**fields | {"features": tuple(features)})


def _sums_of_stretches(
    values: Any, stretch: NDArray[np.int64], edges: NDArray[np.int64]
) -> tuple[Any, NDArray[np.int64]]:
    """(sums of `values`, (S, F) dense or CSR, over what groups of neighbours are compared with, (M, F); the row of each
    group, int64 (g,)). A group across a border is compared with both stretches, by its sequences in each.

    stretch: int64 (S,), rising. edges: int64 (g + 1,), places where groups begin and end.
    """
    from scipy.sparse import csr_matrix

    stretches, groups = int(stretch[-1]) + 1, len(edges) - 1
    group = np.repeat(np.arange(groups), np.diff(edges))
    place = group * stretches + stretch[edges[0] : edges[-1]]
    inside = np.bincount(place, minlength=groups * stretches).reshape(groups, stretches)
    kinds, row = np.unique(inside / np.diff(edges)[:, np.newaxis], axis=0, return_inverse=True)
    sequences = np.arange(len(stretch))
    members = csr_matrix((np.ones(len(stretch)), (stretch, sequences)), shape=(stretches, len(stretch)))
    # Stretches count by the group's sequences, not by their own sizes.
    each = csr_matrix(kinds / np.bincount(stretch, minlength=stretches))
    return each @ (members @ values), row.ravel()


@dataclass(frozen=True, eq=False)
class Orders:
    """Several orders of the same S sequences, int64 (O, S): place -> sequence. batch: sequences a batch; a partial last
    batch is ignored. stretch: int64 (S,), of each sequence, rising; None: one stretch."""

    orders: NDArray[np.int64]
    batch: int
    stretch: NDArray[np.int64] | None = None

    @classmethod
    def with_shuffles(
        cls, sequences: int, batch: int, seed: int = 0, stretch: NDArray[np.int64] | None = None
    ) -> Orders:
        """The identity on S = `sequences` sequences, and SHUFFLES random orders, inside the stretches."""
        random = np.random.default_rng([seed, sequences])
        if stretch is None:
            shuffles = [random.permutation(sequences) for _ in range(SHUFFLES)]
        else:
            shuffles = [shuffled_inside(stretch, random) for _ in range(SHUFFLES)]
        return cls(np.stack([np.arange(sequences), *shuffles]), batch, stretch)

    @property
    def sequences(self) -> int:
        """S."""
        return self.orders.shape[1]

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """Place of each sequence in each order, int64 (O, S)."""
        places = np.empty_like(self.orders)
        np.put_along_axis(places, self.orders, np.arange(self.sequences)[np.newaxis], axis=1)
        return places

    @property
    def tenths(self) -> NDArray[np.int64]:
        """First places of the tenths, and the end of the last."""
        return np.arange(TENTHS + 1) * self.sequences // TENTHS

    @property
    def batches(self) -> NDArray[np.int64] | None:
        """First places of the whole batches, and the end of the last; None with a single batch."""
        whole = self.sequences // self.batch
        return np.arange(whole + 1) * self.batch if whole > 1 else None


def stationarity(
    features: Iterable[Feature],
    sequences: int,
    *,
    batch: int,
    seed: int = 0,
    stretch: NDArray[np.int64] | None = None,
    section: NDArray[np.int64] | None = None,
) -> Stationarity:
    """Compares every feature, in the order of its S = `sequences` rows, with shuffles; below FEWEST rows none.

    stretch, section: int64 (S,), of each row, rising; None: one.

    Raises:
        InputError: a feature has another number of rows.
    """
    if sequences < FEWEST:
        return Stationarity(sequences=sequences, features=())
    stretches = 1
    if stretch is not None:
        numbers, stretch = np.unique(stretch, return_inverse=True)
        stretches = len(numbers)
    orders = Orders.with_shuffles(sequences, batch, seed, stretch if stretches > 1 else None)
    in_sections = orders
    if section is not None and np.ptp(section):
        in_sections = Orders.with_shuffles(sequences, batch, seed, section)
    drifts = tuple(
        _drift(feature, *measures(feature, in_sections if feature.inside else orders)) for feature in features
    )
    return Stationarity(sequences=sequences, features=drifts, stretches=stretches)


def _drift(
    feature: Feature, figures: Mapping[str, NDArray[np.float64]], tenths: NDArray[np.float64]
) -> Drift:
    return Drift(
        feature=feature.name,
        kind=feature.kind,
        seen=feature.seen,
        measures={name: against_shuffles(values, feature) for name, values in figures.items()},
        along=tuple(tenths[0].tolist()),
        shuffled_along=tuple(np.quantile(tenths[1:], (0.05, 0.95)).tolist()) if tenths.size else (),
    )


def against_shuffles(values: NDArray[np.float64], feature: Feature) -> DriftMeasure:
    """The measure of an order, values[0], and of its shuffles, values[1:]."""
    shuffled, spread = float(values[1:].mean()), float(values[1:].std(ddof=1))
    if feature.kind == "neighbours":
        # Shuffles may have no rare pairs; one pair more or less is chance.
        pair = 1 / max(feature.values.shape[0] - 1, 1)
        spread = max(spread, float(np.sqrt(max(shuffled, pair) * pair)))
    return DriftMeasure(value=float(values[0]), shuffled=shuffled, spread=spread)


def measures(feature: Feature, orders: Orders) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """(each measure of `Drift` for every order, float64 (O,); distance of each tenth from the whole, float64 (O,
    TENTHS), empty for neighbours).

    Raises:
        InputError: the feature has another number of rows than the orders have sequences.
    """
    if feature.values.shape[0] != orders.sequences:
        raise InputError(
            f"the feature {feature.name!r} has {feature.values.shape[0]} rows; expected one for each of the "
            f"{orders.sequences} sequences"
        )
    if feature.kind == "neighbours":
        return {"neighbours": _shared(feature.values, orders)}, np.zeros((len(orders.orders), 0))
    if feature.kind == "occurrences":
        tenths, freedom = _chi2(feature.values, orders)
        return {"tenths": tenths.sum(axis=1) / freedom}, tenths
    groupings = [orders.tenths] if orders.batches is None else [orders.tenths, orders.batches]
    scores, distances = (_of_mix if feature.kind == "mix" else _of_vectors)(
        feature.values, groupings, orders.stretch
    )

    def of_half(half: NDArray[np.int64]) -> list[Sequence[NDArray[np.float64]]]:
        return [distances(order) for order in half]

    # Two threads take half of the orders each. Handling one order at a time would cost more than the computation.
    with ThreadPoolExecutor(2, thread_name_prefix="divorder-drift") as threads:
        each = itertools.chain(*threads.map(of_half, np.array_split(orders.orders, 2)))
        tenths, *batches = (np.stack(one) for one in zip(*each, strict=True))
    figures = {"rank": _rank_correlations(scores, orders.place), "tenths": tenths.max(axis=1)}
    if batches:
        figures["batch"] = batches[0].mean(axis=1)
    return figures, tenths


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


def distances_from_whole(counts: csr_matrix) -> NDArray[np.float64]:
    """Total variation between each row's mix and that of all rows, float64 (S,); 0 for a row without counts."""
    return _Mix(counts).distances_from_whole()


def _of_mix(
    counts: csr_matrix, groupings: Sequence[NDArray[np.int64]], stretch: NDArray[np.int64] | None
) -> tuple[NDArray[np.float64], Distances]:
    """(scores for the rank correlation (n, S), function that gives the groups' distances from the whole) of a mix.
    groupings: first places of groups, and the end of the last, (g + 1,) each. stretch: of each sequence; groups of the
    second grouping are compared with the mix of their stretch."""
    from dagster_divorder.core.kernels.stationarity import add_columns

    mix = _Mix(counts)
    totals, _, mean, square = mix.moments
    leading = np.argsort(mean**2 / len(totals) - square, kind="stable")[:LEADING]
    column = np.full(counts.shape[1], -1, np.int32)
    column[leading] = np.arange(len(leading))
    scores = np.zeros((1 + len(leading), len(totals)))
    add_columns(*mix.entries, column, scores[1:])
    scores[1:] /= totals
    scores[0] = mix.distances_from_whole()
    return scores, mix.distances(groupings, stretch)


@dataclass(frozen=True, eq=False)
class _Mix:
    """counts: CSR (S, F)."""

    counts: csr_matrix

    @cached_property
    def entries(self) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
        """(indptr, indices, data): indices and data as uint16 if all fit, else as int32. Each order reads all of them,
        and half the bytes take little more than half the time."""
        counts = self.counts
        kind = np.uint16 if max(counts.shape[1], counts.data.max(initial=0)) < 1 << 16 else np.int32
        indices, data = np.asarray(counts.indices, kind), np.asarray(counts.data, kind)
        return np.asarray(counts.indptr, np.int32), indices, data

    @cached_property
    def moments(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """As `share_moments`."""
        from dagster_divorder.core.kernels.stationarity import share_moments

        return share_moments(*self.entries, self.counts.shape[1])

    def distances_from_whole(self) -> NDArray[np.float64]:
        """See the function of this name."""
        rows = self.counts.shape[0]
        return self.distances([np.arange(rows + 1)])(np.arange(rows))[0]

    def distances(
        self, groupings: Sequence[NDArray[np.int64]], stretch: NDArray[np.int64] | None = None
    ) -> Distances:
        """The function that gives the groups' distances from the whole; see `_of_mix`."""
        from scipy.sparse import csr_matrix, vstack

        from dagster_divorder.core.kernels.stationarity import mix_distances

        sums, n_values = self.moments[1], self.counts.shape[1]
        mixes = csr_matrix(sums / max(sums.sum(), 1.0))
        mix_of = np.zeros((len(groupings), max(len(begins) for begins in groupings)), np.int64)
        if stretch is not None and len(groupings) > 1:
            around, point = _sums_of_stretches(self.counts, stretch, groupings[1])
            totals = np.maximum(np.asarray(around.sum(axis=1), np.float64).ravel(), 1e-300)
            shares = around.data / np.repeat(totals, np.diff(around.indptr))
            around = csr_matrix((shares, around.indices, around.indptr), shape=(len(totals), n_values))
            mixes, mix_of[1, : len(point)] = vstack([mixes, around], format="csr"), 1 + point
        rows = mixes.indptr.astype(np.int64), mixes.indices.astype(np.int64), mixes.data
        edges = np.unique(np.concatenate(groupings))
        groups = np.stack(
            [
                np.where(edges < begins[-1], np.searchsorted(begins, edges, "right") - 1, -1)[:-1]
                for begins in groupings
            ]
        )

        def distances(order: NDArray[np.int64]) -> list[NDArray[np.float64]]:
            by_grouping = mix_distances(*self.entries, rows, n_values, order, edges, groups, mix_of)
            return [begins[: len(at) - 1] for begins, at in zip(by_grouping, groupings, strict=True)]

        return distances


def _of_vectors(
    values: ArrayLike, groupings: Sequence[NDArray[np.int64]], stretch: NDArray[np.int64] | None
) -> tuple[NDArray[np.float64], Distances]:
    """As `_of_mix`, for vectors (S, D) or numbers (S,); distances of numbers are in standard deviations."""
    vectors = np.asarray(values, np.float64)
    centred = vectors - vectors.mean(axis=0)
    if centred.ndim == 1:
        deviation = centred.std()
        # A smaller spread is rounding noise of the mean.
        same = deviation <= 1e-12 * np.abs(vectors).max()
        centred = (np.zeros_like(centred) if same else centred / deviation)[:, None]
        scores = centred.T
    else:
        leading = np.argsort(-centred.var(axis=0), kind="stable")[:LEADING]
        scores = np.vstack([np.linalg.norm(centred, axis=1), centred[:, leading].T])

    asked: list[Any] = [0.0 for _ in groupings]
    if stretch is not None and len(groupings) > 1:
        around, point = _sums_of_stretches(
            np.column_stack([centred, np.ones(len(centred))]), stretch, groupings[1]
        )
        asked[1] = (around[:, :-1] / around[:, -1:])[point]

    def distances(order: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        inside, lengths = centred[order], []
        for edges, mix in zip(groupings, asked, strict=True):
            means = np.add.reduceat(inside[: edges[-1]], edges[:-1], axis=0) / np.diff(edges)[:, None]
            lengths.append(np.asarray(np.linalg.norm(means - mix, axis=1)))
        return lengths

    return scores, distances


def _rank_correlations(scores: NDArray[np.float64], place: NDArray[np.int64]) -> NDArray[np.float64]:
    """The largest |Spearman| of the position with any row of scores (n, S), for each order, float64 (R + 1,)."""
    ranks = np.stack([_ranks(row) for row in scores])
    positions = place - (place.shape[1] - 1) / 2
    lengths = np.outer(np.linalg.norm(ranks, axis=1), np.linalg.norm(positions, axis=1))
    correlations = np.divide(ranks @ positions.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return np.asarray(np.abs(correlations).max(axis=0))


def _ranks(row: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred ranks; ties get their mean rank (as in `scipy.stats`, whose import takes 40 MB)."""
    _, which, many = np.unique(row, return_inverse=True, return_counts=True)
    ends = np.cumsum(many)
    return np.asarray((ends - (many - 1) / 2)[which] - (len(row) + 1) / 2)


def _chi2(occurrences: csr_matrix, orders: Orders) -> tuple[NDArray[np.float64], float]:
    """(each tenth's part of chi2 over all columns, float64 (R + 1, TENTHS); the degrees of freedom)."""
    sequence, which = occurrences.nonzero()
    kinds = occurrences.shape[1]
    share = np.diff(orders.tenths) / orders.tenths[-1]
    expected = np.bincount(which, minlength=kinds)[:, None] * share
    parts = np.zeros((len(orders.orders), TENTHS))
    for row, place in enumerate(orders.place):
        tenth = np.searchsorted(orders.tenths, place[sequence], side="right") - 1
        seen = np.bincount(which * TENTHS + tenth, minlength=kinds * TENTHS).reshape(kinds, TENTHS)
        chi2 = np.divide((seen - expected) ** 2, expected, out=np.zeros_like(expected), where=expected > 0)
        parts[row] = chi2.sum(axis=0)
    return parts, max(1.0, (TENTHS - 1.0) * np.count_nonzero(expected[:, 0]))


def _shared(occurrences: csr_matrix, orders: Orders) -> NDArray[np.float64]:
    """Share of neighbouring sequences with a common column, for each order, float64 (R + 1,)."""
    sequence, which = occurrences.nonzero()
    shares = np.zeros(len(orders.orders))
    for row, place in enumerate(orders.place):
        at = place[sequence]
        by = np.lexsort((at, which))
        next_to = (np.diff(which[by]) == 0) & (np.diff(at[by]) == 1)
        shares[row] = len(np.unique(at[by][:-1][next_to])) / max(place.size - 1, 1)
    return shares
