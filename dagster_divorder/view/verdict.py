"""Whether an order beats shuffling, in two sentences, the same on a terminal, in the report and in Dagster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagster_divorder.core.measure import ShufflingCheck
from dagster_divorder.units import BATCHES, batch_advice
from dagster_divorder.view.words import count, listed, points

SHOWN = ("sequences", "sequences_random", "original")
"""Orders whose figures the sentences quote."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the packed sequences beat shuffling, by the `check`.

    metrics: by order, see `stages.measure.diversity_metrics.load_metrics`. traits: those that people see, in order.
    remedy: what to change if the order fails.
    """

    check: ShufflingCheck
    metrics: dict[str, dict[str, Any]]
    traits: Sequence[str]
    remedy: str

    @property
    def compared(self) -> bool:
        """Whether there is anything to tell: enough batches, and a trait whose values differ."""
        return bool(self.check.comparisons)

    @property
    def stretches(self) -> int:
        """The number of stretches of the order, each with a mix of its own."""
        mixes = self.metrics["sequences"].get("mixes")
        return len(mixes["ends"]) if mixes else 1

    @property
    def passed(self) -> bool:
        return self.compared and self.check.passed

    @property
    def sentences(self) -> tuple[str, str]:
        """The claim, and its figure (or the remedy)."""
        check, metrics = self.check, self.metrics
        ours = metrics["sequences"]
        sequences, batch = ours["sequences"], ours["batch"]
        if (whole := ours["batches"]) < BATCHES:
            batches = "1 batch" if whole == 1 else f"{whole} batches"
            return (
                "Too few batches to tell whether this order beats shuffling: "
                f"{count(sequences, 'sequence')} make {batches} of {batch:,}, and it takes {BATCHES}.",
                batch_advice(sequences),
            )
        if not self.compared:
            return (
                "Nothing to compare with shuffling: each trait of order.traits has one value in all documents.",
                "What to do: balance a trait whose values differ.",
            )
        if not check.passed:
            where = "; ".join(f"{trait}: {listed(windows)}" for trait, windows in check.failed.items())
            return (
                f"Shuffling keeps these windows nearer to the mix than this order: {where}.",
                f"What to do: {self.remedy}.",
            )
        several = self.stretches > 1
        claim = (
            f"This order keeps the windows of training at the mix of their stretch, in all {self.stretches}, better "
            "than shuffling inside it does."
            if several
            else "This order keeps the windows of training at the corpus's own mix better than shuffling does."
        )
        trait = check.comparisons[0].trait
        off, shuffled, before = (points(metrics[name]["windows"]["batch"][trait]["worst"]) for name in SHOWN)
        whose = "the stretch's" if several else "the corpus's"
        return claim, (
            f"Wherever a batch of {batch:,} sequences starts, the share of every value of {trait} is within {off} "
            f"percentage points of {whose}; shuffled: {shuffled}; in the original order: {before}."
        )
