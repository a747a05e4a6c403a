"""Curricula: orders along a schedule of a score that keep the mix of every other trait in each window.

Letters: M items, W windows.

Items are laid out as the schedule asks (`core.order.schedule`) and cut into windows. Another strategy, `inside`, orders
each window: `original` leaves the plain orders of the papers, `random` gives their window shuffle (jitter), `balanced`
keeps the window's own mix throughout. The schedule decides that mix: a source that correlates with the score moves with
the score.

Guarantee: no item moves by more than a window, or past a jump of the schedule. Strength 0 gives the order of `inside`.
Cost: a sort, and `inside` over every window; twice if it sees traits.
Source: docs/decisions/curricula.md, and the papers of `core.order.schedule`.
Known weakness: a window's mix differs from its neighbours' by chance, as a sample of its size does. With n folds a
window holds ranks of n times its own width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from dagster_divorder.core.order.cells import order_in_cells
from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.schedule import (
    ATOM,
    Pieces,
    due_times,
    folded,
    jumps,
    reversed_ranks,
    sections,
    segments,
    through,
)
from dagster_divorder.core.order.strategy import Nesting, Strategy, StrategyOptions

WINDOW = 1 / 32
"""Share of training that a window covers; items move inside it."""


class ShapeOptions(StrategyOptions):
    inside: str = "random"
    """The strategy that orders the items of a window; its options may be given too."""
    strength: float = Field(1.0, ge=0, le=1)
    """Share of the items that follow the schedule; the others are spread evenly."""
    window: float = Field(WINDOW, gt=0, le=1)
    """Share of training in which an item may move. Windows get nearer to the mix, and farther from the schedule, as it
    rises."""


class FoldOptions(ShapeOptions):
    folds: int = Field(5, ge=1)
    """How often training passes over all ranks."""
    descending: bool = False
    """From the highest score down."""


class StairOptions(ShapeOptions):
    sections: int = Field(2, ge=1)
    """Equal sections of the ranking; the ranks around their borders are folded."""
    ratio: float = Field(0.225, ge=0, le=1)
    """Share of the ranking on each side of a border that is folded."""
    folds: int = Field(3, ge=1)
    """How often training passes over a border."""
    descending: bool = False
    """From the highest score down."""


class SawOptions(StairOptions):
    sections: int = Field(3, ge=1)
    ratio: float = Field(0.075, ge=0, le=1)
    folds: int = Field(2, ge=1)


class SegmentOptions(ShapeOptions):
    first: float = Field(0.1, ge=0, le=1)
    """Share of training, at its beginning, for one end of the ranking."""
    last: float = Field(0.1, ge=0, le=1)
    """Share of training, at its end, for one end of the ranking."""
    ends: Literal["low-high", "high-low", "low-low", "high-high"] = "low-high"
    """The ends of the ranking that come first and last."""

    @field_validator("last")
    @classmethod
    def _both(cls, last: float, info: ValidationInfo) -> float:
        first = info.data.get("first", 0.0)
        if first + last > 1.0 + ATOM:
            raise ValueError(
                f"with first = {first:g}, expected {1.0 - first:g} at most: they share one training"
            )
        return last


class PointsOptions(ShapeOptions):
    points: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 1.0))
    """(progress, rank), both from 0 to 1: the rank at each progress, joined by straight lines."""

    @field_validator("points")
    @classmethod
    def _rising(cls, points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        progress = [point[0] for point in points]
        rises = all(before < after for before, after in pairwise(progress))
        if not rises or len(points) < 2 or progress[0] != 0 or progress[-1] != 1:
            raise ValueError(f"progress is {progress}; expected numbers that rise from 0 to 1")
        if wrong := [rank for _, rank in points if not 0 <= rank <= 1]:
            raise ValueError(f"rank is {wrong[0]}; expected a number from 0 to 1")
        return points


def pieces_of(shape: str, options: Mapping[str, Any]) -> Pieces:
    """The schedule of a shape with all its options, float64 (P, 4)."""
    if shape in ("rise", "fall"):
        pieces = folded(1)
    elif shape in ("fold", "zigzag"):
        pieces = folded(options["folds"], turning=shape == "zigzag")
    elif shape in ("stair", "saw"):
        pieces = sections(options["sections"], options["ratio"], options["folds"], turning=shape == "saw")
    elif shape == "segment":
        pieces = segments(options["first"], options["last"], options["ends"])
    else:
        pieces = through(options["points"])
    return reversed_ranks(pieces) if shape == "fall" or options.get("descending") else pieces


SHAPES: Mapping[str, type[ShapeOptions]] = {
    "rise": ShapeOptions,
    "fall": ShapeOptions,
    "fold": FoldOptions,
    "zigzag": FoldOptions,
    "stair": StairOptions,
    "saw": SawOptions,
    "segment": SegmentOptions,
    "points": PointsOptions,
}
"""The shapes of schedules, with their options."""


def window_share(window: int | None, batch: float, pieces: Pieces) -> float:
    """The share of training of a window.

    window: in batches. None: a 32nd of training, within 4 to 64 batches, at most an eighth of training, and at most a
    quarter of the ranks. batch: the share of a batch. pieces: the schedule.
    """
    if window is not None:
        return min(1.0, window * batch)
    steepest = float(np.max(np.abs(pieces[:, 3] - pieces[:, 2]) / (pieces[:, 1] - pieces[:, 0])))
    return min(max(WINDOW, min(4 * batch, 1 / 8)), 64 * batch, 1 / (4 * max(1.0, steepest)))


class Windows(NamedTuple):
    """bounds: int64 (W + 1,), of the windows, in items in order. cuts: int64 (K + 1,), the bounds where the schedule
    jumps, and both ends."""

    bounds: NDArray[np.int64]
    cuts: NDArray[np.int64]


def windows_of(sizes: NDArray[Any], window: float, batch: int, pieces: Pieces, begin: float = 0.0) -> Windows:
    """Windows of items in order. Each has about the share `window` of the tokens, in whole batches if items are equally
    long and a window has four or more. No window crosses a jump of the schedule, unless another jump is less than half
    a window away. pieces, begin: as in `core.order.schedule.due_times`."""
    items, alike = len(sizes), not len(sizes) or sizes.min() == sizes.max()
    weights = np.ones(items) if alike else sizes.astype(np.float64)
    middles, total = np.cumsum(weights) - 0.5 * weights, weights.sum()
    stretches = np.concatenate([[0.0], jumps(pieces, begin, 0.5 * window), [1.0]])
    inner = []
    for low, high in pairwise(stretches):
        number = min(max(1, round((high - low) / window)), max(1, items))
        inner.append(low + (high - low) * np.arange(1, number) / number)
    cuts, bounds = (np.searchsorted(middles, total * at) for at in (stretches, np.concatenate(inner)))
    # Items without tokens at the end belong to the last window.
    cuts[-1] = items
    if alike and window * items >= 4 * batch:
        bounds = np.rint(bounds / batch).astype(np.int64) * batch
    return Windows(np.union1d(cuts, bounds), np.unique(cuts))


@dataclass(frozen=True, kw_only=True)
class Curriculum(Nesting):
    """A strategy that follows a schedule. With strength 0 it is the strategy `inside`."""

    def _bound(self, given: Mapping[str, Any]) -> Strategy:
        bound = super()._bound(given)
        return bound if bound.options["strength"] else self._inside(bound.options)

    def _inside(self, options: Mapping[str, Any]) -> Strategy:
        rest = {name: value for name, value in options.items() if name not in SHAPES[self.name].model_fields}
        return self._inner(options["inside"]).with_options(**rest)

    def permute(self, problem: Problem) -> Order:
        """Permutation of the problem's items, int64 (M,)."""
        return order_in_windows(problem, *self.windows(problem))

    def windows(
        self, problem: Problem, repeats: NDArray[np.integer] | None = None
    ) -> tuple[Strategy, Order, Windows]:
        """(the strategy inside windows, the items by due time, their windows).

        repeats: int (M,), how often each item comes; by default once.
        """
        own = {name: self.options[name] for name in SHAPES[self.name].model_fields}
        assert problem.scores is not None
        sizes, first = problem.sizes, problem.groups == 0
        consumed = float(problem.placed.values[first].sum())
        items = np.arange(problem.items) if repeats is None else np.repeat(np.arange(problem.items), repeats)
        left = float(sizes[items].sum(dtype=np.float64))
        begin = consumed / (consumed + left) if consumed else 0.0
        pieces = pieces_of(self.name, own)
        due = due_times(
            problem.scores,
            sizes,
            pieces,
            strength=own["strength"],
            begin=begin,
            repeats=repeats,
            seed=problem.seed,
        )
        order = items[np.argsort(due, kind="stable")]
        # `window` is a share of all of training, frozen items included.
        share = min(1.0, own["window"] / (1.0 - begin)) if begin < 1.0 else 1.0
        windows = windows_of(sizes[order], share, problem.batch, pieces, begin)
        return self._inside(self.options), order, windows


def order_in_windows(problem: Problem, inside: Strategy, order: Order, windows: Windows) -> Order:
    """`order`, items by due time, with each window ordered by `inside`.

    A strategy that sees traits orders half windows, then half windows shifted by half their size. The mix then moves in
    smaller steps, and no item moves by more than a window.
    """
    if not inside.sees_traits:
        return order_in_cells(problem, inside, order, windows.bounds, own_mix=True)
    halves = np.union1d(windows.bounds, (windows.bounds[1:] + windows.bounds[:-1]) // 2)
    between = np.union1d(windows.cuts, (halves[1:] + halves[:-1]) // 2)
    order = order_in_cells(problem, inside, order, halves, own_mix=True)
    return order_in_cells(problem, inside, order, between, own_mix=True, draw=1)


def curricula(others: Mapping[str, Strategy]) -> list[Strategy]:
    """A strategy for each shape; `others` are the strategies that may order its windows."""
    return [
        Curriculum(shape, Curriculum.permute, options, others=others, inner="inside", follows_score=True)
        for shape, options in SHAPES.items()
    ]
