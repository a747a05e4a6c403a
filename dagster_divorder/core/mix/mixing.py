"""Mixes: how often each record occurs in the training stream so that each value gets its share of tokens.

Letters: N records, K values of the mixed trait (such as sources), T planned tokens, R the largest number of epochs.

A plan gives value k a share s_k of T tokens, so T s_k / size_k epochs of its records:

- `natural`: s_k ~ size_k, the corpus as it is.
- a number: s_k ~ size_k ** number; `sqrt` is 0.5. Small values gain as it falls.
- `uniform`: equal tokens for every value. `unimax`: the same, within R epochs. A value that would take more than R
  epochs gets R; the others share the rest equally.
- a table: the shares themselves. Values that it does not name get nothing.

With limits c_k = R size_k, `unimax` gives min(c_k, level), with the level at which the sum is T. The other rules raise
an error if a limit binds.

Records are never split: all records of a value occur floor(epochs) times, and a part of them once more. Consumed
records occur at least as often as they were read, and count first.
Guarantee: the part's tokens differ from the plan by at most half the shortest record left out. If that is more than
CLOSE of the plan (long books, say), the longest records are tried first, so that the others can fill the rest.
Cost: a sort of the records by value and one by each trait; 60 bytes a record while it runs.
Sources: powers, mT5 (Xue et al. 2021); UniMax (Chung et al. 2023), which deals the budget from the smallest value
up, with the same result; roll-over, On Shuffling Tokens (TokenShard).
Known weakness: a value of few long records may miss its plan. Books that are tried first are chosen without regard to
their clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

POWERS = {"natural": 1.0, "sqrt": 0.5, "uniform": 0.0, "unimax": 0.0}
"""Rules whose weights are powers of the sizes, and the powers."""

SUM_TOLERANCE = 1e-6
"""Tolerance of the sum of a table's shares, and relative tolerance of a share above its limit."""

MOST_NAMED = 20
"""Most values that a message names."""

CLOSE = 0.005
"""Relative error of a value's tokens above which its longest records are tried first. With a smaller value, shares
are nearer to the plan, but fewer records are chosen along the order."""

ODD = np.uint64(0x9E3779B97F4A7C15)
"""A factor that spreads the bits of numbers over all of 64."""


@dataclass(frozen=True, eq=False)
class MixPlan:
    """A plan by value. names: the K values of the trait. sizes int64 (K,): available tokens. shares float64 (K,):
    planned, sum 1. tokens int64 (K,): planned. epochs float64 (K,): tokens / sizes, 1 for a value without tokens that a
    rule includes.
    """

    names: tuple[str, ...]
    sizes: Ints
    shares: Floats
    tokens: Ints
    epochs: Floats


def plan_mix(
    weights: str | float | Mapping[str, float],
    sizes: Mapping[str, int],
    *,
    total_tokens: int | None = None,
    max_repeats: float | None = None,
    read: Ints | None = None,
) -> MixPlan:
    """Planned tokens of each value.

    weights: one of POWERS, a power >= 0, or value -> share >= 0, divided by their sum if that is not 1. sizes: value ->
    tokens that may be trained on. total_tokens: length of the stream; None: the tokens of all values with a weight.
    max_repeats: most epochs of one value; None: no limit. read: int64 (K,), tokens that are read already: what is
    unread of the total has the shares, whatever was read.

    Raises:
        InputError: a value has no tokens, or the mix needs more than max_repeats epochs of one.
    """
    names, available, read = _values(sizes, read)
    weight = _weights(weights, names, available)
    weight /= weight.max()  # the sum of very large weights overflows
    used = weight > 0
    total = (int(available[used].sum()) if total_tokens is None else total_tokens) - int(read.sum())
    if total < 0:
        raise InputError(
            f"mixing.total_tokens is {total_tokens}, and {int(read.sum()):,} tokens are read already "
            "(order.frozen_tokens); expected more: raise it, or set order.frozen_tokens = 0 to order everything again"
        )
    # `unimax` reaches its limits when all values have the same number of epochs.
    proportion = available if weights == "unimax" else weight
    planned = wanted = total * proportion / proportion.sum()
    if max_repeats is not None:
        most = np.where(used, np.maximum(available * float(max_repeats) - read, 0), 0)
        if weights == "unimax":
            planned = _equal_parts(most, total)
        if most.sum() < total - 0.5 or (planned > most * (1 + SUM_TOLERANCE) + 0.5).any():
            raise InputError(_not_reached(names, available, read, wanted, total, max_repeats))
    tokens = np.floor(planned).astype(np.int64)
    # Whole tokens by largest remainder. Beyond 2**53 the floors may sum to a few tokens too many.
    short = total - int(tokens.sum())
    tokens[np.argsort(tokens - planned, kind="stable")[: max(short, 0)]] += 1
    tokens[planned.argmax()] += min(short, 0)
    tokens += read
    table = not isinstance(weights, str)
    epochs = np.divide(tokens, available, out=np.full(len(names), 0.0 if table else 1.0), where=available > 0)
    if epochs.max() >= np.iinfo(np.int32).max:
        raise InputError(
            f"mixing.total_tokens is {total}: {epochs.max():.3g} epochs of a value; expected fewer"
        )
    return MixPlan(names, available, planned / max(total, 1), tokens, epochs)


