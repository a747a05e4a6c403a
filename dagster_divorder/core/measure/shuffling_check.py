"""Compares the windows of an order with the mean of several shuffles, size by size.

The rule, for each trait: in windows of a sequence the mean deviation is at most TOLERANCE times that of the shuffles;
in larger windows mean and worst are both smaller, or both 0; across the seam between epochs neither is larger. A window
size is left out if the tokens hold fewer than FITS of them, and fewer than `units.BATCHES` batches are not compared.
Known weaknesses: those of `core.measure.window_deviation`; three shuffles differ from each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dagster_divorder.core.measure.seam import Seam
from dagster_divorder.core.measure.window_deviation import WindowDeviation
from dagster_divorder.units import BATCHES

TOLERANCE = 1.01
FITS = 4
GOOD_ENOUGH = 0.01
"""Deviation, one percentage point, up to which shuffling is good enough for windows of a size."""

SEAM = "batch across the seam"
"""Name of the windows across the seam between epochs."""

Windows = Mapping[str, Mapping[str, WindowDeviation]]
Seams = Mapping[str, Seam]


@dataclass(frozen=True, kw_only=True)
class WindowComparison:
    """One trait in windows of one size: max_j |p_j(window) - p_j|, mean and worst over every position, of the order and
    of the shuffles. passed: by the rule."""

    window: str
    trait: str
    mean: float
    shuffled_mean: float
    worst: float
    shuffled_worst: float
    passed: bool


@dataclass(frozen=True)
class ShufflingCheck:
    """comparisons: of all traits and windows. skipped: omitted windows, with the reason. good_enough: windows larger
    than a sequence in which shuffling keeps every trait within GOOD_ENOUGH."""

    comparisons: tuple[WindowComparison, ...]
    skipped: tuple[str, ...]
    good_enough: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(comparison.passed for comparison in self.comparisons)

    @property
    def traits(self) -> list[str]:
        """Compared traits."""
        return list(dict.fromkeys(c.trait for c in self.comparisons))

    def rows(self) -> list[dict[str, Any]]:
        """A row a comparison: deviations of the order and of shuffling, in per cent of the tokens."""
        return [
            {
                "window": c.window,
                "trait": c.trait,
                "mean, %": f"{100 * c.mean:.2f}, shuffled {100 * c.shuffled_mean:.2f}",
                "worst, %": f"{100 * c.worst:.2f}, shuffled {100 * c.shuffled_worst:.2f}",
                "better": "yes" if c.passed else "no",
            }
            for c in self.comparisons
        ]

    def text(self) -> str:
        """The result in Markdown: the comparisons, what was omitted, and whether shuffling is good enough."""
        failed = [f"{c.trait} in any {c.window}" for c in self.comparisons if not c.passed]
        if failed:
            head = f"Not better than shuffling: {', '.join(failed)}."
        elif self.comparisons:
            head = "Better than shuffling."
        else:
            head = "Nothing was compared."
        lines = [
            f"- any {window}: "
            + "; ".join(
                f"{c.trait} mean {_times(c.mean, c.shuffled_mean)}, worst {_times(c.worst, c.shuffled_worst)}"
                for c in self.comparisons
                if c.window == window
            )
            for window in dict.fromkeys(c.window for c in self.comparisons)
        ]
        if lines:
            head += (
                " How far the share of a trait's value strays from the corpus's, as a multiple of shuffling's (below 1 "
                "is better than shuffled, 0.5 is half as far):\n"
            )
        lines += [f"- not compared: {reason}" for reason in self.skipped]
        lines += [
            f"- shuffling is already good enough for any {window}: its worst window strays by at most "
            f"{100 * GOOD_ENOUGH:g} percentage point"
            for window in self.good_enough
        ]
        return "\n".join([head, *lines])


def beats_shuffling(
    ours: Windows,
    shuffled: Windows,
    traits: Iterable[str],
    tokens: int,
    *,
    batches: int,
    seams: tuple[Seams, Seams] | None = None,
) -> ShufflingCheck:
    """Compares windows by name for the balanced traits.

    ours, shuffled: window -> trait -> deviation, the window of a sequence first; `shuffled` is the mean over several
    shuffles. tokens, batches: of an epoch. seams: trait -> (ours, shuffled) across the seam.
    """
    if batches < BATCHES:
        return ShufflingCheck((), (f"{batches:,} batches are fewer than {BATCHES}",), ())
    comparisons, skipped, good_enough = [], [], []
    balanced = list(traits)
    sizes = {name: next(iter(by_trait.values())).window_tokens for name, by_trait in ours.items() if by_trait}
    smallest = min(sizes.values(), default=0)
    compared: dict[
        str, tuple[Mapping[str, WindowDeviation | Seam], Mapping[str, WindowDeviation | Seam], int]
    ]
    compared = {name: (ours[name], shuffled[name], size) for name, size in sizes.items()}
    if seams and seams[0]:
        compared[SEAM] = (*seams, next(iter(seams[0].values())).window_tokens)
    for window, (mine, others, size) in compared.items():
        if tokens < FITS * size:
            skipped.append(f"{window}, since {size:,} tokens do not fit {FITS} times into {tokens:,}")
            continue
        in_window = [
            WindowComparison(
                window=window,
                trait=trait,
                mean=mine[trait].mean,
                shuffled_mean=others[trait].mean,
                worst=mine[trait].worst,
                shuffled_worst=others[trait].worst,
                passed=_passes(mine[trait], others[trait], size == smallest, window == SEAM),
            )
            for trait in balanced
        ]
        comparisons += in_window
        larger = size != smallest and window != SEAM
        if larger and in_window and max(comparison.shuffled_worst for comparison in in_window) <= GOOD_ENOUGH:
            good_enough.append(window)
    return ShufflingCheck(tuple(comparisons), tuple(skipped), tuple(good_enough))


def _passes(
    ours: WindowDeviation | Seam, shuffled: WindowDeviation | Seam, smallest: bool, seam: bool
) -> bool:
    pairs = ((ours.mean, shuffled.mean), (ours.worst, shuffled.worst))
    if seam:
        return all(one <= other for one, other in pairs)
    if smallest:
        return ours.mean <= TOLERANCE * shuffled.mean
    return all(one < other or one == other == 0 for one, other in pairs)


def _times(ours: float, other: float) -> str:
    if other == 0:
        return "0 (both)" if ours == 0 else f"{ours:.3g} (shuffling: 0)"
    return f"{ours / other:.3g}"
