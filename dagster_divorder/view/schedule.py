"""An order along a score's schedule, in sentences and a table: what it follows, how near every other trait stays to its
mix at each point of the schedule, against the papers' window shuffle, and what the schedule itself moves.

measured: figures of the stage `schedule`. A scale is one of its `scales`: sequences or documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dagster_divorder.view.answer import TextTable
from dagster_divorder.view.measures import ALONG_SCHEDULE, IN_FULL_ONLY, MEASURES, TRAIT, Beside, at
from dagster_divorder.view.words import clip, count, fixed, listed, number, percent, points

Measured = Mapping[str, Any]

MOVED = "moved, %"
BESIDE_CORPUS = "against the corpus's own mix; shuffled: without a schedule"
"""The title of measures that ignore the schedule."""
NAME = 60
"""Characters of a score's name."""


def form(measured: Measured) -> str:
    """The shape: `zigzag`, or `zigzag (folds 2)` with options that differ from their defaults."""
    given = [
        f"{name} {'yes' if value is True else value}"
        for name, value in measured["options"].items()
        if name not in ("inside", "strength", "window", "points") and value is not False
    ]
    return f"{measured['shape']} ({', '.join(given)})" if given else str(measured["shape"])


def followed(measured: Measured) -> str:
    """The score and the shape: `quality along zigzag (folds 2)`."""
    return f"{clip(measured['score'], NAME)} along {form(measured)}"


def not_nearer(scale: Measured) -> list[str]:
    """Balanced traits whose batches are no nearer the mix at their point than a window shuffle's."""
    return [
        trait
        for trait, figures in scale["traits"].items()
        if figures["balanced"] and not figures["batch"] < figures["shuffled"]
    ]


def sentences(measured: Measured) -> tuple[str, str]:
    """The claim and its figures."""
    scale = measured["scales"]["sequences"]
    traits, failed = scale["traits"], not_nearer(scale)
    if not traits:
        return f"This order follows {followed(measured)}.", "Nothing of it is left to order."
    balanced = [trait for trait, figures in traits.items() if figures["balanced"]]
    kept, nearer = (failed, "no nearer") if failed else (balanced, "nearer")
    names = listed([clip(trait) for trait in kept])
    claim = (
        f"This order follows {followed(measured)}, and keeps {names} {nearer} the mix at its points than a window "
        "shuffle does."
    )
    off = scale["off"]
    trait = failed[0] if failed else "cluster" if "cluster" in balanced else (balanced or list(traits))[0]
    ours = traits[trait]
    return claim, (
        f"Its mean rank is {fixed(off['achieved'], 3)} off the schedule, after a window shuffle "
        f"{fixed(off['shuffled'], 3)}, by the schedule alone {fixed(off['achievable'], 3)}. Batches are "
        f"{points(ours['batch'])}\u00a0% off the mix of {clip(trait)} at their point, after a window shuffle "
        f"{points(ours['shuffled'])}\u00a0%; the schedule itself moves it by {points(ours['moved'])}\u00a0%."
    )


def notes(measured: Measured) -> list[str]:
    """Other settings that decide how the order follows the schedule, a sentence each."""
    strength, window = measured["strength"], measured["window"]
    lines = [
        f"A sequence moves within {number(window['batches'], 2)} batches, {percent(window['share'])} of training, to "
        "keep everything else at its mix."
    ]
    if strength < 1:
        lines.append(f"{percent(strength)} of the tokens follow the schedule; the others are spread evenly.")
    if measured["epochs"]:
        lines.append(
            "One schedule spans all epochs."
            if measured["epochs"] == "together"
            else "The schedule starts again in every epoch."
        )
    if seams := measured["scales"]["sequences"]["seam"]:
        seam = max(seams, key=lambda seam: abs(seam["achieved"] or 0.0))
        lines.append(
            f"From one epoch to the next the mean rank changes by {fixed(seam['achieved'])}; the schedule asks for "
            f"{fixed(seam['asked'])}."
        )
    return lines


def without_score(measured: Measured) -> list[str]:
    """A sentence on records without a score, if any."""
    missing, records = measured["missing"], measured["records"]
    name = clip(measured["score"], NAME)
    return (
        [f"{missing:,} of {count(records, 'record')} have no {name}, and are spread evenly."]
        if missing
        else []
    )


def title(measured: Measured) -> str:
    """A line above the table."""
    return f"along {form(measured)} of {clip(measured['score'], NAME)}; shuffled: in windows of the same schedule"


def rows(scale: Measured, *, in_full: bool = True) -> list[dict[str, str]]:
    """A row a measure, against the window shuffle, and what the schedule itself moves. in_full: with worst batches."""
    table = []
    for name, path in ALONG_SCHEDULE.items() if scale["traits"] else ():
        measure = MEASURES[name]
        if not in_full and name in IN_FULL_ONLY:
            continue
        for trait in scale["traits"] if TRAIT in name else [""]:
            of_trait, other = measure.of_trait(trait), [trait if key == TRAIT else key for key in path]
            pair = Beside(of_trait, at(scale, of_trait.path), at(scale, tuple(other)))
            moved = scale["traits"][trait]["moved"] if trait and name not in IN_FULL_ONLY else None
            table.append(pair.shown() | {MOVED: points(moved) if trait else ""})
    return table


def meanings(*, in_full: bool = True) -> list[str]:
    """A line a measure for newcomers."""
    lines = [
        f"{MEASURES[name].label}: {MEASURES[name].meaning}"
        for name in ALONG_SCHEDULE
        if in_full or name not in IN_FULL_ONLY
    ]
    return [
        *(line.replace(TRAIT, "a trait") for line in lines),
        f"{MOVED}: tokens that differ between the mix at a point of the schedule and the corpus's, whatever the order",
    ]


def markdown(measured: Measured) -> str:
    """The tables and their meanings, in Markdown."""
    tables = [
        f"{items}, {title(measured)}\n\n{TextTable(rows(scale)).markdown()}"
        for items, scale in measured["scales"].items()
    ]
    lines = [f"- {line}" for line in (*without_score(measured), *notes(measured), *meanings())]
    return "\n\n".join([*tables, "\n".join(lines)])


def trait_names(scale: Measured) -> Sequence[str]:
    """The traits, balanced ones first."""
    return sorted(scale["traits"], key=lambda trait: not scale["traits"][trait]["balanced"])


def highest(scale: Measured) -> float:
    """The largest distance of any trait in any tenth of training, for charts on one scale."""
    return max(
        (
            value
            for tenths in scale["along"].values()
            for values in tenths.values()
            for value in values
            if value
        ),
        default=0.01,
    )
