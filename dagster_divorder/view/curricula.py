"""Shapes of schedules side by side on one plan, in sentences and a picture.

rows: of `stages.evidence.curriculum_comparison`, two a shape: windows shuffled, and windows ordered as the plan is.
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
WIDTH, HEIGHT = 900, 620


def pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """(windows shuffled, windows ordered) of each shape."""
    return list(zip(rows[::2], rows[1::2], strict=True))


def conclusions(rows: Sequence[Row]) -> list[str]:
    """A sentence each: what ordered windows keep beside shuffled ones, and what the shapes differ in."""
    if not rows:
        return ["No sequence is left to order along a schedule."]
    beside = pairs(rows)
    sentences = []
    for trait in (name.removeprefix(AT_POINT) for name in rows[0] if name.startswith(AT_POINT)):
        shuffled, ours = ([row[AT_POINT + trait] for row in side] for side in zip(*beside, strict=True))
        times = sorted(other / own if own else 1.0 for other, own in zip(shuffled, ours, strict=True))
        low, high = (number(value, 2) for value in (times[0], times[-1]))
        sentences.append(
            f"Batches are {low if low == high else f'{low} to {high}'} times as near the mix of {clip(trait)} at their "
            f"point with windows {beside[0][1]['windows']} as with windows shuffled."
        )
    ordered = [ours for _, ours in beside]
    followed, kept = (sorted(ordered, key=lambda row: row[name]) for name in (OFF, CORPUS))
    sentences.append(
        f"Nearest its schedule is {followed[0]['shape']}, {fixed(followed[0][OFF], 3)} of the ranking off; farthest "
        f"{followed[-1]['shape']}, {fixed(followed[-1][OFF], 3)}."
    )
    sentences.append(
        f"Batches are nearest the corpus's own mix of topics with {kept[0]['shape']}, {points(kept[0][CORPUS])} % off; "
        f"farthest with {kept[-1]['shape']}, {points(kept[-1][CORPUS])} %."
    )
    return sentences


def in_short(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The columns to choose by, as text."""

    def head(name: str) -> str:
        return "to the corpus, %" if name == CORPUS else f"{clip(name.removeprefix(AT_POINT))} there, %"

    return [
        {
            "shape": row["shape"],
            "windows": row["windows"],
            OFF: MEASURES[OFF].show(row[OFF]),
            **{head(name): points(row[name]) for name in row if name.startswith(AT_POINT) or name == CORPUS},
            "seconds": fixed(row["seconds"]),
        }
        for row in rows
    ]


def meanings() -> list[str]:
    """What the columns of `in_short` are."""
    return [
        f"{OFF}: {MEASURES[OFF].meaning}",
        f"there: {MEASURES[AT_POINT + TRAIT].meaning.replace(TRAIT, 'a trait')}",
        "to the corpus: the same for the corpus's own mix of topics, which the schedule leaves",
    ]


def draw(rows: Sequence[Row]) -> bytes:
    """The trade-off as a PNG file: distance from the schedule against how far batches are off the mix there."""

    def fill(figure: Figure) -> None:
        axes = figure.add_axes((0.09, 0.12, 0.88, 0.8))
        axes.set_title("Shapes of schedules, by the order inside windows")
        charts.shapes(axes, pairs(rows), OFF, THERE)
        axes.set_xlabel("off the schedule, mean: less is better")
        axes.set_ylabel("batch TV to the mix of clusters at its point, mean, %: less is better")

    return picture(WIDTH, HEIGHT, fill)
