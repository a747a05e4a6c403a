"""How often each record stands in the training stream: the plan of a mix, and whole records that realise it.

Letters: N records, K values of the trait that is mixed (sources, say), T planned tokens, R epochs at most.

A plan gives value k a share s_k of T tokens, so T s_k / size_k epochs of what there is of it:

- `natural`: s_k ~ size_k, the corpus as it is.
- `temperature`: s_k ~ size_k ** exponent; `sqrt` is the exponent 0.5. Small values gain as it falls.
- `unimax`: equal tokens for all, but for values that would take more than R epochs, which get R; what they leave is
  dealt equally to the others.
- a table: the shares themselves. Values that are not named get nothing.

With w_k the weights and c_k = R size_k, all of them are min(c_k, level w_k), level such that the sum is T; w_k = 1 for
`unimax`. The others are refused where a c_k counts, and the message gives that mix, the nearest that can be reached.

Records are whole: all of a value stand floor(epochs) times in the stream, and those of a part of it once more.
Guarantee: that part is within half of the shortest record left out of it of what is planned.
Cost: a sort of the records by value, linear time; 24 bytes a record while it runs.
Sources: temperature, mT5 (Xue et al. 2021); UniMax (Chung et al. 2023), which deals the budget from the smallest value
up: the same result; roll-over, On Shuffling Tokens (TokenShard).
Known weakness: a value of a few long records cannot follow its plan; `realised` says what it gets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.first_fit import first_fit
from dagster_divorder.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RULES = ("natural", "sqrt", "temperature", "unimax")

SUM_TOLERANCE = 1e-6
"""A table's shares that sum to 1 within this are taken as they are, and a share this part above its limit is cut."""

MOST_NAMED = 20
"""Values named in a message."""


@dataclass(frozen=True, eq=False)
class MixPlan:
    """names: the K values of the trait. By value: sizes int64 (K,), tokens there are; shares float64 (K,), planned, sum
    1; tokens int64 (K,), planned, their sum is the total; epochs float64 (K,), tokens / sizes, 1 for a value without
    tokens that a rule leaves in. normalised: whether shares were given that did not sum to 1.
    """

    names: tuple[str, ...]
    sizes: Ints
    shares: Floats
    tokens: Ints
    epochs: Floats
    normalised: bool


@dataclass(frozen=True, eq=False)
class Realised:
    """What whole records make of a plan, by value. records, int64 (K,): those that stand in the stream; unique_tokens
    int64 (K,): theirs, each counted once; tokens int64 (K,): in the stream; epochs, shares float64 (K,): of these."""

    records: Ints
    unique_tokens: Ints
    tokens: Ints
    epochs: Floats
    shares: Floats


def plan_mix(
    weights: str | Mapping[str, float],
    sizes: Mapping[str, int],
    *,
    exponent: float = 0.5,
    total_tokens: int | None = None,
    max_repeats: float | None = None,
) -> MixPlan:
    """The tokens that the stream is to have of each value.

    weights: one of RULES, or the share of each value that is to be in, >= 0; divided by their sum if that is not 1.
    sizes: value -> tokens of what may be trained on. exponent: >= 0, of `temperature`. total_tokens: of the stream; by
    default those of the values that are in. max_repeats: epochs of one value at most; by default as many as it takes.

    Raises:
        InputError: an argument cannot be used, or the mix not be reached within max_repeats.
    """
    names, held = tuple(sizes), np.array(list(sizes.values()), np.int64)
    if not held.sum():
        raise InputError(
            "mixing.weights has nothing to mix: the records that may be trained on have no tokens"
        )
    if max_repeats is not None and not max_repeats > 0:
        raise InputError(f"mixing.max_repeats is {max_repeats}; expected a number above 0")
    if total_tokens is not None and total_tokens < 1:
        raise InputError(f"mixing.total_tokens is {total_tokens}; expected 1 or more")
    weight = _weights(weights, names, held, exponent, max_repeats)
    given = math.fsum(weight)
    used = weight > 0
    total = int(held[used].sum()) if total_tokens is None else total_tokens
    most = np.minimum(held[used] * (np.inf if max_repeats is None else max_repeats), total)
    planned = np.zeros(len(names))
    planned[used] = _fill(weight[used], most, total)
    # All in one proportion is the most that `unimax` can have.
    proportion = held if weights == "unimax" else weight
    wanted = total * proportion / proportion.sum()
    out_of_reach = (weights != "unimax") & (wanted > planned * (1 + SUM_TOLERANCE) + 0.5)
    if max_repeats is not None and (out_of_reach.any() or most.sum() < total - 0.5):
        raise InputError(_not_reached(names, held, wanted, planned, total, max_repeats))
    tokens = np.floor(planned).astype(np.int64)
    # Whole tokens by largest remainder.
    tokens[np.argsort(tokens - planned, kind="stable")[: total - int(tokens.sum())]] += 1
    table = not isinstance(weights, str)
    epochs = np.divide(tokens, held, out=np.full(len(names), 0.0 if table else 1.0), where=held > 0)
    if epochs.max() >= np.iinfo(np.int32).max:
        raise InputError(
            f"mixing.total_tokens is {total}: {epochs.max():.3g} epochs of a value; expected fewer"
        )
    return MixPlan(names, held, planned / total, tokens, epochs, table and abs(given - 1) > SUM_TOLERANCE)