def plan_phases(
    phases: Sequence[tuple[float | None, str | float | Mapping[str, float]]],
    sizes: Mapping[str, int],
    *,
    total_tokens: int | None = None,
    max_repeats: float | None = None,
    read: Ints | None = None,
) -> tuple[MixPlan, Floats]:
    """(planned tokens of each value over all of training, its tokens in each phase that is left, float64 (K, S)).

    phases: (where it ends: a share below 1 of all tokens, or None for the end of training; its weights, as in
    `plan_mix`). Tokens that are `read` fill the first phases; the rest of a phase has its shares.
    Other arguments and errors: as in `plan_mix`, with max_repeats over all phases.
    """
    names, available, so_far = _values(sizes, read)
    if total_tokens is None:
        weighed = [_weights(weights, names, available) > 0 for _, weights in phases]
        total_tokens = int(available[np.logical_or.reduce(weighed)].sum())
    ends = [total_tokens if end is None else round(end * total_tokens) for end, _ in phases]
    for number, (end, last) in enumerate(zip(ends, [0, *ends], strict=False), 1):
        if not last < end <= total_tokens:
            raise InputError(
                f"phase {number} of mixing ends at {end:,} tokens; expected more than {last:,}, and at most the "
                f"{total_tokens:,} of all of training: change its end, or mixing.total_tokens"
            )
    quotas: list[Ints] = []
    plan = None
    for end, (_, weights) in zip(ends, phases, strict=True):
        if end > int(so_far.sum()) or (end == ends[-1] and not quotas):
            plan = plan_mix(weights, sizes, total_tokens=max(end, 1), max_repeats=max_repeats, read=so_far)
            quotas.append(plan.tokens - so_far)
            so_far = plan.tokens
    assert plan is not None
    shares = so_far / max(1, int(so_far.sum()))
    return replace(plan, shares=shares), np.column_stack(quotas).astype(np.float64)


def _values(sizes: Mapping[str, int], read: Ints | None) -> tuple[tuple[str, ...], Ints, Ints]:
    """(names, available tokens, tokens that are read) of the values."""
    available = np.array(list(sizes.values()), np.int64)
    if not available.sum():
        raise InputError(
            "nothing is left to train on: records that are not held out, cut or left out by a selection have no "
            "trained tokens; expected some: leave out fewer records, or raise sequence.length, or set "
            'chats.train_on = "all"'
        )
    return tuple(sizes), available, np.zeros(len(sizes), np.int64) if read is None else read


