"""Spreads copies: any strategy's order, with the copies of a document as far apart as possible.

Letters: M items, R items left to order, r copies of one document among these.

1. Documents are classed by r, and the strategy orders each class (the class without copies makes up for a frozen
   prefix). A document at phase u in [0, 1) of that order has its copies at the times (i + u) / r, i = 0..r-1: R / r
   apart, the largest distance possible for all documents at once. Each class keeps its own mix.
2. The order by time is cut into cells. The strategy reorders each cell from the totals so far, since the classes were
   ordered separately. If R / r is less than MIN_DISTANCE cells, a document keeps its times.

Items that hold several texts, such as packed sequences, bring their own times and the room around these (`Times`). Each
item is dealt to a cell in its room, or to any cell if it has no copies. Every prefix of cells then has its part of the
path to the whole's mix. Each cell then has the mix, and is ordered by its own.

Along a schedule of a score, copies are due together. They are then spread inside each window only.

If a document has frozen copies, its next copy comes about half the even distance after the last of them. A strategy
that ignores traits gains nothing from cells: all documents keep their times, and their last copies come at least about
a quarter of it before the frozen ones of the next epoch.
Guarantee: copies stand at least R / r places less two cells apart, about half of R / r at worst. Copies that keep their
times stand R / r apart within rounding. Time is linear in M for any number of copies.
Cost: two runs of the strategy over the items. Source: duplicate separation of Don't Shuffle, Optimize, which makes as
many subsets as the most copied document has copies, each of unique documents; the times are those of its 2-way jittered
shuffle.
Known weakness: sequences hold slightly fewer topics, and markedly fewer if much of the corpus keeps its times
(docs/decisions/spreading-copies.md). Distances are even in items, and nearly even in tokens. Copies at even times
cannot follow targets that move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import whole_numbers
from dagster_divorder.core.order.arguments import OrderTask, make_task
from dagster_divorder.core.order.cells import alone, cell_bounds, each_cell, order_in_cells
from dagster_divorder.core.order.curricula import Curriculum, order_in_windows
from dagster_divorder.core.order.problem import Order, Problem, Totals
from dagster_divorder.core.order.strategy import Strategy
from dagster_divorder.core.order.targets import path_back, reached_at

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

CELL, MIN_CELL, MAX_CELLS = 2048, 128, 128
"""CELL: about how many items a cell has without copies. MIN_CELL: its least size, for copies MIN_DISTANCE cells apart
or a mix that moves. MAX_CELLS: most cells, even if they then exceed CELL. Larger cells give the strategy more choice,
but more copies keep their times, which limits it."""

SERVED_COPIES = 0.95
"""Share of the copies that cells shrink for."""

CELLS_OF_MOVING_MIX = 16
"""Fewest cells if the mix has to move: after a frozen prefix or with targets."""

MIN_DISTANCE = 4
"""Copies nearer than this many cells keep their times. With more, distances are more even, and the strategy has fewer
items to choose from."""

OWN_MIX_SHARE = 0.01
"""Share of their own mix in the targets of documents without copies."""

ROUNDS = 8
"""Rounds of moving items between cells; more bring cells nearer to the mix. Mixture corpus, everything twice, 8192
tokens, 4, 8 and 16 rounds: mean prefix L2 20,400, 19,400 and 19,000 tokens, worst window of 256 sequences 0.74, 0.70
and 0.70 points off."""

RARE = 32
"""Classes with fewer documents than this share one order of phases."""


@dataclass(frozen=True, eq=False)
class Times:
    """Times of items that hold several texts, such as packed sequences; they replace `copies`.

    times: float64 (M,), in [0, 1), of items that are not frozen; NaN for items that may go anywhere. copies: int64
    (M,), the copies of an item's most copied text, 1 if it has none. cells: their number; 0: as many as `copies` need.
    exact: every item keeps its time. room: float64 (M, 2), the earliest and the latest time of each item, for items of
    about one length. An item goes to a cell between them, or keeps its time if there is none. Without room, items stay
    in the cells of their times.
    """

    times: NDArray[np.float64]
    copies: NDArray[np.int64]
    cells: int = 0
    exact: bool = False
    room: NDArray[np.float64] | None = None

    def first(self, items: int) -> Times:
        """The times of the first items alone."""
        room = None if self.room is None else self.room[:items]
        return replace(self, times=self.times[:items], copies=self.copies[:items], room=room)


def spread_order(
    counts: csr_matrix | csr_array, groups: ArrayLike, copies: ArrayLike | Times, **options: Any
) -> Order:
    """Permutation of the M items, int64 (M,), in which copies stand far apart.

    copies: int (M,), equal for items that are copies of each other, such as a record's document or group of near
        duplicates; or the items' times. counts, groups, options: as in `core.order.order`, `frozen` included.

    The same arguments give the same bytes. Without any copy the result is that of `order`.

    Raises:
        InputError: an argument cannot be used.
    """
    task = make_task(counts, groups, **options)
    return np.concatenate([task.frozen, spread_rest(task, copies).order])


class Spread(NamedTuple):
    """order: int64 (R,), the rest in order. kept: bool (M,), by item: whether it keeps its time. cells: their number.
    mixed: int64 (cells + 1,), the cells' bounds in the order if each has the mix, else None."""

    order: Order
    kept: NDArray[np.bool_]
    cells: int
    mixed: NDArray[np.int64] | None = None


