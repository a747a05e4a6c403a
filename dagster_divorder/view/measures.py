"""The measures of an order that people see: one registry, and tables from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dagster_divorder.core.measure import WINDOWS, Stationarity
from dagster_divorder.core.measure.shuffling_check import SEAM
from dagster_divorder.units import BATCHES
from dagster_divorder.view.words import ORDERS, clip, fixed, number, percent, points

Figures = Mapping[str, Any]
"""The measures of an order, as in `core.measure.order.Measures`."""
TRAIT = "TRAIT"
"""Placeholder for a trait's name in measures of traits."""
TV_OF, SHARE_OF = "batch TV of ", "worst share of "
TV_OF_CLUSTER, SHARE_OF_CLUSTER = f"{TV_OF}cluster", f"{SHARE_OF}cluster"


@dataclass(frozen=True)
class Measure:
    """One measure, the same everywhere.

    show: text of a stored figure, in the unit. meaning: one line for newcomers. path: to its figure in `Figures`;
    measures without a path come from elsewhere. unit: "" if values have none, or `show` writes it. better: "more" or
    "less".
    """

    name: str
    show: Callable[[Any], str]
    meaning: str
    path: tuple[str, ...] = ()
    unit: str = ""
    better: str = "less"

    def figure(self, figures: Figures) -> float | None:
        """The figure of an order, to be stored; None for batches if there are too few."""
        too_few = figures["batches"] < BATCHES and any(key.startswith("batch") for key in self.path)
        return None if too_few else at(figures, self.path)

    def of_trait(self, trait: str) -> Measure:
        """The measure for one trait; its name may be any text."""
        shown = clip(trait)
        return replace(
            self,
            name=self.name.replace(TRAIT, shown),
            path=tuple(trait if key == TRAIT else key for key in self.path),
        )

    @property
    def label(self) -> str:
        """The name with its unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def shown_unit(self) -> str:
        """The unit of `in_unit`."""
        return self.unit or ("%" if self.show is percent else "")

    def in_unit(self, stored: float | None) -> float | None:
        """A stored figure in the unit."""
        units = 100.0 if self.show in (points, percent) else 1.0
        return None if stored is None else units * stored

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
        points,
        "tokens of a batch that would have to change for the corpus's mix",
        ("batch_tv", TRAIT, "mean"),
        "%",
    ),
    SHARE_OF + TRAIT: Measure(
        f"share error of {TRAIT}, worst batch",
        points,
        "share error of the value that is farthest off in the worst batch, whatever sequence a batch starts with",
        ("windows", "batch", TRAIT, "worst"),
        "points",
    ),
    "distinct clusters a sequence": Measure(
        "clusters in a sequence, mean",
        fixed,
        "different clusters in one training sequence",
        ("distinct", "cluster", "mean"),
        better="more",
    ),
    "fewest": Measure(
        "clusters in a sequence, fewest",
        number,
        "clusters in the sequence with the fewest",
        ("distinct", "cluster", "least"),
        better="more",
    ),
    "mean prefix deviation, tokens": Measure(
        "prefix deviation, mean",
        number,
        "distance of everything read so far from the corpus's mix",
        ("prefix", "mean"),
        "tokens",
    ),
    "features that drift": Measure(
        "features that drift", number, "features clearly farther from the whole than in shuffles"
    ),
    "farthest tenth, times shuffled": Measure(
        "farthest tenth",
        fixed,
        "the tenth of the order farthest from the whole, in any feature",
        unit="times shuffled",
    ),
    "mean batch, times shuffled": Measure(
        "mean batch", fixed, "distance of a batch from the whole, over all features", unit="times shuffled"
    ),
}
"""By the names of the summary and of the strategies' comparison; see `measures`."""
SUMMARY = tuple(name for name, measure in MEASURES.items() if measure.path and TRAIT not in name)
"""Measures of the summary, behind those of traits."""
OTHERS = (
    Measure(
        f"batch TV of {TRAIT}, worst",
        points,
        "the same of the worst batch",
        ("batch_tv", TRAIT, "worst"),
        "%",
    ),
    *(
        Measure(
            f"share error of {TRAIT}, {window}, {name}",
            points,
            f"of the value that is farthest off in a window of a {window}",
            ("windows", window, TRAIT, name),
            "points",
        )
        for window in WINDOWS
        for name in ("mean", "worst")
    ),
    *(
        Measure(
            f"share error of {TRAIT}, {SEAM}, {name}",
            points,
            "of batches across the end of an epoch and the beginning of the next",
            ("seam", TRAIT, name),
            "points",
        )
        for name in ("mean", "worst")
    ),
    *(
        Measure(
            f"values of {TRAIT} in a sequence, {name}",
            fixed,
            meaning,
            ("distinct", TRAIT, name),
            better=better,
        )
        for name, meaning, better in (
            ("mean", "different values in one training sequence", "more"),
            ("least", "values in the sequence with the fewest", "more"),
            ("spread", "standard deviation over sequences", "less"),
        )
    ),
    Measure("prefix deviation, worst", number, "the same at its worst", ("prefix", "worst"), "tokens"),
)
"""Measures that only the full table has."""

IN_FULL_ONLY = ("clusters in a sequence, fewest",)
"""Names of measures that the summary shows only with --details."""


def followed(traits: Sequence[str]) -> tuple[str, ...]:
    """Measures that people follow over runs, also as multiples of shuffling. traits: as for `summary_row`."""
    return (TV_OF + traits[0], SHARE_OF + traits[0], "distinct clusters a sequence")