def times_of(plan: MixPlan, tokens: Ints, codes: NDArray[np.integer], order: Ints) -> NDArray[np.int32]:
    """How often each record stands in the stream, int32 (N,).

    tokens: int64 (N,), of each record. codes: int (N,), its value, an index of plan.names. order: int64 (N,), the
    records in an order of which every beginning is diverse: those that come first stand once more than others of their
    value. A record without tokens stands once if its value is in.

    Raises:
        InputError: the plan is so small that no record is chosen.
    """
    whole = plan.tokens // np.maximum(plan.sizes, 1)
    times = whole.astype(np.int32)[codes]
    left = plan.tokens - whole * plan.sizes
    by_value = order[np.argsort(codes[order], kind="stable")]
    ends = np.cumsum(np.bincount(codes, minlength=len(plan.names)))
    for value in np.flatnonzero(left):
        records = by_value[ends[value - 1] if value else 0 : ends[value]]
        times[records[_nearest(tokens[records], int(left[value]))]] += 1
    without = tokens == 0
    times[without] = (plan.epochs > 0)[codes[without]]
    if not (times @ tokens.astype(np.float64)) > 0:
        raise InputError(
            f"mixing.total_tokens is {plan.tokens.sum()}, less than half of the shortest record of any value; expected "
            "room for one at least"
        )
    return times


def _nearest(lengths: Ints, wanted: int) -> NDArray[np.bool_]:
    """Which of some records, of `lengths` int64 (n,), have `wanted` tokens or as nearly as can be, bool (n,): the first
    that fit, and in the end the shortest that did not, if that is nearer."""
    chosen = first_fit(lengths, wanted)
    if not chosen.all():
        shortest = np.argmin(np.where(chosen, np.iinfo(np.int64).max, lengths))
        chosen[shortest] = lengths[shortest] < 2 * (wanted - int(lengths.sum(where=chosen)))
    return chosen


def realised(plan: MixPlan, tokens: Ints, codes: NDArray[np.integer], times: NDArray[np.integer]) -> Realised:
    """What the stream has of each value. tokens, codes: as for `times_of`; times: int (N,), how often records stand."""
    values, used = len(plan.names), times > 0

    def sums(of: NDArray[Any]) -> Ints:
        return np.bincount(codes, weights=of, minlength=values).astype(np.int64)

    stream = sums(tokens * times.astype(np.int64))
    return Realised(
        records=sums(used),
        unique_tokens=sums(tokens * used),
        tokens=stream,
        epochs=np.divide(stream, plan.sizes, out=np.zeros(values), where=plan.sizes > 0),
        shares=stream / max(1, int(stream.sum())),
    )


