"""The check, whether this order beats shuffling: in two sentences and a few numbers, and window by window."""

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


def head(of: Verdict) -> Markup:
    """The sentences and the numbers, as the top of the page."""
    return part("check", of.passed, of.compared, *of.sentences, _tiles(of))


def _tiles(of: Verdict) -> list[Sequence[str]]:
    """What, its unit, and its value in each of the orders SHOWN."""

    def tile(what: str, unit: str, show: Callable[[Any], str], *path: str) -> Sequence[str]:
        return (what, unit, *(show(reduce(getitem, path, of.metrics[name])) for name in SHOWN))

    off = "percentage points off, for one cluster, wherever a batch starts"
    tiles = [tile("In a sequence", "clusters on average", fixed, "split", "mean")]
    if not of.metrics["sequences"]["windows"]["batch"]["cluster"]["partial"]:
        unit = "% of its tokens would have to change"
        tiles += [
            tile("In the worst batch", off, points, "windows", "batch", "cluster", "worst"),
            tile("In the mean batch", unit, points, "batch_shares", "cluster", "mean_tv"),
        ]
        for trait in of.sequences.traits(moving=True):
            unit = f"percentage points off what can be had of the targets for {trait}"
            tiles.append(tile("In the worst batch", unit, points, "windows", "batch", trait, "worst"))
    ours = of.metrics["sequences"]
    share = percent(ours["prefix"]["mean"] / max(1, ours["tokens"]))
    unit = f"tokens off the mix, on average: {share} of all {ours['tokens']:,}"
    return [*tiles, tile("Up to any point", unit, number, "prefix", "mean")]


def windows(of: Verdict) -> list[Markup]:
    """Windows of every size at every position against shuffling, and both sides of the seam."""
    before = of.metrics["original"]
    parts = [
        table(
            f"{ORDERS[order].capitalize()}: largest stray of any value’s share, in percentage points",
            [
                {
                    "any": one.window,
                    "trait": one.trait,
                    "mean, ours": points(one.mean),
                    "mean, shuffled": points(one.shuffled_mean),
                    "worst, ours": points(one.worst),
                    "worst, shuffled": points(one.shuffled_worst),
                    "worst, original": points(
                        (before["seam"] if one.window == SEAM else before["windows"][one.window])[one.trait][
                            "worst"
                        ]
                    ),
                    "worst against shuffling": times(one.worst, one.shuffled_worst)
                    + ("" if one.passed else ": does not pass"),
                }
                for one in found.comparisons
            ],
        )
        for order, found in (("sequences", of.sequences), ("curated", of.documents))
    ]
    traits = dict.fromkeys(c.trait for c in of.sequences.comparisons if c.window == SEAM)
    seam = [
        {
            "trait": trait,
            **{
                ORDERS[order]: points(of.metrics[order]["seam"][trait]["head_tail"])
                for order in ("sequences", "sequences_random", "curated", "random", "original")
            },
        }
        for trait in traits
    ]
    caption = (
        "Where the data is read again: TV between the last batch’s mix and the first’s, in percentage points"
    )
    moving = of.sequences.traits(moving=True)
    said = [f"{trait}: held against what can be had of its targets there, which moves" for trait in moving]
    said += [f"Not compared: {reason}" for reason in of.sequences.skipped]
    said += [
        f"Shuffling is already good enough for any {window}: its worst one strays by at most one percentage point"
        for window in of.sequences.good_enough
    ]
    return [*parts, table(caption, seam), part("notes", said)]