def measures(names: Iterable[str]) -> dict[str, Measure]:
    """The measures among `names`, in their order, with those of every trait."""

    def measure(name: str) -> Measure | None:
        for of_traits in (TV_OF, SHARE_OF):
            if name.startswith(of_traits):
                return MEASURES[of_traits + TRAIT].of_trait(name.removeprefix(of_traits))
        return MEASURES.get(name)

    return {name: known for name in names if (known := measure(name))}


def at(figures: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        figures = figures[key] if isinstance(figures, Mapping) else getattr(figures, key)
    return figures


def summary_row(order: str, figures: Figures, traits: Sequence[str]) -> dict[str, Any]:
    """The main figures of an order, by the names of `measures`; None if unknown. traits: what people look at first
    comes first."""
    names = [of_traits + trait for trait in traits for of_traits in (TV_OF, SHARE_OF)] + [*SUMMARY]
    return {"order": order, **{name: measure.figure(figures) for name, measure in measures(names).items()}}


def full_table(metrics: Mapping[str, Figures]) -> list[dict[str, Any]]:
    """Every measure of every order, a row each, with its unit, direction and meaning. metrics: by order."""
    rows = []
    traits = [*next(iter(metrics.values()))["batch_tv"]]
    for measure in (*MEASURES.values(), *OTHERS):
        for of in [measure.of_trait(trait) for trait in traits] if TRAIT in measure.path else [measure]:
            if of.path:
                values = {name: of.in_unit(of.figure(figures)) for name, figures in metrics.items()}
                row = {"measure": of.name, "unit": of.shown_unit, "better": of.better}
                rows.append({**row, **values, "about": of.meaning})
    return rows


def drift_columns(drift: Stationarity | None) -> dict[str, Any]:
    """Number of drifting features, and, as multiples of shuffling's, the largest distance of a tenth and the mean
    distance of a batch, over the features that have them. None without features."""
    features = drift.features if drift else ()

    def times(name: str) -> list[float]:
        measures = [drifting.measures[name] for drifting in features if name in drifting.measures]
        return [measure.value / measure.shuffled for measure in measures if measure.shuffled]

    tenths, batches = times("tenths"), times("batch")
    return {
        "features that drift": sum(drifting.drifts for drifting in features) if features else None,
        "farthest tenth, times shuffled": max(tenths, default=None),
        "mean batch, times shuffled": sum(batches) / len(batches) if batches else None,
    }


def as_shown(row: Mapping[str, Any]) -> dict[str, str]:
    """A row of measures as texts by label; other cells keep their names."""
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
    """A row a measure, a column an order of the summary; the order to train on comes first."""
    return [
        {
            "measure": measure.label,
            "better": measure.better,
            **{ORDERS.get(row["order"], row["order"]): measure.show(row[name]) for row in reversed(rows)},
        }
        for name, measure in measures(rows[0]).items()
    ]


def mix_rows(mixes: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row a stretch of an order: where it ends, and the asked share of each value, beside the achieved one. mixes: as
    `stages.measure.diversity_metrics` stores them."""
    achieved, begin, rows = mixes["achieved"], 0.0, []
    for end, asked in zip(mixes["ends"], mixes["asked"], strict=True):
        # The slices whose middles lie in the stretch.
        inside = [row for at, row in enumerate(achieved) if begin <= (at + 0.5) / len(achieved) < end]
        means = [sum(column) / len(inside) for column in zip(*inside, strict=True)] if inside else asked
        rows.append(
            {
                "up to": percent(end),
                **{
                    f"{clip(value) or '(empty)'}, %": f"{points(share)}, achieved {points(mean)}"
                    for value, share, mean in zip(mixes["values"], asked, means, strict=True)
                },
            }
        )
        begin = end
    return rows


class Beside(NamedTuple):
    """Stored figures of one measure, of an order and of shuffles; None if missing."""

    measure: Measure
    ours: float | None
    shuffled: float | None

    def data(self) -> dict[str, Any]:
        """Plain values in the measure's unit."""
        return {
            "measure": self.measure.name,
            "unit": self.measure.shown_unit,
            "better": self.measure.better,
            "this_order": self.measure.in_unit(self.ours),
            "shuffled": self.measure.in_unit(self.shuffled),
            "compared": self.measure.compared(self.ours, self.shuffled),
            "about": self.measure.meaning,
        }


def beside_shuffled(ours: Mapping[str, Any], shuffled: Mapping[str, Any]) -> list[Beside]:
    """Every measure of two rows of the summary."""
    return [Beside(measure, ours[name], shuffled[name]) for name, measure in measures(ours).items()]


def table_rows(rows: Sequence[Beside]) -> list[dict[str, str]]:
    """Rows of a table; of those that differ only in their trait, the first says what they measure."""
    first = {row.measure.meaning: row for row in reversed(rows)}
    return [
        {
            "measure": measure.label + (f": {measure.meaning}" if row is first[measure.meaning] else ""),
            "this order": measure.show(row.ours),
            "shuffled": measure.show(row.shuffled),
            "compared": measure.compared(row.ours, row.shuffled),
        }
        for row in rows
        for measure in [row.measure]
    ]


def in_short(rows: Sequence[Beside]) -> list[Beside]:
    """The rows that a summary shows without --details: what is known, and of worst shares only the first trait's."""
    shares = [row for row in rows if row.measure.path[:2] == ("windows", "batch")]
    left_out = [row for row in rows if row.ours is None or row.measure.name in IN_FULL_ONLY] + shares[1:]
    return [row for row in rows if row not in left_out]
