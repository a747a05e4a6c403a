"""How an order follows a schedule of a score, and how it keeps the other traits, beside the plain order and window
shuffles.

Letters: N runs of tokens, S sequences, P places of a lap, W windows, B batches, D draws.

A lap is a stretch of training that passes the whole schedule once: an epoch, or all of them. Its plain order follows
the schedule alone. A window shuffle moves the items of the plain order at random inside windows, as in the papers of
`core.order.schedule`. The mix at a point is the plain order's mix in a window of the schedule's width around the point;
at the ends of a lap, in the first or last such window. It does not depend on the orders that are judged.

Ranks are by token. Asked: the rank of the schedule, drawn towards 1/2 if `strength` is below 1.
Guarantee: the same figures for the same arguments. Tokens are counted exactly.
Cost: O(D N) for each trait, and a sort of N for the curves; some 150 bytes a run beside the input.
Known weakness: a run of tokens is compared with the schedule at its middle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.along import quantiles_along
from dagster_divorder.core.order.curricula import SHAPES, pieces_of, windows_of
from dagster_divorder.core.order.schedule import Pieces, asked_rank, due_times
from dagster_divorder.core.rows import row_entries

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

DRAWS = 4
"""Window shuffles over all of training."""
POINTS = 100
TENTHS = 10
BANDS = (0.1, 0.9)
"""Quantiles of the ranks along the order."""
FEWEST = 50
"""Fewest sequences that can show whether they follow a schedule."""
TIMES, RANKS = 1.3, 0.01
"""An order follows its schedule if its distance is at most TIMES that of window shuffles plus RANKS of the ranking."""
REACHED = 0.15
"""Largest mean distance between the plain order's tenths and the asked ranks at which a schedule counts as
reachable."""


@dataclass(frozen=True, eq=False)
class ScoredRuns:
    """Runs of tokens of S sequences; a whole document is a sequence. indptr: int64 (S + 1,). tokens: int64 (N,), those
    that shares count. rank: float64 (N,) in (0, 1); raw: float64 (N,), the score; NaN without one. traits: name ->
    (codes int32 (N,), number of values)."""

    indptr: Ints
    tokens: Ints
    rank: Floats
    raw: Floats
    traits: Mapping[str, tuple[NDArray[np.int32], int]]

    @cached_property
    def sizes(self) -> Ints:
        """Tokens of each sequence, int64 (S,)."""
        ends = np.concatenate([[0], np.cumsum(self.tokens)])
        return np.diff(ends[self.indptr])


class Schedule(NamedTuple):
    """pieces: float64 (P, 4), see `core.order.schedule`. strength: the share of the tokens that follow it."""

    pieces: Pieces
    strength: float

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Schedule:
        """The schedule in the arguments of `core.order.order`."""
        shape = arguments["strategy"]
        given = {name: arguments[name] for name in SHAPES[shape].model_fields if name in arguments}
        options = SHAPES[shape](**given).model_dump()
        return cls(pieces_of(shape, options), options["strength"])

    def asked(self, progress: Floats) -> Floats:
        """The mean asked rank at each progress, float64 (n,)."""
        return 0.5 + self.strength * (asked_rank(self.pieces, progress) - 0.5)


@dataclass(frozen=True, eq=False)
class Lap:
    """order, plain: int64 (P,), place -> sequence, of the order and of the schedule alone, without consumed sequences.
    bounds: int64 (W + 1,), places where windows begin and end. begin: progress before the lap's first place. width:
    tokens of a window. epochs: epochs in it."""

    order: Ints
    plain: Ints
    bounds: Ints
    begin: float
    width: int
    epochs: int = 1

    @classmethod
    def of(
        cls,
        order: Ints,
        scores: Floats,
        sizes: Ints,
        schedule: Schedule,
        *,
        window: float,
        batch: int,
        begin: float = 0.0,
        epochs: int = 1,
        seed: int = 0,
    ) -> Lap:
        """The lap of an order, int64 (P,), which may hold a sequence several times. scores: float64 (S,), which the
        schedule follows. sizes: int64 (S,), tokens of each sequence. window, batch, begin, seed: as for the order
        (`core.order.curricula`)."""
        items, repeats = np.unique(order, return_counts=True)
        due = due_times(
            scores[items],
            sizes[items],
            schedule.pieces,
            strength=schedule.strength,
            begin=begin,
            repeats=repeats,
            seed=seed,
        )
        plain = np.repeat(items, repeats)[np.argsort(due, kind="stable")]
        of_plain = sizes[plain]
        share = min(1.0, window / (1.0 - begin)) if begin < 1.0 else 1.0
        width = max(1, round(share * int(of_plain.sum())))
        return cls(
            order,
            plain,
            windows_of(of_plain, share, batch, schedule.pieces, begin).bounds,
            begin,
            width,
            epochs,
        )

    def shuffled(self, seed: Sequence[int]) -> Ints:
        """A window shuffle, int64 (P,)."""
        window = np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))
        return self.plain[np.lexsort([np.random.default_rng(seed).random(len(window)), window])]


BatchEdges = Callable[[Ints], Ints]
"""From the tokens of sequences in order, int64 (P,), to the edges of full batches: the tokens before each, and at the
end of the last, int64 (B + 1,)."""


def of_sequences(batch: int) -> BatchEdges:
    """Batches of `batch` sequences; a smaller lap is one batch."""

    def edges(sizes: Ints) -> Ints:
        ends = np.concatenate([[0], np.cumsum(sizes)])
        step = max(1, min(batch, len(sizes)))
        return np.asarray(ends[: len(sizes) // step * step + 1 : step])

    return edges


def of_tokens(batch: int) -> BatchEdges:
    """Batches of `batch` tokens; a smaller lap is one batch."""

    def edges(sizes: Ints) -> Ints:
        total = int(sizes.sum())
        step = max(1, min(batch, total))
        return np.arange(total // step + 1) * step

    return edges


class _Stream:
    """Runs in the order of their sequences."""

    def __init__(self, runs: ScoredRuns, order: Ints) -> None:
        self.source, self.runs = runs, row_entries(runs.indptr, order)[0]
        self.tokens = np.ascontiguousarray(runs.tokens[self.runs])
        self.ends = np.cumsum(self.tokens)

    @property
    def rank(self) -> Floats:
        return self.source.rank[self.runs]

    @property
    def total(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def mean_ranks(self, begins: Floats, ends: Floats) -> Floats:
        """Mean rank of the scored tokens in each [begin, end), float64 (n,); NaN where there is none."""
        knots = np.concatenate([[0], self.ends])
        rank = self.rank
        tokens = np.where(np.isnan(rank), 0, self.tokens)
        sums = np.concatenate([[0.0], np.cumsum(tokens * np.nan_to_num(rank, copy=False))])
        counts = np.concatenate([[0], np.cumsum(tokens)])
        total, number = (
            np.interp(ends, knots, reached) - np.interp(begins, knots, reached) for reached in (sums, counts)
        )
        return np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0)

    def deviation(self, schedule: Schedule, begin: float) -> Floats:
        """(sum over scored tokens of their distance from the asked rank, number of these tokens)."""
        middles = (self.ends - 0.5 * self.tokens) / max(1, self.total)
        off = np.abs(self.rank - schedule.asked(begin + (1.0 - begin) * middles))
        scored = ~np.isnan(off)
        return np.array([(self.tokens[scored] * off[scored]).sum(), self.tokens[scored].sum()])


def measure_along(
    runs: ScoredRuns,
    laps: Sequence[Lap],
    schedule: Schedule,
    edges: BatchEdges,
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> dict[str, Any]:
    """Every figure of an order along its schedule, as plain values. draws: window shuffles, over all laps together.

    curves: POINTS points along training; the mean rank asked, achievable (in the plain order) and achieved, the
        quantiles BANDS of the ranks (low, high), and the median score (raw).
    deviation: mean distance of a token's rank from the asked one: of the order (asked), of the plain order
        (achievable), of window shuffles (shuffled).
    off: mean distance of the mean rank at these points from the asked one: achieved, achievable, shuffled.
    traits: by trait, mean total variations: between the mix at a point and the whole's (moved), and between a batch and
        the mix at its point, for the order (batch) and window shuffles (shuffled). worst, worst_shuffled: the largest
        of these two.
    along: by trait, batch, shuffled and moved for each tenth of training.
    seam: for each seam, the rise of the mean rank from the window before to the window after: of the order (achieved)
        and of the schedule (asked).
    """
    draws = max(1, draws // len(laps))
    shares = {
        trait: np.bincount(codes, runs.tokens, values) / max(1, runs.tokens.sum())
        for trait, (codes, values) in runs.traits.items()
    }
    sizes = [int(runs.sizes[lap.order].sum()) for lap in laps]
    ends = np.cumsum([size / max(1e-12, 1.0 - lap.begin) for size, lap in zip(sizes, laps, strict=True)])
    points = np.diff(np.rint(POINTS * np.cumsum(sizes) / max(1, sum(sizes))), prepend=0).astype(int)
    figures = [
        _measure_lap(runs, lap, schedule, edges, shares, int(count), [seed, number], draws)
        for number, (lap, count) in enumerate(zip(laps, points, strict=True))
        if runs.sizes[lap.order].any()
    ]
    if not figures:
        return {"curves": {}, "deviation": {}, "off": {}, "traits": {}, "along": {}, "seam": []}
    total = ends[-1]
    begins = ends - np.diff(ends, prepend=0.0)

    def along_training(progress: Floats, lap: int) -> Floats:
        return (begins[lap] + progress * (ends[lap] - begins[lap])) / total

    curves = {name: np.concatenate([figure.curves[name] for figure in figures]) for name in figures[0].curves}
    curves["progress"] = np.concatenate(
        [along_training(figure.curves["progress"], lap) for lap, figure in enumerate(figures)]
    )
    deviations = {
        name: sum((figure.deviations[name] for figure in figures), np.zeros(2))
        for name in figures[0].deviations
    }
    draws_ranks = [
        np.concatenate(ranks) for ranks in zip(*(figure.shuffled for figure in figures), strict=True)
    ]
    compared = {name: [curves[name]] for name in ("achieved", "achievable")} | {"shuffled": draws_ranks}
    tenths = [
        np.minimum(TENTHS - 1, (TENTHS * along_training(figure.middles, lap)).astype(int))
        for lap, figure in enumerate(figures)
    ]
    traits, along = {}, {}
    for trait in runs.traits:
        traits[trait], along[trait] = _trait_figures([figure.traits[trait] for figure in figures], tenths)
    heads, tails = (np.concatenate([figure.seams[side] for figure in figures], axis=1) for side in (0, 1))
    jumps = (heads[:, 1:] - tails[:, :-1]).T
    return {
        "curves": {name: values.tolist() for name, values in curves.items()},
        "deviation": {name: float(off / max(1.0, tokens)) for name, (off, tokens) in deviations.items()},
        "off": {
            name: float(_means_of_known(np.abs(np.ravel([ranks - curves["asked"] for ranks in several])))[0])
            for name, several in compared.items()
        },
        "traits": traits,
        "along": along,
        "seam": [{"achieved": achieved, "asked": asked} for achieved, asked in jumps.tolist()],
    }


def strays(scale: Mapping[str, Any]) -> bool:
    """Whether an order with these figures of `measure_along` is farther from its schedule than window shuffles."""
    off, deviation = scale["off"], scale["deviation"]
    pairs = (off["achieved"], off["shuffled"]), (deviation["asked"], deviation["shuffled"])
    return any(ours > TIMES * shuffled + RANKS for ours, shuffled in pairs)


def out_of_reach(scale: Mapping[str, Any], sequences: int) -> float | None:
    """The mean distance of the plain order's tenths from the asked ranks, if it exceeds REACHED and chance for this
    number of sequences; else None."""
    asked, achievable = (
        np.array(scale["curves"][name], np.float64).reshape(TENTHS, -1) for name in ("asked", "achievable")
    )
    gap = float(_means_of_known(np.abs(_means_of_known(achievable - asked)))[0])
    return gap if gap > REACHED + 1.0 / np.sqrt(sequences) else None


def _means_of_known(values: Floats) -> Floats:
    """The mean of the numbers in each row that are not NaN, float64 (n,); 0 if there are none."""
    known = ~np.isnan(np.atleast_2d(values))
    sums = np.where(known, np.atleast_2d(values), 0.0).sum(axis=1)
    return np.asarray(sums / np.maximum(known.sum(axis=1), 1))


class _LapFigures(NamedTuple):
    """curves: by name, float64 (n,); `progress` is within the lap. shuffled: mean ranks of draws, float64 (n,).
    deviations: by order, sum and tokens. middles: progress of batches, float64 (B,). traits: by trait, (tv float64
    (B,), moved float64 (B,), tv of draws [float64 (B,)]). seams: mean rank achieved and asked in the first window of
    each epoch, and in its last, float64 (2, epochs) each."""

    curves: dict[str, Floats]
    shuffled: list[Floats]
    deviations: dict[str, Floats]
    middles: Floats
    traits: dict[str, tuple[Floats, Floats, list[Floats]]]
    seams: tuple[Floats, Floats]


def _measure_lap(
    runs: ScoredRuns,
    lap: Lap,
    schedule: Schedule,
    edges: BatchEdges,
    shares: Mapping[str, Floats],
    points: int,
    seed: Sequence[int],
    draws: int,
) -> _LapFigures:
    from dagster_divorder.core.kernels.schedule import point_deviations

    plain = _Stream(runs, lap.plain)
    width = int(np.clip(lap.width, 1, max(1, plain.total)))

    def batches(stream: _Stream, bounds: Ints) -> dict[str, tuple[Floats, Floats]]:
        return {
            trait: point_deviations(
                stream.tokens,
                codes[stream.runs],
                bounds,
                plain.tokens,
                codes[plain.runs],
                width,
                shares[trait],
            )
            for trait, (codes, _) in runs.traits.items()
        }

    achieved, bounds = _Stream(runs, lap.order), edges(runs.sizes[lap.order])
    curves, seams = _curves(runs, lap, schedule, achieved, plain, points), _seams(lap, schedule, achieved)
    deviations = {
        "asked": achieved.deviation(schedule, lap.begin),
        "achievable": plain.deviation(schedule, lap.begin),
        "shuffled": np.zeros(2),
    }
    ours = batches(achieved, bounds)
    # Memory holds one order besides the plain one.
    del achieved
    ranks, shuffled = [], []
    for draw in range(draws):
        order = lap.shuffled([*seed, draw])
        stream = _Stream(runs, order)
        deviations["shuffled"] += stream.deviation(schedule, lap.begin)
        ranks.append(_means(stream, points))
        shuffled.append({trait: tv for trait, (tv, _) in batches(stream, edges(runs.sizes[order])).items()})
        del stream
    return _LapFigures(
        curves=curves,
        shuffled=ranks,
        deviations=deviations,
        middles=lap.begin + (1.0 - lap.begin) * (bounds[1:] + bounds[:-1]) / (2 * max(1, plain.total)),
        traits={trait: (*ours[trait], [draw[trait] for draw in shuffled]) for trait in runs.traits},
        seams=seams,
    )


def _curves(
    runs: ScoredRuns, lap: Lap, schedule: Schedule, achieved: _Stream, plain: _Stream, points: int
) -> dict[str, Floats]:
    at = np.arange(points + 1) / max(1, points)
    bands = (
        quantiles_along(achieved.runs, runs.tokens, values, points, quantiles) if points else np.zeros((0, 2))
        for values, quantiles in ((runs.rank, BANDS), (runs.raw, (0.5, 0.5)))
    )
    ranks, raw = bands
    progress = lap.begin + (1.0 - lap.begin) * at
    return {
        "progress": 0.5 * (progress[1:] + progress[:-1]),
        "asked": _asked_means(schedule, progress[:-1], progress[1:]),
        "achievable": _means(plain, points),
        "achieved": _means(achieved, points),
        "low": ranks[:, 0],
        "high": ranks[:, 1],
        "raw": raw[:, 0],
    }


def _means(stream: _Stream, points: int) -> Floats:
    """Mean ranks between equally spaced points, float64 (points,)."""
    at = np.arange(points + 1) / max(1, points) * stream.total
    return stream.mean_ranks(at[:-1], at[1:])


def _asked_means(schedule: Schedule, begins: Floats, ends: Floats) -> Floats:
    """Mean asked rank in each [begin, end) of progress, float64 (n,)."""
    within = (np.arange(64) + 0.5) / 64
    progress = begins[:, np.newaxis] + within * (ends - begins)[:, np.newaxis]
    return schedule.asked(progress.ravel()).reshape(progress.shape).mean(axis=1)


def _seams(lap: Lap, schedule: Schedule, achieved: _Stream) -> tuple[Floats, Floats]:
    """See `_LapFigures`. If an epoch's beginning is consumed, its first window is already past."""
    epochs, total = np.arange(lap.epochs + 1) / lap.epochs, achieved.total
    places = np.clip((epochs - lap.begin) / max(1e-12, 1.0 - lap.begin), 0.0, 1.0)
    width = min(lap.width / max(1, total), float(np.diff(places).min()))
    sides = (places[:-1], places[:-1] + width), (places[1:] - width, places[1:])
    heads, tails = (
        np.stack(
            [
                achieved.mean_ranks(first * total, last * total),
                _asked_means(
                    schedule, lap.begin + (1.0 - lap.begin) * first, lap.begin + (1.0 - lap.begin) * last
                ),
            ]
        )
        for first, last in sides
    )
    return heads, tails


def _trait_figures(
    laps: Sequence[tuple[Floats, Floats, list[Floats]]], tenths: Sequence[Ints]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """(figures of `traits`, figures of `along`) of one trait, from those of its laps."""
    tv, moved = (np.concatenate([lap[which] for lap in laps]) for which in (0, 1))
    shuffled = [np.concatenate(draw) for draw in zip(*(lap[2] for lap in laps), strict=True)]
    tenth = np.concatenate(tenths)
    counts = np.bincount(tenth, minlength=TENTHS)

    def by_tenth(values: Floats) -> list[float]:
        sums = np.bincount(tenth, values, TENTHS)
        return np.divide(sums, counts, out=np.full(TENTHS, np.nan), where=counts > 0).tolist()

    of_draws = np.mean(shuffled, axis=0)
    figures = {
        "moved": float(moved.mean()),
        "batch": float(tv.mean()),
        "shuffled": float(of_draws.mean()),
        "worst": float(tv.max()),
        "worst_shuffled": float(np.mean([draw.max() for draw in shuffled])),
    }
    return figures, {"batch": by_tenth(tv), "shuffled": by_tenth(of_draws), "moved": by_tenth(moved)}
