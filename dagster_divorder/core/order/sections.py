"""Sections: parts of training that are ordered, packed and ordered again apart, and follow each other.

Letters: N records to read, V values of a mixed trait, S spans, P parts.

A *span* is a stretch of training with a mix of its own: a phase, a window of a score, or all of it. Every span is dealt
to P equal parts, the sections, each with the span's mix. Nothing but what does not fill the last sequence of a section
crosses a border.

Dealing decides, not ordering apart: 32 parts dealt by `core.order.deal` stray as little as one section, parts cut from
one balanced order or dealt by crossed traits more than a shuffle (docs/decisions/sections.md).
Guarantee: every record is in one section. Tokens of a value and span are within one record of what is asked. Copies of
a text go to parts at even distances; with at least as many parts as copies, no section holds two.
Cost: O(N T P), see `core.order.deal`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.deal import deal
from dagster_divorder.core.order.items import design_effect
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.errors import InputError

Ints = NDArray[np.int64]

MOST_PARTS = 4096
"""Most parts of a span; each costs 16 bytes a trait value, and time for every record."""
FEWEST_SEQUENCES = 64
"""Fewest sequences of a section: the remainder that it hands on is a total variation of some 0.55 over its number of
sequences."""
SERVED = 0.95
"""Share of the copies that parts are made for."""
PARTS_PER_COPY = 2
"""Parts of a span for each copy: with more, copies stand nearer to their even distance, and parts hold fewer
records."""
LONGEST = 8
"""A part has at least so many times the tokens of the longest document, whose sequences would fill a smaller one."""
STEADY = 10.0
"""Parts, over the design effect of the lengths, up to which features that are no traits vary between parts no more than
between tenths of shuffled sequences: a part is a sample of whole documents."""


def section_seed(seed: int, number: int) -> int:
    """The seed of a section; the first one has the seed itself."""
    return seed if number == 0 else int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def equal_parts(
    traits: Traits,
    weights: Mapping[str, float],
    *,
    most: int,
    least: int,
    copies: Ints | None = None,
    steady: bool = False,
    seed: int = 0,
) -> Ints:
    """The part of each record, int64 (N,), in 0..P-1.

    most: records of a part. least: tokens of a part, which also holds LONGEST times the longest document. copies: int64
    (N,), equal for copies of a text that must stand far apart, or None. steady: copies make no more parts
    than keep everything else steady (STEADY), rather than stand apart.

    Raises:
        InputError: there would be more than MOST_PARTS parts.
    """
    records, wanted = len(traits.tokens), -(-len(traits.tokens) // most)
    if copies is not None:
        copies = np.unique(copies, return_inverse=True)[1].astype(np.int64)
        often = np.sort(np.bincount(copies)[copies])
        often = often[often > 1]
        if len(often):
            apart = PARTS_PER_COPY * int(often[int(SERVED * (len(often) - 1))])
            if steady:
                apart = min(apart, int(STEADY / design_effect(traits.tokens)))
            wanted = max(wanted, apart)
    least = max(least, LONGEST * int(traits.tokens.max(initial=0)))
    parts = max(1, min(wanted, int(traits.tokens.sum()) // least, records))
    if parts > MOST_PARTS:
        raise InputError(
            f"{records:,} records make {parts:,} sections of at most {most:,}; expected at most {MOST_PARTS:,} "
            f"sections: {MOST_PARTS * most:,} records"
        )
    if parts == 1:
        return np.zeros(records, np.int64)
    return deal(traits, weights, np.ones(parts), seed=seed, copies=copies).astype(np.int64)


def spans_of_values(
    traits: Traits,
    weights: Mapping[str, float],
    value: NDArray[np.integer],
    passes: NDArray[np.integer],
    quotas: NDArray[Any],
    *,
    seed: int = 0,
) -> Ints:
    """The span of each record, int64 (N,), -1 for records beyond their value's quota.

    value: int (N,), in 0..V-1. passes: int (N,): records of a value are read pass by pass, by rising number; each pass
    is dealt to the spans that it reaches. Negative: rests of records that are partly read, of which those beyond the
    quota stay unread. quotas: float (V, S), tokens of each value in each span.
    """
    tokens, out = traits.counted, np.zeros(len(value), np.int64)
    kind = np.zeros(len(value), np.int32)
    shares: list[NDArray[Any]] = []
    for of_value in range(len(quotas)):
        ends, done = np.cumsum(quotas[of_value], dtype=np.float64), 0.0
        records = np.flatnonzero(value == of_value)
        rests = records[passes[records] < 0]
        beyond = rests[np.cumsum(tokens[rests]) > ends[-1] + 0.5 * tokens[rests]]
        out[beyond] = -1
        records = records[out[records] >= 0]
        # What whole records give differs from the quota by part of a record.
        ends *= tokens[records].sum() / ends[-1] if ends[-1] else 0.0
        for number in np.unique(passes[records]):
            of_pass = records[passes[records] == number]
            size = float(tokens[of_pass].sum())
            reached = np.diff(np.clip(ends - done, 0.0, size), prepend=0.0)
            kind[of_pass], done = len(shares), done + size
            # Less than half a token reaches no span, unless none gets more. Records without tokens go to the first one.
            enough = np.where(reached >= min(0.5, reached.max()), reached, 0.0)
            shares.append(enough if enough.any() else np.eye(1, len(ends))[0])
    dealt = np.flatnonzero(out >= 0)
    if quotas.shape[1] > 1 and len(dealt):
        out[dealt] = deal(traits.take(dealt), weights, np.stack(shares), kind=kind[dealt], seed=seed)
    return out
