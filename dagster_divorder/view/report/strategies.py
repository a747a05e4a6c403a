"""Strategies side by side on this corpus."""

from __future__ import annotations

from typing import Any

from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import fixed, number, points, seconds

_COLUMNS = [
    Column("documents", text=True),
    Column("sequences", text=True),
    Column("clusters in a sequence"),
    Column("fewest"),
    Column("clusters, flush"),
    Column("batch TV, %"),
    Column("worst batch TV, %"),
    Column("worst batch anywhere, points off"),
    Column("prefix deviation, tokens"),
    Column("features that drift"),
    Column("rank correlation"),
    Column("farthest tenth, times shuffled"),
    Column("mean batch, times shuffled"),
    Column("time"),
    Column("peak memory, MB"),
]


def section(rows: list[dict[str, Any]], documents: str, sequences: str) -> Section:
    """rows: as `pipeline.strategy_comparison.row` makes them. documents, sequences: the strategies of this output,
    whose row stands out."""
    cells = [
        (
            row["documents"],
            row["sequences"],
            fixed(row["distinct clusters a sequence"]),
            number(row["fewest"]),
            fixed(row["distinct clusters, flush"]),
            points(row["batch TV, clusters"]),
            points(row["worst batch TV, clusters"]),
            points(row["worst share, batch anywhere"]),
            number(row["mean prefix deviation, tokens"]),
            number(row["features that drift"]),
            fixed(row["rank correlation, largest"]),
            fixed(row["farthest tenth, times shuffled"]),
            fixed(row["mean batch, times shuffled"]),
            seconds(row["seconds, documents"] + row["seconds, sequences"]),
            fixed(row["peak memory, MB"], 1),
        )
        for row in rows
    ]
    ours = [
        at for at, row in enumerate(rows) if (row["documents"], row["sequences"]) == (documents, sequences)
    ]
    return Section(
        "strategies",
        "Strategies on this corpus",
        "Every pair of a document and a sequence strategy, held against the corpus’s own mix. More clusters "
        "in a sequence are better, less of all else. Flush: where a document that does not fit starts a "
        "sequence instead of being cut. TV: the share of a batch’s tokens that would have to "
        "change to match the corpus. Features that drift are farther from the whole along the order than in "
        "any shuffle; the largest rank correlation of a feature with position, the farthest tenth, and the mean "
        "batch over all features.",
        table("Strategies compared; this output’s pair is marked", _COLUMNS, cells, ours),
    )
