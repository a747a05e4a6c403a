"""Whether this order beats shuffling: two sentences, a few numbers, and tables of windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from markupsafe import Markup

from dagster_divorder.core.measure.shuffling_check import SEAM
from dagster_divorder.view.report.html import part, table
from dagster_divorder.view.verdict import SHOWN, Verdict
from dagster_divorder.view.words import ORDERS, fixed, number, percent, points, times


def head(verdict: Verdict) -> Markup:
    """The sentences and the numbers at the top of the page."""
    other = "shuffling inside stretches" if verdict.stretches > 1 else "shuffling"
    return part("check", verdict.passed, verdict.compared, *verdict.sentences, _tiles(verdict), other)


Tile = tuple[str, str, str, Sequence[str]]
"""Title, unit, value in the order to train on, and others with their names."""


def _tiles(verdict: Verdict) -> list[Tile]:
    """Tiles of an order that keeps its mix: values in each order of SHOWN."""

    def tile(title: str, unit: str, show: Callable[[Any], str], *path: str) -> Tile:
        ours, shuffled, original = (show(reduce(getitem, path, verdict.metrics[name])) for name in SHOWN)
        return title, unit, ours, [f"shuffled {shuffled}", f"original {original}"]

    off = "percentage points off, for one cluster, wherever a batch starts"
    tiles = [tile("In a sequence", "clusters on average", fixed, "split", "mean")]
    ours = verdict.metrics["sequences"]
    if not ours["windows"]["batch"]["cluster"]["partial"]:
        unit = "% of its tokens would have to change"
        tiles += [
            tile("In the worst batch", off, points, "windows", "batch", "cluster", "worst"),
            tile("In the mean batch", unit, points, "batch_shares", "cluster", "mean_tv"),
        ]
    share = percent(ours["prefix"]["mean"] / max(1, ours["tokens"]))
    unit = f"tokens off the mix, on average: {share} of all {ours['tokens']:,}"
    return [*tiles, tile("Up to any point", unit, number, "prefix", "mean")]


def windows(verdict: Verdict) -> list[Markup]:
    """Tables of windows of every size and position against shuffling, and of both sides of the seam."""
    original = verdict.metrics["original"]
    before = {**original["windows"], SEAM: original["seam"]}
    tables = [
        table(
            f"{ORDERS[order].capitalize()}: largest stray of any value’s share, in percentage points",
            [
                {
                    "any": comparison.window,
                    "trait": comparison.trait,
                    "mean, ours": points(comparison.mean),
                    "mean, shuffled": points(comparison.shuffled_mean),
                    "worst, ours": points(comparison.worst),
                    "worst, shuffled": points(comparison.shuffled_worst),
                    "worst, original": points(before[comparison.window][comparison.trait]["worst"]),
                    "worst against shuffling": times(comparison.worst, comparison.shuffled_worst)
                    + ("" if comparison.passed else ": does not pass"),
                }
                for comparison in check.comparisons
            ],
        )
        for order, check in (("sequences", verdict.sequences), ("curated", verdict.documents))
    ]
    traits = dict.fromkeys(c.trait for c in verdict.sequences.comparisons if c.window == SEAM)
    seam = [
        {
            "trait": trait,
            **{
                ORDERS[order]: points(verdict.metrics[order]["seam"][trait]["head_tail"])
                for order in ("sequences", "sequences_random", "curated", "random", "original")
            },
        }
        for trait in traits
    ]
    caption = (
        "Where the data is read again: TV between the last batch’s mix and the first’s, in percentage points"
    )
    notes = [f"Not compared: {reason}" for reason in verdict.sequences.skipped]
    notes += [
        f"Shuffling is already good enough for any {window}: its worst one strays by at most one percentage point"
        for window in verdict.sequences.good_enough
    ]
    return [*tables, table(caption, seam), part("notes", notes)]