def spread_rest(task: OrderTask, copies: ArrayLike | Times) -> Spread:
    """Orders the rest with its copies apart. copies: as in `spread_order`."""
    if task.strategy.follows_score:
        repeats = np.ones(task.problem.items, np.int64)
        repeats[task.frozen] = 0
        order = spread_along(task.problem, task.strategy, copies, repeats, consumed=task.frozen)
        return Spread(order, np.zeros(task.problem.items, bool), 1)
    given, kept = _times_given(task, copies), np.zeros(task.problem.items, bool)
    times, copies_of = given.times[task.rest].copy(), given.copies[task.rest]
    may_stand_anywhere = np.isnan(times)
    if not task.rest.size:
        return Spread(task.rest, kept, 1)
    problem = task.rest_problem()
    if may_stand_anywhere.all():
        return Spread(task.rest[task.strategy.permute(problem)], kept, 1)
    moving = bool(problem.placed.items) or problem.targets is not None
    cells = given.cells or cell_number(problem.items, copies_of, moving=moving)
    keeps_time = keep_times(problem.items, copies_of, cells)
    if given.room is not None:
        inside = given.room[task.rest] * cells + np.array([-1e-9, 1e-9])
        ranges = np.stack([np.ceil(inside[:, 0]), np.floor(inside[:, 1])], axis=1).astype(np.int64)
        keeps_time = ranges[:, 0] >= ranges[:, 1]
        times = _dealt_times(problem, times, ranges, cells)
    elif may_stand_anywhere.any():
        times[may_stand_anywhere] = _ranked_times(problem, task.strategy, times)
    order = np.argsort(times, kind="stable")
    if given.exact:
        kept[task.rest] = copies_of > 1
        return Spread(task.rest[order], kept, 1)
    kept[task.rest] = keeps_time
    bounds, mixed = cell_bounds(problem.items, cells, problem.batch), None
    if given.room is not None:
        bounds = mixed = np.searchsorted(times[order], np.arange(cells + 1) / cells)
    ordered = order_in_cells(
        problem, task.strategy, order, bounds, keep=keeps_time, own_mix=mixed is not None
    )
    return Spread(task.rest[ordered], kept, cells, mixed)


def spread_along(
    problem: Problem,
    strategy: Strategy,
    copies: ArrayLike | Times,
    repeats: NDArray[np.int64],
    *,
    consumed: NDArray[np.int64],
) -> Order:
    """Order of items along the schedule of `strategy`, which follows a score; int64 (sum of repeats,).

    Copies have equal scores, so they are spread inside windows of the schedule, never across it; consumed copies are
    ignored. copies: as in `spread_order`. repeats: int64 (M,), how often each item comes; repeats are copies too.
    consumed: int64, the items that came before, repeated as often as they came.
    """
    assert isinstance(strategy, Curriculum)
    left = np.flatnonzero(repeats)
    inside, order, windows = strategy.windows(
        problem.part(left, placed=problem.part(consumed).totals()), repeats[left]
    )
    order = left[order]
    if not isinstance(copies, Times):
        whole_numbers("copies", copies, problem.items, least=None)
        _, copies = np.unique(copies, return_inverse=True)
        alike = repeats.max(initial=0) > 1 or len(np.unique(copies[left])) < len(left)
    else:
        alike = not copies.exact and (repeats.max(initial=0) > 1 or not np.isnan(copies.times[left]).all())
    if not alike:
        return order_in_windows(problem, inside, order, windows)
    bounds = windows.bounds
    seeds = np.random.SeedSequence([problem.seed, 0]).generate_state(len(bounds)).tolist()

    def order_window(begin: int, end: int, seed: int) -> Order:
        items = order[begin:end]
        part = replace(alone(problem, items), seed=seed)
        nothing = np.zeros(0, np.int64)
        own = (
            copies[items]
            if isinstance(copies, np.ndarray)
            else _times_inside(copies, problem, inside, items, len(bounds) - 1, seed)
        )
        return items[spread_rest(OrderTask(part, inside, nothing, np.arange(len(items))), own).order]

    return np.concatenate([order[:0], *each_cell(order_window, bounds, seeds)])


