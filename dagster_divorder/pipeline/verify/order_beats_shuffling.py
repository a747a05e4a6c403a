"""order_beats_shuffling: the sequences in their order, as a trainer consumes them, against shuffled ones (mean of three
seeds), and beside them the curated documents. The output is whole and can be trained on, whatever this says."""

from __future__ import annotations

from dagster_divorder.pipeline.diversity_metrics import remedy, verdicts
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.verify import Finding


def look(run: Run) -> Finding:
    found = verdicts(run.settings)
    said = "\n".join(f"- {line}" for line in run.receipt("diversity_metrics").report["findings"])
    return Finding(
        passed=found["sequences"].passed,
        text=f"{found['sequences'].text()}\n\nThe curated documents alone. {found['curated'].text()}\n\n{said}",
        remedy=remedy(run.settings),
        figures={
            name: [vars(comparison) for comparison in verdict.comparisons] for name, verdict in found.items()
        },
    )
