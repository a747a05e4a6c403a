"""Whether an order keeps every window of training closer to the asked mix than shuffling does.

Rule. In windows of a sequence, which hold few documents, the order passes if its mean share error is at most TOLERANCE
times shuffling's. In larger windows and across the seam between epochs, both its mean and its worst are below
shuffling's, or all are 0; across the seam, equal ones pass too.
Windows are compared if an epoch holds FITS of them, and fewer than `units.BATCHES` batches are not compared.
Known weakness: three shuffles differ from each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_divorder.core.measure.order import LARGEST, WINDOWS
from dagster_divorder.units import BATCHES

TOLERANCE = 1.01
FITS = 4
GOOD_ENOUGH = 0.01
"""Share error, one percentage point, up to which shuffling is good enough for windows of a size."""

SEAM = "batch across the seam"
"""Name of the windows across the seam between epochs."""

Figures = Mapping[str, Any]
"""Of an order, as in `core.measure.order.Measures`."""


@dataclass(frozen=True, kw_only=True)
class WindowComparison:
    """The largest share error of one trait in windows of one size, mean and worst, of the order and of the shuffles.
    passed: by the rule."""

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
    def failed(self) -> dict[str, list[str]]:
        """Windows in which the order does not pass, by trait."""
        failed: dict[str, list[str]] = {}
        for comparison in self.comparisons:
            if not comparison.passed:
                failed.setdefault(comparison.trait, []).append(comparison.window)
        return failed

    @property
    def notes(self) -> list[str]:
        """Sentences on what was not compared, and where shuffling is good enough."""
        return [
            *(f"Not compared: {reason}." for reason in self.skipped),
            *(
                f"Shuffling is already good enough for any {window}: its worst share error is at most "
                f"{100 * GOOD_ENOUGH:g} point."
                for window in self.good_enough
            ),
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row a comparison: share errors of the order and of shuffling, in percentage points."""
        return [
            {
                "window": c.window,
                "trait": c.trait,
                "mean share error, points": f"{100 * c.mean:.2f}, shuffled {100 * c.shuffled_mean:.2f}",
                "worst share error, points": f"{100 * c.worst:.2f}, shuffled {100 * c.shuffled_worst:.2f}",
                "better": "yes" if c.passed else "no",
            }
            for c in self.comparisons
        ]


def beats_shuffling(
    ours: Figures, shuffled: Figures, traits: Sequence[str], *, seam: bool = True
) -> ShufflingCheck:
    """Compares the windows of the balanced traits. shuffled: the mean over several shuffles. seam: compare batches
    across the seam too."""
    if ours["batches"] < BATCHES:
        return ShufflingCheck((), (f"{ours['batches']:,} batches are fewer than {BATCHES}",), ())
    compared = {window: (ours["windows"][window], shuffled["windows"][window]) for window in WINDOWS}
    if seam:
        compared[SEAM] = ours["seam"], shuffled["seam"]
    batch = ours["batch"]
    sizes = dict(zip((*WINDOWS, SEAM), (1, batch, LARGEST * batch, batch), strict=True))
    comparisons: list[WindowComparison] = []
    skipped, good_enough = [], []
    for window, (mine, others) in compared.items():
        if ours["sequences"] < FITS * sizes[window]:
            reason = f"{sizes[window]:,} sequences do not fit {FITS} times into {ours['sequences']:,}"
            skipped.append(f"{window}, since {reason}")
            continue
        in_window = [
            WindowComparison(
                window=window,
                trait=trait,
                **mine[trait],
                **{f"shuffled_{name}": value for name, value in others[trait].items()},
                passed=_passes(mine[trait], others[trait], window),
            )
            for trait in traits
        ]
        comparisons += in_window
        larger = window not in (WINDOWS[0], SEAM)
        if larger and in_window and max(comparison.shuffled_worst for comparison in in_window) <= GOOD_ENOUGH:
            good_enough.append(window)
    return ShufflingCheck(tuple(comparisons), tuple(skipped), tuple(good_enough))


def _passes(ours: Figures, shuffled: Figures, window: str) -> bool:
    pairs = [(ours[name], shuffled[name]) for name in ("mean", "worst")]
    if window == SEAM:
        return all(one <= other for one, other in pairs)
    if window == WINDOWS[0]:
        return bool(ours["mean"] <= TOLERANCE * shuffled["mean"])
    return all(one < other or one == other == 0 for one, other in pairs)


def findings(ours: Figures, shuffled: Figures, traits: Iterable[str]) -> list[str]:
    """Sentences on the sequences in order that a summary adds: the errors of each trait along training, the seam,
    the distance from a schedule. ours: also with `trait_errors`, `off_schedule`
    (`stages.measure.diversity_metrics.load_metrics`)."""
    sentences, across = [], []
    for trait in traits:
        steps, batches = (ours["trait_errors"][trait][name] for name in ("cumulative", "batch"))
        closer = [
            f"{'all' if one['always'] else format(one['better'], '.1%') + ' of'} {one['steps']:,} {unit}"
            for one, unit in ((steps, "steps"), (batches, "batches"))
            if one["steps"]
        ]
        if closer:
            told = f"{trait}: nearer to the mix than the best of three shuffles at {' and '.join(closer)}"
            if batches["steps"]:
                told += (
                    f"; the worst batch is {batches['worst']:,.0f} tokens from it, the best shuffled batch "
                    f"{batches['shuffled_least']:,.0f}"
                )
            sentences.append(told)
        if ours["sequences"] > ours["batch"]:
            pair = [f"{100 * order['seam'][trait]['worst']:.2f}" for order in (ours, shuffled)]
            across.append(f"{SEAM}, share error of {trait}, worst: {pair[0]} points, {pair[1]} shuffled")
    sentences += across
    if off := ours.get("off_schedule"):
        sentences.append(
            f"the mean rank of a batch is {off['achieved']:.3f} from the schedule, {off['shuffled']:.3f} shuffled"
        )
    return sentences