def _weights(
    weights: str | Mapping[str, float],
    names: tuple[str, ...],
    sizes: Ints,
    exponent: float,
    max_repeats: float | None,
) -> Floats:
    """In what proportion the values share the tokens, float64 (K,); 0 for those that are out."""
    if isinstance(weights, str):
        if weights not in RULES:
            raise InputError(f"mixing.weights is {weights!r}; expected one of {', '.join(RULES)}, or a table")
        if weights == "unimax" and max_repeats is None:
            raise InputError(
                "mixing.weights is 'unimax', and mixing.max_repeats is not set; expected the epochs of one value at "
                "most: set it, 4 for example"
            )
        if weights == "temperature" and not (math.isfinite(exponent) and exponent >= 0):
            raise InputError(f"mixing.exponent is {exponent}; expected 0 or more")
        power = {"natural": 1.0, "sqrt": 0.5, "temperature": exponent, "unimax": 0.0}[weights]
        return np.where(sizes > 0, (sizes / sizes.max()) ** power, 0.0)
    for name, share in weights.items():
        if name not in names:
            raise InputError(
                f"mixing.weights names {name!r}, which no record has; expected some of {_some(names)}"
            )
        if not (math.isfinite(share) and share >= 0):
            raise InputError(f"mixing.weights gives {name!r} a share of {share}; expected 0 or more")
        if share > 0 and not sizes[names.index(name)]:
            raise InputError(
                f"mixing.weights names {name!r}, of which no record that may be trained on has tokens; expected some "
                f"of {_some(tuple(name for name, size in zip(names, sizes, strict=True) if size))}"
            )
    if not any(weights.values()):
        raise InputError("mixing.weights gives nothing a share; expected one above 0")
    return np.array([weights.get(name, 0.0) for name in names], np.float64)


def _some(names: tuple[str, ...]) -> str:
    further = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, sorted(names)[:MOST_NAMED])) + further


def _fill(weights: Floats, most: Floats, total: float) -> Floats:
    """min(most, level * weights), float64 (K,), with a level at which the sum is the total, or `most` if that is less.

    weights: above 0.
    """
    by_level = np.argsort(most / weights, kind="stable")
    exhausted = np.cumsum(most[by_level]) - most[by_level]
    behind = np.cumsum(weights[by_level][::-1])[::-1]
    # Level k is the one if the values before k are exhausted at it, and no others.
    levels = (total - exhausted) / behind
    enough = np.flatnonzero(levels * weights[by_level] <= most[by_level])
    return most if not enough.size else np.minimum(most, levels[enough[0]] * weights)


def _not_reached(
    names: tuple[str, ...], sizes: Ints, wanted: Floats, nearest: Floats, total: int, max_repeats: float
) -> str:
    """What to say of a mix that takes more than max_repeats epochs of a value."""
    epochs = np.divide(wanted, sizes, out=np.zeros(len(names)), where=wanted > 0).round(9)
    worst = np.argsort(-epochs, kind="stable")[:MOST_NAMED]
    too_many = ", ".join(
        f"{epochs[k]:.4g} epochs of {names[k]!r} ({sizes[k]:,} tokens)"
        for k in worst
        if epochs[k] > max_repeats
    )
    reached = int(total * max_repeats / epochs.max())
    most = int((sizes[wanted > 0] * max_repeats).sum())
    remedy = (
        f"set mixing.max_repeats to {math.ceil(epochs.max())}, or mixing.total_tokens to {reached} or less"
    )
    if most < total:
        near = f"No mix of these values can: they have {most:,} tokens within it"
    else:
        shares = {
            name: float(f"{tokens / total:.9g}")
            for name, tokens in zip(names, nearest, strict=True)
            if tokens
        }
        table = ", ".join(
            f"{json.dumps(name, ensure_ascii=False)} = {share}" for name, share in shares.items()
        )
        near = f"The nearest that can: weights = {{ {table} }}"
    return (
        f"mixing.weights cannot be reached within mixing.max_repeats = {max_repeats:g}: {total:,} tokens would take "
        f"{too_many or 'more'}. {near}; or {remedy}"
    )


def even_order(codes: Sequence[NDArray[np.integer]], seed: int) -> Ints:
    """An order of N records, int64 (N,), every beginning of which is an even part of them: sorted by their codes, each
    int (N,), the first of them first, and among equals at random, the one in the middle comes first, then those in the
    middle of the halves, and so on (van der Corput 1935)."""
    keys = [np.random.default_rng([seed, 2]).permutation(len(codes[0])), *reversed(codes)]
    in_order = np.lexsort(keys)
    rank, reverse = np.arange(len(in_order)), np.zeros(len(in_order), np.int64)
    for bit in range(len(in_order).bit_length()):
        reverse = reverse << 1 | rank >> bit & 1
    return in_order[np.argsort(reverse, kind="stable")]
