"""The measures of an order that people see: one registry, and the tables that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dagster_divorder.view.words import ORDERS, clip, fixed, number, percent, points


@dataclass(frozen=True)
class Measure:
    """One measure, the same wherever it is shown.

    unit: "" where a value has none, or `show` writes it. show: the figure that is stored, as text in the unit. better:
    "more" or "less". about: one line for people who meet it first. per_unit: how many units the stored figure 1 is.
    """

    name: str
    unit: str
    show: Callable[[Any], str]
    better: str
    about: str
    per_unit: float = 1.0

    @property
    def label(self) -> str:
        """The name with its unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def shown_unit(self) -> str:
        """The unit of `in_unit`."""
        return self.unit or ("%" if self.per_unit == 100.0 else "")

    def in_unit(self, stored: float | None) -> float | None:
        """The stored figure in the unit."""
        return None if stored is None else self.per_unit * stored

    def compared(self, ours: float | None, shuffled: float | None) -> str:
        """How many times better ours is: `2.2 times better`, `1.5 times worse`, `as shuffled`; a dash where either has
        no value."""
        if ours is None or shuffled is None or ours != ours or shuffled != shuffled:
            return "–"
        low, high = sorted((abs(ours), abs(shuffled)))
        if high == low or high < 1.05 * low:
            return "as shuffled"
        word = "better" if (ours < shuffled) == (self.better == "less") else "worse"
        return f"{number(high / low, 2)} times {word}" if low else word


MEASURES = {
    "distinct clusters a sequence": Measure(
        "clusters in a sequence, mean", "", fixed, "more", "different topics in one training sequence"
    ),
    "fewest": Measure(
        "clusters in a sequence, fewest", "", number, "more", "topics in the sequence that has the fewest"
    ),
    "distinct clusters, flush": Measure(
        "clusters in a sequence, flush",
        "",
        fixed,
        "more",
        "the same where a document that does not fit starts a new sequence",
    ),
    "batch TV, clusters": Measure(
        "batch TV, mean",
        "%",
        points,
        "less",
        "tokens of a batch that would have to change for the corpus's mix of topics",
        100.0,
    ),
    "worst batch TV, clusters": Measure(
        "batch TV, worst", "%", points, "less", "the same in the batch that strays most", 100.0
    ),
    "worst share, batch anywhere": Measure(
        "worst batch anywhere",
        "points off",
        points,
        "less",
        "how far a topic's share is off in the worst batch, wherever a batch starts",
        100.0,
    ),
    "mean prefix deviation, tokens": Measure(
        "prefix deviation, mean",
        "tokens",
        number,
        "less",
        "how far all that was read so far is off the corpus's mix",
    ),
    "every cluster seen after": Measure(
        "every cluster seen after",
        "",
        percent,
        "less",
        "part of the training after which every topic has come up",
        100.0,
    ),
    "features that drift": Measure(
        "features that drift", "", number, "less", "features clearly further from the whole than shuffles are"
    ),
    "rank correlation, largest": Measure(
        "rank correlation, largest", "", fixed, "less", "of a feature with the place in the order; 0 is none"
    ),
    "farthest tenth, times shuffled": Measure(
        "farthest tenth",
        "times shuffled",
        fixed,
        "less",
        "the tenth of the order that is furthest from the whole, in any feature",
    ),
    "mean batch, times shuffled": Measure(
        "mean batch", "times shuffled", fixed, "less", "distance of a batch from the whole, over all features"
    ),
    "peak memory, MB": Measure(
        "peak memory", "MB", lambda value: fixed(value, 1), "less", "how far memory rose for the order"
    ),
}
"""By the names of `core.measure.tables.summary_row` and of the strategies' comparison; see `measures`."""

IN_FULL_ONLY = ("fewest", "worst batch TV, clusters", "every cluster seen after")
"""Measures of the summary that are shown only where all are."""

FOLLOWED = ("distinct clusters a sequence", "batch TV, clusters", "worst share, batch anywhere")
"""Measures that people follow over runs, as multiples of shuffling's too."""


def measures(names: Iterable[str]) -> dict[str, Measure]:
    """Those of `names` that are measures, in their order: MEASURES, and the batch TV of every other trait, whose name
    may be any text."""
    return {name: found for name in names if (found := MEASURES.get(name) or _of_trait(name))}


def _of_trait(name: str) -> Measure | None:
    """The batch TV of a trait other than the clusters."""
    if not name.startswith("batch TV of "):
        return None
    trait = clip(name).removeprefix("batch TV of ")
    about = f"tokens of a batch that would have to change for the corpus's mix of {trait}"
    return Measure(f"batch TV of {trait}, mean", "%", points, "less", about, 100.0)


def as_shown(row: Mapping[str, Any]) -> dict[str, str]:
    """A row of measures as people read it, by their labels; what is no measure stands before them as it is."""
    known = measures(row)
    return {
        (known[name].label if name in known else name): known[name].show(value)
        if name in known
        else value
        if isinstance(value, str)
        else number(value)
        for name, value in row.items()
    }


def side_by_side(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The summary's orders as columns, the one to train on first, and a row a measure: people compare along a line."""
    return [
        {
            "measure": measure.label,
            "better": measure.better,
            **{ORDERS.get(row["order"], row["order"]): measure.show(row[name]) for row in reversed(rows)},
        }
        for name, measure in measures(rows[0]).items()
    ]


class Beside(NamedTuple):
    """One measure of an order beside the same of shuffles, both as stored; None where it cannot be told."""

    measure: Measure
    ours: float | None
    shuffled: float | None

    def shown(self) -> dict[str, str]:
        """As a row of a table."""
        return {
            "measure": self.measure.label,
            "this order": self.measure.show(self.ours),
            "shuffled": self.measure.show(self.shuffled),
            "compared": self.measure.compared(self.ours, self.shuffled),
        }

    def data(self) -> dict[str, Any]:
        """As plain values, in the measure's unit."""
        return {
            "measure": self.measure.name,
            "unit": self.measure.shown_unit,
            "better": self.measure.better,
            "this_order": self.measure.in_unit(self.ours),
            "shuffled": self.measure.in_unit(self.shuffled),
            "compared": self.measure.compared(self.ours, self.shuffled),
            "about": self.measure.about,
        }


def beside_shuffled(ours: Mapping[str, Any], shuffled: Mapping[str, Any]) -> list[Beside]:
    """Every measure of two rows of the summary."""
    return [Beside(measure, ours[name], shuffled[name]) for name, measure in measures(ours).items()]
