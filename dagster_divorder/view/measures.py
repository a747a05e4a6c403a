"""The measures of an order that people see: one registry, and tables from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dagster_divorder.core.measure import Stationarity
from dagster_divorder.units import BATCHES
from dagster_divorder.view.words import ORDERS, clip, fixed, number

Figures = Mapping[str, Any]
"""The measures of an order, as in `core.measure.order.Measures`."""
TRAIT = "TRAIT"
"""Placeholder for a trait's name in measures of traits."""
TV_OF, SHARE_OF = "batch TV of ", "worst share of "
TV_OF_CLUSTER, SHARE_OF_CLUSTER = f"{TV_OF}cluster", f"{SHARE_OF}cluster"


@dataclass(frozen=True)
class Measure:
    """One measure, the same everywhere.

    meaning: one line for newcomers. path: to its figure in `Figures`; measures without a path come from elsewhere.
    unit: "%" and "points" are hundredths of what is stored. better: "more" or "less". decimals: None for significant
    digits.
    """

    name: str
    meaning: str
    path: tuple[str, ...] = ()
    unit: str = ""
    better: str = "less"
    decimals: int | None = 2

    def figure(self, figures: Figures) -> float | None:
        """The figure of an order, to be stored; None for batches if there are too few."""
        if figures["batches"] < BATCHES and any(key.startswith("batch") for key in self.path):
            return None
        found: Any = figures
        for key in self.path:
            found = found[key]
        return found

    def of_trait(self, trait: str) -> Measure:
        """The measure for one trait; its name may be any text."""
        path = tuple(trait if key == TRAIT else key for key in self.path)
        return replace(self, name=self.name.replace(TRAIT, clip(trait)), path=path)

    @property
    def label(self) -> str:
        """The name with its unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def in_unit(self, stored: float | None) -> float | None:
        """A stored figure in the unit."""
        return None if stored is None else stored * (100.0 if self.unit in ("%", "points") else 1.0)

    def show(self, stored: float | None) -> str:
        """A stored figure as text, in the unit; a dash for None and NaN."""
        value = self.in_unit(stored)
        return number(value) if self.decimals is None else fixed(value, self.decimals)

    def compared(self, ours: float | None, shuffled: float | None) -> str:
        """A comparison: `2.2 times better`, `1.5 times worse` or `as shuffled`; a dash if a value is missing."""
        if ours is None or shuffled is None or ours != ours or shuffled != shuffled:
            return "–"
        low, high = sorted((abs(ours), abs(shuffled)))
        if high == low or high < 1.05 * low:
            return "as shuffled"
        word = "better" if (ours < shuffled) == (self.better == "less") else "worse"
        return f"{number(high / low, 2)} times {word}" if low else word


MEASURES = {
    TV_OF + TRAIT: Measure(
        f"{TV_OF}{TRAIT}, mean",
        "tokens of a batch that would have to change for the corpus's mix",
        ("batch_tv", TRAIT, "mean"),
        "%",
    ),
    SHARE_OF + TRAIT: Measure(
        f"share error of {TRAIT}, worst batch",
        "distance of a value's share from the corpus's, wherever a batch starts",
        ("windows", "batch", TRAIT, "worst"),
        "points",
    ),
    "distinct clusters a sequence": Measure(
        "clusters in a sequence, mean",
        "different clusters in one training sequence",
        ("distinct", "cluster", "mean"),
        better="more",
    ),
    "fewest": Measure(
        "clusters in a sequence, fewest",
        "clusters in the sequence with the fewest",
        ("distinct", "cluster", "least"),
        better="more",
        decimals=None,
    ),
    "mean prefix deviation, tokens": Measure(
        "prefix deviation, mean",
        "distance of everything read so far from the corpus's mix",
        ("prefix", "mean"),
        "tokens",
        decimals=None,
    ),
    "features that drift": Measure(
        "features that drift", "features clearly farther from the whole than in shuffles", decimals=None
    ),
    "farthest tenth, times shuffled": Measure(
        "farthest tenth",
        "the tenth of the order farthest from the whole, in any feature",
        unit="times shuffled",
    ),
    "mean batch, times shuffled": Measure(
        "mean batch", "distance of a batch from the whole, over all features", unit="times shuffled"
    ),
}
"""By the names of the summary and of the strategies' comparison; see `measures`."""
SUMMARY = tuple(name for name, measure in MEASURES.items() if measure.path and TRAIT not in name)
"""Measures of the summary, behind those of traits."""


