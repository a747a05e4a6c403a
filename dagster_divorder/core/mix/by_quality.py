"""Repeats that rise with quality within each topic.

Letters: N records, K topics, P tiers over all topics, R the largest number of repeats, a the share left out, Z the
planned epochs of a topic.

The records of a topic are ranked by quality: a share x of the topic's tokens has lower scores than the record at rank
x. A record at rank x is read f(x) times:

    f(x) = 0 below a, and Z (p + 1) / (1 - a) * ((x - a) / (1 - a)) ** p from a on,

    p = R (1 - a) / Z - 1, at most STEEPEST,

The mean of f is Z, so a topic keeps its tokens. f(1) = R unless STEEPEST binds, so no record is read more often than R
times. Z is at most R (1 - a); then everything that is not left out is read R times.
A topic is cut into up to TIERS tiers of equal tokens from a on, and a tier is read as often as f is on average in it.
Records of equal quality are in one tier. A record without quality is read as often as its topic on average.
Guarantee: of two records of a topic, the better one is in the same tier or a better one. Ranks depend only on the
topic's records.
Cost: O(N log N); 60 bytes a record.
Source: quality-aware upsampling, Olmo 3 (arXiv 2512.13961, 3.4.4 and A.2.4), and the code of its data (allenai/dolma3,
mixing_utils.py): C (x - a)^p exp(l (x - a)), with the largest p up to 2 and then the largest l up to 2 for which the
best twentieth has a mean of at most R. Here l = 0, so that p has a formula and R holds for every record.
Known weakness: a tier is read as a whole, so the curve is a staircase; within a tier records are chosen without regard
to their quality.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.mix.mixing import MixPlan

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TIERS = 10
"""Most tiers of a topic. Olmo 3 has 20. With fewer, each holds more of a topic's clusters and lengths, and an append
changes the repeats of fewer other records: 1 % more records change those of 0.4 % of 50,000, and of 0.6 % with 20
tiers."""

EPSILON = 1e-12
"""Relative error of a product of floats."""

STEEPEST = 4.0
"""Largest p. The best record is then read five times as often as its topic on average, if nothing is left out. The
steepest curve of Olmo 3 gives its best twentieth 4.2 times the average, and this one 4.5. Without a limit, if a tenth
of a topic is read, this would be its best tenth, or its best fortieth four times."""

MISSING, LEFT_OUT = -1, 0
"""Numbers of two special tiers: of records without quality, and of the share left out. The others are 1 to TIERS."""


@dataclass(frozen=True, eq=False)
class Tiers:
    """codes: int64 (N,), the record's tier, in [0, P). topic: int64 (P,), rising; number: int64 (P,), rising in each
    topic. sizes: int64 (P,), tokens. lowest, highest: float64 (P,), qualities in the tier, NaN if there are none."""

    codes: Ints
    topic: Ints
    number: Ints
    sizes: Ints
    lowest: Floats
    highest: Floats


def cut_tiers(quality: Floats, tokens: Ints, topics: NDArray[np.integer], drop: float = 0.0) -> Tiers:
    """Cuts every topic into tiers.

    quality: float64 (N,), NaN for none. tokens: int64 (N,). topics: int (N,). drop: the share of each topic's tokens,
    in [0, 1), to leave out, lowest quality first. Records at the border stay in.
    """
    known = np.flatnonzero(~np.isnan(quality))
    number = np.full(len(quality), MISSING, np.int64)
    if len(known):
        number[known] = _tier_numbers(quality[known], tokens[known], topics[known], drop)
    pair, codes = np.unique(topics.astype(np.int64) * (TIERS + 2) + number + 1, return_inverse=True)
    lowest, highest = np.full(len(pair), np.inf), np.full(len(pair), -np.inf)
    np.minimum.at(lowest, codes[known], quality[known])
    np.maximum.at(highest, codes[known], quality[known])
    lowest[lowest == np.inf] = highest[highest == -np.inf] = np.nan
    topic, number = np.divmod(pair, TIERS + 2)
    sizes = np.bincount(codes, tokens, len(pair)).astype(np.int64)
    return Tiers(codes, topic, number - 1, sizes, lowest, highest)


def _tier_numbers(quality: Floats, tokens: Ints, topics: NDArray[np.integer], drop: float) -> Ints:
    """The number of each record's tier, int64 (N,); N > 0."""
    order = np.lexsort([quality, topics])
    changes = np.diff(topics[order], prepend=-1) != 0
    first = np.flatnonzero(changes | (np.diff(quality[order], prepend=np.nan) != 0))
    # By group of equal quality in a topic: its tokens, and the tokens up to its end.
    sizes = np.add.reduceat(tokens[order], first)
    ends = np.cumsum(sizes)
    begins = np.flatnonzero(changes[first])
    topic = np.cumsum(changes[first]) - 1
    ends -= (ends - sizes)[begins][topic]
    total = np.add.reduceat(sizes, begins)
    left_out = (drop > 0) & (ends <= drop * total[topic] * (1 + EPSILON)) & (ends < total[topic])
    lost = np.zeros(len(begins), np.int64)
    np.maximum.at(lost, topic[left_out], ends[left_out])
    # A group belongs to the tier of its middle.
    middles, kept = 2 * (ends - lost[topic]) - sizes, np.maximum(total - lost, 1)[topic]
    tier = 1 + np.minimum(TIERS * middles // (2 * kept), TIERS - 1)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.where(left_out, LEFT_OUT, tier).repeat(np.diff(first, append=len(order)))
    return numbers


def plan_tiers(plan: MixPlan, tiers: Tiers, max_repeats: int) -> MixPlan:
    """The plan of P tiers, from the plan of K topics, whose epochs are at most R (1 - drop).

    A topic's tokens stay as planned, except for a few if nearly all of it is read R times.
    """
    topic, count = tiers.topic, len(plan.names)
    ranked, kept = tiers.number != MISSING, np.where(tiers.number > LEFT_OUT, tiers.sizes, 0)
    known, above = (np.bincount(topic, amounts, count) for amounts in (tiers.sizes * ranked, kept))
    part = np.divide(above, known, out=np.ones(count), where=known > 0)
    power = np.divide(max_repeats * part, plan.epochs, out=np.ones(count), where=plan.tokens > 0) - 1.0
    power = np.clip(power, 0.0, STEEPEST)
    _, starts, nth = np.unique(topic, return_index=True, return_inverse=True)

    def up_to(amounts: NDArray[np.int64]) -> Ints:
        """The sum of a topic's amounts up to each tier, int64 (P,)."""
        sums = np.cumsum(amounts)
        return sums - (sums - amounts)[starts][nth]

    rank = up_to(kept) / np.maximum(above, 1)[topic]
    read = known[topic] * rank ** (1.0 + power[topic]) + up_to(tiers.sizes * ~ranked)
    ends = np.rint(read * (plan.tokens / np.maximum(plan.sizes, 1))[topic]).astype(np.int64)
    tokens = np.minimum(np.diff(ends, prepend=0), max_repeats * tiers.sizes)
    tokens[starts] = np.minimum(ends, max_repeats * tiers.sizes)[starts]
    names = [f"{plan.names[of]}, {tier_name(number)}" for of, number in zip(topic, tiers.number, strict=True)]
    epochs = np.where((plan.epochs[topic] > 0) & (tiers.number != LEFT_OUT), 1.0, 0.0)
    np.divide(tokens, tiers.sizes, out=epochs, where=tiers.sizes > 0)
    shares = tokens / max(1, int(tokens.sum()))
    return MixPlan(tuple(names), tiers.sizes, shares, tokens, epochs, plan.normalised)


def tier_name(number: int) -> str:
    return {MISSING: "without", LEFT_OUT: "left out"}.get(number, f"tier {number}")
