"""Asset checks: what the results promise (`pipeline.verify`), held against each of them as soon as it is made.

A check of an essential promise blocks: what follows is not made from a broken result, and the run fails. The others
warn.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import table
from dagster_divorder.pipeline.verify import PROMISES, verify
from dagster_divorder.settings import Settings


def check(name: str) -> dg.AssetChecksDefinition:
    """The asset check of a promise."""
    promise = PROMISES[name]

    @dg.asset_check(
        asset=promise.stage, name=name, description=promise.description, blocking=promise.essential
    )
    def evaluate(settings: dg.ResourceParam[Settings]) -> dg.AssetCheckResult:
        found = verify(settings, name)
        return dg.AssetCheckResult(
            passed=found.passed,
            severity=dg.AssetCheckSeverity.ERROR if promise.essential else dg.AssetCheckSeverity.WARN,
            description=found.text if found.passed else f"{found.text}\n\nWhat to do: {found.remedy}.",
            metadata={figure: _shown(value) for figure, value in found.figures.items()},
        )

    return evaluate


def _shown(value: Any) -> Any:
    return table(value) if isinstance(value, list) else value


CHECKS = [check(name) for name in PROMISES]
