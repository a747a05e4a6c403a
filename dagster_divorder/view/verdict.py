"""Whether an order beats shuffling, in two sentences, the same on a terminal, in the report and in Dagster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dagster_divorder.core.measure import ShufflingCheck
from dagster_divorder.view.words import fixed, listed, points

SHOWN = ("sequences", "sequences_random", "original")
"""Orders whose figures the sentences quote."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether orders beat shuffling: `sequences` of the packed sequences, `documents` of the documents.

    metrics: by order, see `stages.measure.diversity_metrics.load_metrics`. remedy: what to change if the order fails.
    """

    sequences: ShufflingCheck
    documents: ShufflingCheck
    metrics: dict[str, dict[str, Any]]
    remedy: str

    @property
    def compared(self) -> bool:
        """Whether the corpus is large enough to tell."""
        return bool(self.sequences.comparisons)

    @property
    def stretches(self) -> int:
        """The number of stretches of the order, each with a mix of its own."""
        mixes = self.metrics["sequences"].get("mixes")
        return len(mixes["ends"]) if mixes else 1

    @property
    def passed(self) -> bool:
        return self.compared and self.sequences.passed

    @property
    def sentences(self) -> tuple[str, str]:
        """The claim, and its figure (or the remedy)."""
        check, metrics = self.sequences, self.metrics
        if not self.compared:
            return (
                "Whether this order beats shuffling is unknown: nothing could be compared "
                f"({'; '.join(check.skipped)}).",
                f"Its sequences hold {fixed(metrics['sequences']['split']['mean'])} distinct clusters on average, "
                f"against {fixed(metrics['sequences_random']['split']['mean'])} after shuffling.",
            )
        if not check.passed:
            failed = list(
                dict.fromkeys(f"{c.trait} in any {c.window}" for c in check.comparisons if not c.passed)
            )
            return f"This order does not beat shuffling in {listed(failed)}.", f"What to do: {self.remedy}."
        several = self.stretches > 1
        claim = (
            f"This order keeps the windows of training at the mix of their stretch, in all {self.stretches}, better "
            "than shuffling inside it does."
            if several
            else "This order keeps the windows of training at the corpus's own mix better than shuffling does."
        )
        trait = "cluster" if "cluster" in check.traits else check.traits[0]
        ours = metrics["sequences"]
        window, measure = (
            ("batch", "worst")
            if any(c.window == "batch" for c in check.comparisons)
            else ("sequence", "mean")
        )
        off, shuffled, before = (points(metrics[name]["windows"][window][trait][measure]) for name in SHOWN)
        others = f"against {shuffled} after shuffling and {before} in the original order"
        if window == "batch":
            whose = "the stretch's" if several else "the corpus's"
            return claim, (
                f"Wherever a batch of {ours['batch']:,} sequences starts, no {trait}'s share strays from {whose} by "
                f"more than {off} percentage points, {others}."
            )
        return claim, (
            f"In a sequence of {ours['sequence_length']:,} tokens the {trait} that strays most is {off} percentage "
            f"points off on average, {others}; there are too few batches to compare."
        )
