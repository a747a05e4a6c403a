"""The check, whether this order beats shuffling: in two sentences and a few numbers, and window by window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from dagster_divorder.core.metrics import ShufflingCheck
from dagster_divorder.core.metrics.shuffling_check import SEAM
from dagster_divorder.view.charts import SERIES
from dagster_divorder.view.report.html import Column, Section, notes, part, table
from dagster_divorder.view.report.numbers import Check
from dagster_divorder.view.words import listed, number, points, times

SHOWN = ("sequences", "sequences_random", "original")
"""Orders of the numbers at the head of the page."""


def sentences(of: Check) -> tuple[str, str]:
    """What is claimed, and the figure that shows it (or what to do)."""
    found, metrics = of.sequences, of.metrics
    if not of.compared:
        return (
            "Whether this order beats shuffling cannot be told: nothing could be compared "
            f"({'; '.join(found.skipped)}).",
            f"Its sequences hold {number(metrics['sequences']['split']['mean'])} distinct clusters on average, "
            f"against {number(metrics['sequences_random']['split']['mean'])} after shuffling.",
        )
    if not found.passed:
        failed = list(
            dict.fromkeys(f"{c.trait} in any {c.window}" for c in found.comparisons if not c.passed)
        )
        return f"This order does not beat shuffling in {listed(failed)}.", f"What to do: {of.remedy}."
    still, moving = found.traits(moving=False), found.traits(moving=True)
    kept = [f"the corpus’s own mix{f' of {listed(still)}' if moving else ''}"] if still else []
    kept += [f"the mix that can be had of the targets for {listed(moving)}"] if moving else []
    claim = f"This order keeps the windows of training at {' and at '.join(kept)} better than shuffling does."
    trait = "cluster" if "cluster" in still else (still or moving)[0]
    ours = metrics["sequences"]
    window, measure = (
        ("batch", "worst") if any(c.window == "batch" for c in found.comparisons) else ("sequence", "mean")
    )
    off, shuffled, before = (points(metrics[name]["windows"][window][trait][measure]) for name in SHOWN)
    if window == "batch":
        whose = "what can be had of its targets" if trait in moving else "the corpus’s"
        return claim, (
            f"Wherever a batch of {ours['batch']:,} sequences starts, no {trait}’s share strays from {whose} by more "
            f"than {off} percentage points, against {shuffled} after shuffling and {before} in the original order."
        )
    return claim, (
        f"In a sequence of {ours['sequence_length']:,} tokens the {trait} that strays most is {off} percentage points "
        f"off {'its targets ' if trait in moving else ''}on average, against {shuffled} after shuffling and {before} "
        "in the original order; there are too few batches to compare."
    )


def head(of: Check) -> Markup:
    """The sentences and the numbers, as the top of the page."""
    return part("check", of.passed, of.compared, *sentences(of), _tiles(of))


def _tiles(of: Check) -> list[Sequence[str]]:
    """What, its unit, and its value in each of the orders SHOWN."""

    def tile(
        what: str, unit: str, value: Callable[[dict[str, Any]], Any], show: Any = points
    ) -> Sequence[str]:
        return (what, unit, *(show(value(of.metrics[name])) for name in SHOWN))

    def worst(trait: str) -> Callable[[dict[str, Any]], Any]:
        return lambda metrics: metrics["windows"]["batch"][trait]["worst"]

    tiles = [tile("In a sequence", "clusters on average", lambda metrics: metrics["split"]["mean"], number)]
    if not of.metrics["sequences"]["windows"]["batch"]["cluster"]["partial"]:
        unit = "% of its tokens would have to change"
        tiles += [
            tile("In the worst batch", "percentage points off, for one cluster", worst("cluster")),
            tile(
                "In the mean batch", unit, lambda metrics: metrics["windows"]["batch"]["cluster"]["mean_tv"]
            ),
        ]
        for trait in of.sequences.traits(moving=True):
            unit = f"percentage points off what can be had of the targets for {trait}"
            tiles.append(tile("In the worst batch", unit, worst(trait)))
    unit = "tokens off the mix, on average"
    return [*tiles, tile("Up to any point", unit, lambda metrics: metrics["prefix"]["mean"], number)]


def section(of: Check) -> Section:
    """Windows of every size at every position against shuffling, and both sides of the seam."""
    moving = of.sequences.traits(moving=True)
    said = [f"{trait}: held against what can be had of its targets there, which moves" for trait in moving]
    said += [f"Not compared: {reason}" for reason in of.sequences.skipped]
    said += [
        f"Shuffling is already good enough for any {window}: its worst one strays by at most one percentage point"
        for window in of.sequences.good_enough
    ]
    return Section(
        "check",
        "Every window, wherever it starts",
        f"The largest stray of any value’s share from {'the mix' if moving else 'the corpus’s'}, in percentage "
        "points, over windows that start at every token; shuffling is the mean of three seeds.",
        [
            *_windows(
                "Packed sequences in their order, as a trainer reads them",
                of.sequences,
                of.metrics["original"],
            ),
            *_windows(
                "Curated documents, without an order of sequences", of.documents, of.metrics["original"]
            ),
            *_seam(of),
            *notes(said),
        ],
    )


def _windows(caption: str, found: ShufflingCheck, before: dict[str, Any]) -> list[Markup]:
    def original(of: Any) -> float:
        there = before["seam"] if of.window == SEAM else before["windows"][of.window]
        worst: float = there[of.trait]["worst"]
        return worst

    columns = [
        Column("any", lambda of: of.window, text=True),
        Column("trait", lambda of: of.trait, text=True),
        Column("mean, ours", lambda of: points(of.mean)),
        Column("mean, shuffled", lambda of: points(of.shuffled_mean)),
        Column("worst, ours", lambda of: points(of.worst)),
        Column("worst, shuffled", lambda of: points(of.shuffled_worst)),
        Column("worst, original", lambda of: points(original(of))),
        Column("worst against shuffling", lambda of: times(of.worst, of.shuffled_worst), text=True),
        Column("check", lambda of: "better" if of.passed else "not better", text=True),
    ]
    return [table(caption, found.comparisons, columns)] if found.comparisons else []


def _seam(of: Check) -> list[Markup]:
    """The last batch of one reading against the first one of the next."""
    traits = list(dict.fromkeys(c.trait for c in of.sequences.comparisons if c.window == SEAM))

    def between(order: str) -> Callable[[str], str]:
        return lambda trait: points(of.metrics[order]["seam"][trait]["head_tail"])

    orders = ("sequences", "sequences_random", "curated", "random", "original")
    columns = [
        Column("trait", lambda trait: trait, text=True),
        *(Column(SERIES[order].name, between(order)) for order in orders),
    ]
    caption = (
        "Where the data is read again: TV between the last batch’s mix and the first’s, in percentage points"
    )
    return [table(caption, traits, columns)] if traits else []