def followed(traits: Sequence[str]) -> tuple[str, ...]:
    """Measures that people follow over runs, also as multiples of shuffling. traits: as for `summary_row`."""
    return (TV_OF + traits[0], SHARE_OF + traits[0], "distinct clusters a sequence")


def measures(names: Iterable[str]) -> dict[str, Measure]:
    """The measures among `names`, in their order, with those of every trait."""
    found = {}
    for name in names:
        kind = next((of_traits for of_traits in (TV_OF, SHARE_OF) if name.startswith(of_traits)), None)
        if kind:
            found[name] = MEASURES[kind + TRAIT].of_trait(name.removeprefix(kind))
        elif name in MEASURES:
            found[name] = MEASURES[name]
    return found


def summary_row(order: str, figures: Figures, traits: Sequence[str]) -> dict[str, Any]:
    """The main figures of an order, by the names of `measures`; None if unknown. traits: what people look at first
    comes first."""
    names = [of_traits + trait for trait in traits for of_traits in (TV_OF, SHARE_OF)] + [*SUMMARY]
    return {"order": order, **{name: measure.figure(figures) for name, measure in measures(names).items()}}


def drift_columns(drift: Stationarity | None) -> dict[str, Any]:
    """Number of drifting features, and, as multiples of shuffling's, the largest distance of a tenth and the mean
    distance of a batch, over the features that have them. None without features."""
    features = drift.features if drift else []
    tenths, batches = (
        [
            measure.value / measure.shuffled
            for feature in features
            if (measure := feature.measures.get(name)) and measure.shuffled
        ]
        for name in ("tenths", "batch")
    )
    return {
        "features that drift": sum(feature.drifts for feature in features) if features else None,
        "farthest tenth, times shuffled": max(tenths, default=None),
        "mean batch, times shuffled": sum(batches) / len(batches) if batches else None,
    }


def side_by_side(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """A row a measure, a column an order of the summary; the order to train on comes first."""
    return [
        {
            "measure": measure.label,
            "better": measure.better,
            **{ORDERS.get(row["order"], row["order"]): measure.show(row[name]) for row in reversed(rows)},
        }
        for name, measure in measures(rows[0]).items()
    ]


class Beside(NamedTuple):
    """Stored figures of one measure, of an order and of shuffles; None if missing."""

    measure: Measure
    ours: float | None
    shuffled: float | None

    def data(self) -> dict[str, Any]:
        """Plain values in the measure's unit."""
        return {
            "measure": self.measure.name,
            "unit": self.measure.unit,
            "better": self.measure.better,
            "this_order": self.measure.in_unit(self.ours),
            "shuffled": self.measure.in_unit(self.shuffled),
            "compared": self.measure.compared(self.ours, self.shuffled),
            "about": self.measure.meaning,
        }

    def shown(self) -> dict[str, str]:
        """Cells of a table."""
        return {
            "measure": self.measure.label,
            "this order": self.measure.show(self.ours),
            "shuffled": self.measure.show(self.shuffled),
            "compared": self.measure.compared(self.ours, self.shuffled),
        }


def beside_shuffled(ours: Mapping[str, Any], shuffled: Mapping[str, Any]) -> list[Beside]:
    """Every measure of two rows of the summary."""
    return [Beside(measure, ours[name], shuffled[name]) for name, measure in measures(ours).items()]


def in_short(rows: Sequence[Beside]) -> list[Beside]:
    """The rows that a summary shows: what is known, without the fewest clusters, and of worst shares
    only the first trait's."""
    shares = [row for row in rows if row.measure.path[:2] == ("windows", "batch")]
    left_out = [row for row in rows if row.ours is None or row.measure == MEASURES["fewest"]] + shares[1:]
    return [row for row in rows if row not in left_out]


def definitions(rows: Sequence[Beside]) -> list[str]:
    """A line a kind of measure: what it means."""
    kinds = {row.measure.name.partition(" of ")[0]: row.measure.meaning for row in rows}
    return [f"{kind}: {meaning}" for kind, meaning in kinds.items()]
