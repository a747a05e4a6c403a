"""Strategies compared, in sentences: whether the order of documents or of sequences decides.

rows: of `stages.evidence.strategy_comparison.row`, one a pair of a document and a sequence strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dagster_divorder.units import BATCHES
from dagster_divorder.view.measures import MEASURES, TV_OF_CLUSTER
from dagster_divorder.view.words import listed, points

Row = Mapping[str, Any]

TV, DISTINCT, DRIFT = TV_OF_CLUSTER, "distinct clusters a sequence", "features that drift"


def by_batches(rows: Sequence[Row]) -> list[Row]:
    """The pairs by their batches' distance from the mix, nearest first; of too few batches, by clusters in a
    sequence, most first."""
    return sorted(rows, key=lambda row: (row[TV] if row[TV] is not None else 0.0, -row[DISTINCT]))


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Sentences: what decides a batch's mix, what decides a sequence's mix, and what drifts."""
    sentences = [_of_batches(rows), _of_sequences(rows)]
    drifting = [row for row in by_batches(rows) if row[DRIFT]]
    if drifting:
        # If all pairs of a sequence strategy drift, only the strategy is named.
        whole = {row["sequences"] for row in drifting} - {row["sequences"] for row in rows if not row[DRIFT]}
        pairs = [
            row["sequences"] if row["sequences"] in whole else f"{row['documents']} + {row['sequences']}"
            for row in drifting
        ]
        sentences.append(
            f"Features drift, more than in any shuffle, with {listed(list(dict.fromkeys(pairs)))}."
        )
    elif any(row[DRIFT] is not None for row in rows):
        sentences.append("Nothing drifts in any of these orders.")
    return sentences


def _of_batches(rows: Sequence[Row]) -> str:
    if any(row[TV] is None for row in rows):
        return f"Too few batches to compare: there are fewer than {BATCHES}."
    by_strategy: dict[str, list[float]] = {}
    for row in rows:
        by_strategy.setdefault(row["sequences"], []).append(row[TV])
    ranked = sorted(by_strategy, key=lambda name: sum(by_strategy[name]))
    best, others = ranked[0], ranked[1:]
    first = by_batches(rows)[0]
    if others and max(by_strategy[best]) < min(min(by_strategy[name]) for name in others):
        rest = listed([f"{_range(by_strategy[name])} with {name}" for name in others])
        return (
            f"The order of sequences decides: batches are {_range(by_strategy[best])} off the mix of clusters with "
            f"{best}, whatever orders the documents, and {rest}."
        )
    return (
        f"Batches are nearest the mix of clusters, {_range([first[TV]])} off, with documents in {first['documents']} "
        f"and sequences in {first['sequences']} order."
    )


def _of_sequences(rows: Sequence[Row]) -> str:
    # The order of sequences does not change their content.
    distinct = {row["documents"]: row[DISTINCT] for row in rows}
    ranked = sorted(distinct, key=lambda name: -distinct[name])
    best, worst = ranked[0], ranked[-1]
    most, fewest = (MEASURES[DISTINCT].show(distinct[name]) for name in (best, worst))
    if most == fewest:
        return f"A sequence holds {most} clusters on average, whatever orders the documents."
    return (
        f"The order of documents decides what a sequence holds: {most} clusters on average with {best}, {fewest} with "
        f"{worst}."
    )


def _range(shares: Sequence[float]) -> str:
    """`5.3 to 7.3 %`."""
    low, high = map(points, (min(shares), max(shares)))
    return f"{low} %" if low == high else f"{low} to {high} %"