def times_of(
    plan: MixPlan,
    tokens: Ints,
    codes: NDArray[np.integer],
    order: Ints,
    consumed: NDArray[np.integer] | None = None,
) -> NDArray[np.int32]:
    """How often each record occurs in the stream, int32 (N,).

    tokens: int64 (N,), of each record. codes: int (N,), the record's value, an index of plan.names. order: int64 (N,),
    records in an order whose every prefix is diverse; the first records of a value occur once more than its others.
    consumed: int (N,), how often each record has been read, a lower bound of the result. A record without tokens occurs
    once if its value has a share.

    Raises:
        InputError: the plan is too small for one record.
    """
    least = np.zeros(len(tokens), np.int32) if consumed is None else consumed.astype(np.int32)
    times = least.copy()
    by_value = order[np.argsort(codes[order], kind="stable")]
    ends = np.cumsum(np.bincount(codes, minlength=len(plan.names)))
    records_of = np.split(by_value, ends[:-1])
    for value in np.flatnonzero(plan.tokens):
        records = records_of[value]
        times[records] = _times(tokens[records], int(plan.tokens[value]), least[records])
    without = tokens == 0
    times[without] = np.maximum(least[without], (plan.epochs > 0)[codes[without]])
    if not (times @ tokens.astype(np.float64)) > 0:
        raise InputError(
            f"mixing.total_tokens is {plan.tokens.sum()}, less than half of the shortest record of any value; expected "
            "room for at least one"
        )
    return times


def _times(lengths: Ints, wanted: int, consumed: NDArray[np.int32]) -> NDArray[np.int32]:
    """How often each record of one value occurs, int32 (n,), so that their tokens come nearest to `wanted`.

    lengths: int64 (n,).
    """
    level = wanted // int(lengths.sum())
    # Records that were consumed more often than `level` take room from the others.
    while level and np.maximum(consumed, level) @ lengths > wanted:
        level -= 1
    times = np.maximum(consumed, np.int32(level))
    open_ = np.flatnonzero(consumed <= level)
    if (left := wanted - int(times @ lengths)) > 0:
        times[open_[_nearest(lengths[open_], left)]] += 1
    return times


def _nearest(lengths: Ints, wanted: int) -> NDArray[np.bool_]:
    """Records whose `lengths`, int64 (n,), sum nearest to `wanted`, bool (n,): first fit, then the shortest of the
    others if it brings the sum nearer. If that misses by more than CLOSE, longer records than that are tried first."""
    chosen = first_fit(lengths, wanted)
    off = _add_the_shortest(chosen, lengths, wanted)
    if off > CLOSE * wanted and wanted < lengths.sum():
        turns = np.argsort(np.where(lengths > CLOSE * wanted, -lengths, 0), kind="stable")
        other = np.zeros(len(lengths), bool)
        other[turns] = first_fit(lengths[turns], wanted)
        if _add_the_shortest(other, lengths, wanted) < off:
            return other
    return chosen


def _add_the_shortest(chosen: NDArray[np.bool_], lengths: Ints, wanted: int) -> int:
    """Adds the shortest record that is not chosen if the sum is nearer with it; returns how far the sum is off."""
    short = wanted - int(lengths.sum(where=chosen))
    if chosen.all() or short <= 0:
        return abs(short)
    shortest = np.argmin(np.where(chosen, np.iinfo(np.int64).max, lengths))
    chosen[shortest] = lengths[shortest] < 2 * short
    return abs(wanted - int(lengths.sum(where=chosen)))


def _weights(weights: str | float | Mapping[str, float], names: tuple[str, ...], sizes: Ints) -> Floats:
    """The values' weights, float64 (K,); 0 for values without a share."""
    if not isinstance(weights, Mapping):
        power = POWERS[weights] if isinstance(weights, str) else weights
        return np.where(sizes > 0, (sizes / sizes.max()) ** power, 0.0)
    check_values(weights, names)
    for name, share in weights.items():
        if share > 0 and not sizes[names.index(name)]:
            raise InputError(
                f"mixing.weights names {name!r}, but none of its records has tokens that may be trained on: they are "
                "held out, not selected, cut, or empty; expected some of "
                f"{_some(tuple(name for name, size in zip(names, sizes, strict=True) if size))}"
            )
    return np.array([weights.get(name, 0.0) for name in names], np.float64)


def check_values(named: Iterable[str], names: Sequence[str]) -> None:
    """Raises InputError: weights name a value that is not among the trait's names."""
    for name in named:
        if name not in names:
            raise InputError(
                f"mixing.weights names {name!r}, which no record has; expected some of {_some(names)}"
            )


