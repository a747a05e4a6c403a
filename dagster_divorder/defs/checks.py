"""Asset checks: what a stage claims of its result, held against it in the step that made it.

A blocking check that fails ends the run: what follows is not made from a broken result. The others warn. Steps
of their own would add their events to every run, and take and read the store once for each.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_divorder.defs.metadata import table
from dagster_divorder.pipeline.checks import run_checks
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.stage import Stage
from dagster_divorder.settings import Settings


def check_specs(stage: Stage) -> list[dg.AssetCheckSpec]:
    """An asset check for every check of a stage."""
    return [
        dg.AssetCheckSpec(
            check.name, asset=stage.name, description=check.description, blocking=check.blocking
        )
        for check in stage.checks
    ]


def check_results(stage: Stage, settings: Settings, graph: Graph) -> list[dg.AssetCheckResult]:
    """What the checks of a stage find in its last result."""
    blocking = {check.name: check.blocking for check in stage.checks}
    return [
        dg.AssetCheckResult(
            check_name=name,
            passed=found.passed,
            severity=dg.AssetCheckSeverity.ERROR if blocking[name] else dg.AssetCheckSeverity.WARN,
            description=found.text if found.passed else f"{found.text}\n\nWhat to do: {found.remedy}.",
            metadata={figure.replace("_", " "): _shown(value) for figure, value in found.figures.items()},
        )
        for name, found in run_checks(graph, settings, stage.name).items()
    ]


def _shown(value: Any) -> Any:
    return table(value) if isinstance(value, list) else value