def _times_inside(
    given: Times, problem: Problem, inside: Strategy, items: NDArray[np.int64], windows: int, seed: int
) -> Times:
    """Times of the items of one window; there are `windows` in all. An item at time t in all of training was laid out
    at t * windows modulo 1 of its window. An item that comes several times comes at that place of each part of the
    window."""
    distinct, number, times = np.unique(items, return_inverse=True, return_counts=True)
    phases = given.times[distinct] * windows % 1.0
    free = np.flatnonzero(np.isnan(phases))
    if len(free) and (times > 1).any():
        ranked = inside.permute(replace(alone(problem, distinct[free]), seed=seed))
        phases[free[ranked]] = (np.arange(len(free)) + 0.5) / len(free)
    by_item = np.argsort(number, kind="stable")
    nth = np.empty(len(items), np.int64)
    nth[by_item] = np.arange(len(items)) - np.repeat(np.cumsum(times) - times, times)
    return Times((nth + phases[number]) / times[number], given.copies[distinct][number] * times[number])


def _times_given(task: OrderTask, copies: ArrayLike | Times) -> Times:
    """`copies` if they are times already, else the times of the copies."""
    if isinstance(copies, Times):
        return copies
    whole_numbers("copies", copies, task.problem.items, least=None)
    _, group = np.unique(copies, return_inverse=True)
    return _times_of_copies(task, group.astype(np.int64))


def _times_of_copies(task: OrderTask, group: NDArray[np.int64]) -> Times:
    """Times of items that are copies of others. group: int64 (M,), 0..n-1, equal for copies."""
    times, copies = np.full(task.problem.items, np.nan), np.ones(task.problem.items, np.int64)
    if task.rest.size:
        rest_group = group[task.rest]
        copies[task.rest] = np.bincount(rest_group, minlength=group.max() + 1)[rest_group]
        phases = _phases(task, group)
        bound = np.flatnonzero((copies[task.rest] > 1) | (phases != [0.0, 1.0]).any(axis=1)[rest_group])
        if bound.size:
            problem = task.rest_problem()
            times[task.rest[bound]] = _even_times(problem, task.strategy, bound, rest_group, phases)
    return Times(times, copies, exact=not task.strategy.sees_traits)


