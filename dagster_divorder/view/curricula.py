"""Shapes of schedules compared on one plan, in sentences and a picture.

rows: of `stages.evidence.curriculum_comparison`, two a shape: windows shuffled, and windows ordered like the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster_divorder.view import charts
from dagster_divorder.view.drawing import picture
from dagster_divorder.view.measures import AT_POINT, MEASURES, TRAIT
from dagster_divorder.view.words import clip, fixed, number, points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

OFF, CORPUS, THERE = "off the schedule", "batch TV, clusters", f"{AT_POINT}cluster"
WIDTH, HEIGHT = 1000, 460


def pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """(windows shuffled, windows ordered) of each shape."""
    return list(zip(rows[::2], rows[1::2], strict=True))


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Sentences: what ordered windows keep against shuffled ones, and how the shapes differ."""
    if not rows:
        return ["No sequence is left to order along a schedule."]
    beside, nearer = pairs(rows), []
    for trait in (name.removeprefix(AT_POINT) for name in rows[0] if name.startswith(AT_POINT)):
        there = AT_POINT + trait
        times = [shuffled[there] / ours[there] if ours[there] else 1.0 for shuffled, ours in beside]
        low, high = (number(value, 2) for value in (min(times), max(times)))
        nearer.append((clip(trait), low if low == high else f"{low} to {high}"))
    (trait, times_as_near), *others = nearer
    more = "".join(f", of {name} {times}" for name, times in others)
    sentences = [
        f"With windows {beside[0][1]['windows']}, batches are {times_as_near} times as near the mix of {trait} at "
        f"their point as with shuffled windows{more}."
    ]
    ordered = [ours for _, ours in beside]
    followed, kept = (sorted(ordered, key=lambda row: row[name]) for name in (OFF, CORPUS))
    sentences.append(
        f"{followed[0]['shape']} is nearest its schedule, {fixed(followed[0][OFF], 3)} of the ranking off; "
        f"{followed[-1]['shape']} is farthest, {fixed(followed[-1][OFF], 3)}."
    )
    sentences.append(
        f"Batches are nearest the corpus's own mix of topics with {kept[0]['shape']}, {points(kept[0][CORPUS])} % off; "
        f"farthest with {kept[-1]['shape']}, {points(kept[-1][CORPUS])} %."
    )
    return sentences


def in_short(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The columns to choose by, as text."""

    def head(name: str) -> str:
        return "corpus, %" if name == CORPUS else f"{clip(name.removeprefix(AT_POINT))} there, %"

    return [
        {
            "shape": row["shape"],
            "windows": row["windows"],
            "rank off": MEASURES[OFF].show(row[OFF]),
            **{head(name): points(row[name]) for name in row if name.startswith(AT_POINT) or name == CORPUS},
            "seconds": fixed(row["seconds"]),
        }
        for row in rows
    ]


def meanings() -> list[str]:
    """The meanings of the columns of `in_short`."""
    return [
        f"rank off: {MEASURES[OFF].meaning}",
        f"there: {MEASURES[AT_POINT + TRAIT].meaning.replace(TRAIT, 'a trait')}",
        "corpus: the same for the corpus's own mix of topics, which the schedule leaves on purpose",
    ]


def draw(rows: Sequence[Row]) -> bytes:
    """The shapes as a PNG file: distance from the schedule, and how far batches are off the mix there."""

    def fill(figure: Figure) -> None:
        left, right = (figure.add_axes((at, 0.14, 0.37, 0.64)) for at in (0.1, 0.59))
        charts.shapes(left, pairs(rows), OFF, 1.0)
        left.set_title("Off the schedule")
        left.set_xlabel("of the ranking, mean: less is better")
        charts.shapes(right, pairs(rows), THERE, 100.0)
        right.set_title("Off the mix of clusters at its point")
        right.set_xlabel("batch TV, mean, %: less is better")
        figure.text(0.02, 0.92, "Shapes of schedules on this plan", size=18, weight="bold")
        marks = left.get_legend_handles_labels()
        figure.legend(*marks, loc="upper right", bbox_to_anchor=(0.98, 0.98), ncols=2)

    return picture(WIDTH, HEIGHT, fill)
