"""Strategies compared, in sentences.

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
    """Sentences on the mix of batches, on what a sequence holds, and on what drifts."""
    ranked = by_batches(rows)
    best, last, drifting = ranked[0], ranked[-1], [row for row in ranked if row[DRIFT]]
    if best[TV] is None:
        sentences = [f"Too few batches to compare: there are fewer than {BATCHES}."]
    else:
        sentences = [
            f"Batches are nearest the mix of clusters with {_pair(best)}, {points(best[TV])} % off, and farthest with "
            f"{_pair(last)}, {points(last[TV])} %."
        ]
    most, fewest = (choose(rows, key=lambda row: row[DISTINCT]) for choose in (max, min))
    show = MEASURES[DISTINCT].show
    sentences.append(
        f"A sequence holds most clusters, {show(most[DISTINCT])} on average, with documents in {most['documents']} "
        f"order, and fewest, {show(fewest[DISTINCT])}, in {fewest['documents']} order."
        if show(most[DISTINCT]) != show(fewest[DISTINCT])
        else f"A sequence holds {show(most[DISTINCT])} clusters on average, whatever orders the documents."
    )
    if drifting:
        sentences.append(f"Features drift, more than in any shuffle, with {listed([*map(_pair, drifting)])}.")
    elif any(row[DRIFT] is not None for row in rows):
        sentences.append("Nothing drifts in any of these orders.")
    return sentences


def _pair(row: Row) -> str:
    return f"{row['documents']} + {row['sequences']}"
