"""Asset checks: what the results promise, and whether they keep it."""

import dagster as dg

from dagster_divorder.defs.stage import table
from dagster_divorder.settings import Settings


@dg.asset_check(
    asset="diversity_metrics", description="Windows of training keep the mix better than by shuffling."
)
def order_beats_shuffling(settings: dg.ResourceParam[Settings]) -> dg.AssetCheckResult:
    """The sequences in their order, as a trainer consumes them, against shuffled ones (mean of three seeds), and beside
    them the curated documents. A warning: the output is whole and can be trained on, whatever this says."""
    from dagster_divorder.pipeline.diversity_metrics import remedy, verdicts

    found = verdicts(settings)
    passed = found["sequences"].passed
    text = f"{found['sequences'].text()}\n\nThe curated documents alone. {found['curated'].text()}"
    return dg.AssetCheckResult(
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=text if passed else f"{text}\n\nWhat to do: {remedy(settings)}.",
        metadata={
            name: table([vars(comparison) for comparison in verdict.comparisons])
            for name, verdict in found.items()
        },
    )
