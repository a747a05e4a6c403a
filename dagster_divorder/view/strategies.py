"""Strategies compared, in sentences. rows: of `stages.evidence.strategy_comparison`, one a pair of strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dagster_divorder.units import BATCHES
from dagster_divorder.view.measures import TV_OF_CLUSTER
from dagster_divorder.view.words import fixed, listed, points

Row = Mapping[str, Any]

TV, DISTINCT, DRIFT = TV_OF_CLUSTER, "distinct clusters a sequence", "features that drift"


def by_batches(rows: Sequence[Row]) -> list[Row]:
    """The pairs by their batches' distance from the mix, nearest first; of too few batches, by clusters in a
    sequence, most first."""
    return sorted(rows, key=lambda row: (row[TV] if row[TV] is not None else 0.0, -row[DISTINCT]))


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Sentences on the mix of batches, on what a sequence holds, and on what drifts."""
    ranked = by_batches(rows)
    pairs = {id(row): f"{row['documents']} + {row['sequences']}" for row in rows}
    best, last = ranked[0], ranked[-1]
    most, fewest = (choose(rows, key=lambda row: row[DISTINCT]) for choose in (max, min))
    held, least = fixed(most[DISTINCT]), fixed(fewest[DISTINCT])
    sentences = [
        f"Too few batches to compare: there are fewer than {BATCHES}."
        if best[TV] is None
        else f"Batches are nearest the mix of clusters with {pairs[id(best)]}, batch TV {points(best[TV])} %, and "
        f"farthest with {pairs[id(last)]}, {points(last[TV])} %.",
        f"A sequence holds {held} clusters on average, whatever orders the documents."
        if held == least
        else f"A sequence holds most clusters, {held} on average, with documents in {most['documents']} order, and "
        f"fewest, {least}, in {fewest['documents']} order.",
    ]
    if drifting := [pairs[id(row)] for row in ranked if row[DRIFT]]:
        sentences.append(f"Features drift, more than in any shuffle, with {listed(drifting)}.")
    elif any(row[DRIFT] is not None for row in rows):
        sentences.append("Nothing drifts in any of these orders.")
    return sentences