def _some(names: Sequence[str]) -> str:
    further = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, sorted(names)[:MOST_NAMED])) + further


def _equal_parts(most: Floats, total: float) -> Floats:
    """min(most, level), float64 (K,), at the level where they sum to `total`; `most` if its sum is smaller."""
    rising = np.sort(most)
    # Level k is right if exactly the k smallest are exhausted there.
    levels = (total - np.cumsum(rising) + rising) / np.arange(len(most), 0, -1)
    enough = np.flatnonzero(levels <= rising)
    return most if not enough.size else np.minimum(most, levels[enough[0]])


def _not_reached(
    names: tuple[str, ...], sizes: Ints, read: Ints, wanted: Floats, total: int, max_repeats: float
) -> str:
    """The message for a mix that needs more than max_repeats epochs of a value."""
    epochs = np.divide(read + wanted, sizes, out=np.zeros(len(names)), where=wanted > 0).round(9)
    worst = [k for k in np.argsort(-epochs, kind="stable")[:MOST_NAMED] if epochs[k] > max_repeats]
    too_many = ", ".join(f"{epochs[k]:.4g} epochs of {names[k]!r} ({sizes[k]:,} tokens)" for k in worst)
    left = np.maximum(sizes * max_repeats - read, 0.0)[wanted > 0]
    reached = int(total * (left / wanted[wanted > 0]).min() * (1 + 1e-9)) + int(read.sum())
    return (
        f"mixing.weights cannot be reached within mixing.max_repeats = {max_repeats:g}: {total:,} tokens would take "
        f"{too_many or 'more'}; set mixing.max_repeats to {math.ceil(round(epochs.max(), 9))}, or mixing.total_tokens "
        f"to {reached} or less"
    )


def first_fit(sizes: NDArray[np.integer], budget: int) -> NDArray[np.bool_]:
    """Takes each item in turn that fits into the remaining budget; bool (n,). sizes: (n,) >= 0. Afterwards no further
    item fits. O(n) for each item that is too large."""
    taken, coming = np.zeros(len(sizes), bool), np.flatnonzero(sizes <= budget)
    while len(coming):
        sums = np.cumsum(sizes[coming], dtype=np.int64)
        fits = int(np.searchsorted(sums, budget, side="right"))
        taken[coming[:fits]] = True
        budget -= int(sums[fits - 1])
        coming = coming[fits:]
        coming = coming[sizes[coming] <= budget]
    return taken


def even_order(values: Sequence[NDArray[np.uint64]], draws: NDArray[np.uint64]) -> Ints:
    """An order of N records, int64 (N,). Records with the same value of the first trait are together. Every prefix of
    them has an even share of each value of the other traits, most evenly of the second.

    values: uint64 (N,) for each trait, hashes of its values, spread over all bits. draws: uint64 (N,), a random number
    for each record. Records that are equal in all traits are sorted by their draws. Records of one value of an inner
    trait are spaced evenly within the outer value's, from an offset drawn by these values. So added records move few
    others, and the input order has no influence.
    """
    order = np.lexsort([draws, *reversed(values)])
    first, path = np.zeros(len(order), bool), np.zeros(len(order), np.uint64)
    levels: list[tuple[Ints, Floats]] = []
    for value in values:
        ordered = value[order]
        first = first | np.append(True, ordered[1:] != ordered[:-1])[: len(order)]
        path = (path ^ ordered) * ODD
        path ^= path >> np.uint64(32)
        begins = np.flatnonzero(first)
        levels.append((begins, (path[begins] >> np.uint64(11)) / 2.0**53))
    for (begins, place), (outer, _) in pairwise(reversed(levels)):
        sizes = np.diff(begins, append=len(order))
        turn = np.arange(len(order)) - begins.repeat(sizes)
        outer_number = np.arange(len(outer)).repeat(np.diff(outer, append=len(order)))
        order = order[np.lexsort([(turn + place.repeat(sizes)) / sizes.repeat(sizes), outer_number])]
    return order