def cell_number(
    items: int,
    copies: NDArray[np.int64],
    *,
    moving: bool = False,
    smallest: int = MIN_CELL,
    apart: int = MIN_DISTANCE,
) -> int:
    """The number of cells, each of `smallest` items or more. copies: int64, by item: how often its document occurs.
    moving: the mix has to move. apart: cells between copies, if there is room."""
    repeated = np.sort(copies[copies > 1])
    wanted = apart * repeated[int(SERVED_COPIES * (len(repeated) - 1))] if len(repeated) else 1
    wanted, fewest, most = (
        max(wanted, CELLS_OF_MOVING_MIX * moving),
        max(1, items // CELL),
        max(1, items // smallest),
    )
    return int(min(max(min(wanted, most), fewest), MAX_CELLS))


def keep_times(items: int, copies: NDArray[np.int64], cells: int) -> NDArray[np.bool_]:
    """Whether an item has so many copies that it keeps its time, bool, by item. copies: int64, by item: how often its
    document occurs."""
    return (copies > 1) & (items < MIN_DISTANCE * copies * (items // cells))


def _phases(task: OrderTask, group: NDArray[np.int64]) -> NDArray[np.float64]:
    """The earliest and the latest phase by group, float64 (n, 2) in [0, 1]: 0 and 1, except for copies near frozen
    ones: less than half the even distance after them, or less than a quarter of it before they come again in the next
    epoch."""
    left, consumed = np.bincount(group[task.rest], minlength=group.max() + 1), len(task.frozen)
    first, last = np.full(len(left), np.inf), np.full(len(left), -np.inf)
    np.minimum.at(first, group[task.frozen], np.arange(consumed))
    np.maximum.at(last, group[task.frozen], np.arange(consumed))
    turns = left / len(task.rest)
    earliest = np.clip(0.5 - (consumed - last) * turns, 0.0, 0.5)
    # Only for strategies that ignore traits; for others both bounds would take the end further from the mix.
    before_next = (
        np.clip(0.25 - first * turns, 0.0, 0.25) if not task.strategy.sees_traits else np.zeros(len(left))
    )
    return np.stack([earliest, 1.0 - before_next], axis=1)


def _even_times(
    problem: Problem,
    strategy: Strategy,
    items: NDArray[np.int64],
    group: NDArray[np.int64],
    phases: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The time of each item, float64 (n,) in [0, 1). items: all copies of their documents."""
    items = items[np.argsort(group[items], kind="stable")]
    documents, first, sizes = np.unique(group[items], return_index=True, return_counts=True)
    rare = np.bincount(sizes) < RARE
    kind = np.where(rare[sizes], 0, sizes)
    phase = np.empty(len(documents))
    random = np.random.default_rng([problem.seed, 1])
    for copies in np.unique(kind):
        of_kind = np.flatnonzero(kind == copies)
        ranked = strategy.permute(alone(problem, items[first[of_kind]]))
        # Each class has its own offset, so that documents of all classes do not meet at the same times.
        phase[of_kind[ranked]] = (np.arange(len(of_kind)) + random.random()) / len(of_kind)
    earliest, latest = phases[documents].T
    phase = earliest + (latest - earliest) * phase
    number = np.arange(len(items)) - first.repeat(sizes)
    return ((number + phase.repeat(sizes)) / sizes.repeat(sizes))[np.argsort(items)]


def _ranked_times(problem: Problem, strategy: Strategy, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Even times of the items that have no time, in the strategy's order; float64 (n,) in [0, 1)."""
    items = np.flatnonzero(np.isnan(times))
    ranked = np.empty(len(items))
    ranked[strategy.permute(_beside(problem, items))] = (np.arange(len(items)) + 0.5) / len(items)
    return ranked


def _dealt_times(
    problem: Problem, times: NDArray[np.float64], ranges: NDArray[np.int64], cells: int
) -> NDArray[np.float64]:
    """Times of all items, float64 (n,) in [0, 1), that give every cell its part of the path to the whole's mix.

    ranges: int64 (n, 2), the first cell that an item may be in, and the cell after the last; with an empty range it
    keeps its time. Items with a time begin in its cell, and the others are dealt to cells that lack them; then items
    move between cells.
    """
    from dagster_divorder.core.kernels.order_cells import move_to_mix
    from dagster_divorder.core.kernels.order_items import deal_to_segments

    rows, groups, may_stand_anywhere = problem.rows(), problem.groups, np.isnan(times)
    kept = ranges[:, 0] >= ranges[:, 1]
    cell = np.where(may_stand_anywhere, 0.0, times * cells).astype(np.int64)
    cell = np.where(kept, cell, np.clip(cell, ranges[:, 0], ranges[:, 1] - 1))

    def cell_totals(items: NDArray[np.int64]) -> NDArray[np.float64]:
        part = problem.part(items)
        place = part.indices.astype(np.int64) * cells + cell[items].repeat(np.diff(part.indptr))
        sums: NDArray[np.float64] = np.bincount(place, part.data, len(groups) * cells).astype(np.float64)
        return sums.reshape(len(groups), cells)

    begin, end = (totals.values[groups == 0].sum() for totals in (problem.placed, problem.whole))
    wanted = np.diff(reached_at(path_back(problem), groups, np.linspace(begin, end, cells + 1)), axis=0).T
    lacking = wanted - cell_totals(np.flatnonzero(~may_stand_anywhere))
    queue = np.random.default_rng([problem.seed, 2]).permutation(problem.items)
    anywhere = queue[may_stand_anywhere[queue]]
    cell[anywhere] = deal_to_segments(anywhere, rows, np.ascontiguousarray(np.maximum(lacking, 0.0)))

    dense = np.zeros((cells, rows.dense.shape[1]))
    np.add.at(dense, cell, rows.dense)
    move_to_mix(
        queue,
        cell,
        ranges,
        rows,
        np.cumsum(cell_totals(anywhere) - lacking, axis=1),
        np.ascontiguousarray(np.cumsum(dense - dense.mean(axis=0), axis=0).T),
        ROUNDS,
    )
    moved = queue[~kept[queue]]
    moved = moved[np.argsort(cell[moved], kind="stable")]
    sizes = np.bincount(cell[moved], minlength=cells)
    nth = np.arange(len(moved)) - (np.cumsum(sizes) - sizes)[cell[moved]]
    out = times.copy()
    out[moved] = (cell[moved] + (nth + 0.5) / sizes[cell[moved]]) / cells
    return out


def _beside(problem: Problem, items: NDArray[np.int64]) -> Problem:
    """The problem of ordering `items` while all others are placed evenly among them.

    Let d be the deviation of the placed totals from the whole's mix, U the items' own sums and s = sum(U), by group.
    Their target is (U + d) / s: it makes up for d and leaves the others their own mix. The placed totals count by the
    items' share of everything left.
    """
    part = problem.part(items)
    own, placed, whole = part.totals(), problem.placed, problem.whole
    groups = np.append(problem.groups, [0, 0])  # items and norms are counted by tokens of group 0

    def vector(totals: Totals) -> NDArray[np.float64]:
        return np.append(totals.values, [totals.items, totals.norms])

    def by_group(totals: Totals) -> NDArray[np.float64]:
        return np.bincount(problem.groups, weights=totals.values)[groups]

    def share(part: NDArray[np.float64], whole_: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.divide(part, whole_, out=np.zeros_like(whole_), where=whole_ > 0)

    deviation = vector(placed) - share(vector(whole), by_group(whole)) * by_group(placed)
    target = share(np.maximum(vector(own) + deviation, 0.0), by_group(own))
    so_far = by_group(placed) * share(by_group(own), by_group(whole) - by_group(placed))
    begun = np.maximum(target * so_far + deviation, 0.0)
    ended = begun + vector(own)

    def totals(vector: NDArray[np.float64]) -> Totals:
        dense = placed.dense
        return Totals(values=vector[:-2], items=round(vector[-2]), norms=float(vector[-1]), dense=dense)

    targets = problem.targets
    if targets is not None:
        # A table with shares of 0 may leave no way to place these items alone.
        shares = (1.0 - OWN_MIX_SHARE) * targets.shares + OWN_MIX_SHARE * share(vector(own), by_group(own))[
            :-2
        ]
        targets = replace(targets, shares=shares)
    beside = replace(part, placed=totals(begun), whole=totals(ended), targets=targets)
    return beside.recentred(placed.dense)


@dataclass(frozen=True)
class Spacing:
    """Distances between successive copies of a document, from one beginning to the next.

    copies: items that repeat an earlier one. smallest, median: distances in items; None without copies.
    smallest_share: the smallest distance over the even one, which is M / r for a document with r copies.
    smallest_tokens, median_tokens: the same in tokens; None without tokens.
    """

    copies: int
    smallest: int | None
    median: float | None
    smallest_share: float | None
    smallest_tokens: int | None
    median_tokens: float | None


def spacing(order: ArrayLike, copies: ArrayLike, tokens: ArrayLike | None = None) -> Spacing:
    """Distances of copies in an order, int (M,). copies, tokens: int (M,), by item, as in `spread_order`."""
    items = np.asarray(order, np.int64)
    values = whole_numbers("copies", copies, len(items), least=None)
    # Only the values that repeat are kept, usually few, so that a single array of all is sorted.
    ordered = np.sort(values)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not repeated.size:
        return Spacing(0, None, None, None, None, None)
    del ordered
    places = np.flatnonzero(np.isin(values, repeated)[items])
    group = np.searchsorted(repeated, values[items[places]])
    by_text = np.argsort(group, kind="stable")
    places, group = places[by_text], group[by_text]
    repeats = np.flatnonzero(group[1:] == group[:-1])
    one, next_ = places[repeats], places[repeats + 1]
    distance = next_ - one
    share = distance * np.bincount(group)[group[repeats]] / len(items)
    smallest_tokens, median_tokens = None, None
    if tokens is not None:
        lengths = np.asarray(tokens, np.int64)[items]
        begin = np.cumsum(lengths) - lengths
        in_tokens = begin[next_] - begin[one]
        smallest_tokens, median_tokens = int(in_tokens.min()), float(np.median(in_tokens))
    return Spacing(
        copies=len(repeats),
        smallest=int(distance.min()),
        median=float(np.median(distance)),
        smallest_share=float(share.min()),
        smallest_tokens=smallest_tokens,
        median_tokens=median_tokens,
    )
