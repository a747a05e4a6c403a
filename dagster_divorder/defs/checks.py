"""Asset checks: what stages claim of their results, held against each of them as soon as it is made.

A blocking check that fails ends the run: what follows is not made from a broken result. The others warn.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_divorder.defs.metadata import table
from dagster_divorder.pipeline.checks import all_checks, run_check
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.stage import Check
from dagster_divorder.settings import Settings


def checks(graph: Graph, settings: Settings) -> list[dg.AssetChecksDefinition]:
    """An asset check for every check of the stages that these settings have."""
    there = graph.upstream(settings)
    return [_check(graph, stage.name, check) for stage, check in all_checks(graph) if stage.name in there]


def _check(graph: Graph, stage: str, check: Check) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=stage, name=check.name, description=check.description, blocking=check.blocking)
    def evaluate(settings: dg.ResourceParam[Settings]) -> dg.AssetCheckResult:
        found = run_check(settings, check.name, graph)
        return dg.AssetCheckResult(
            passed=found.passed,
            severity=dg.AssetCheckSeverity.ERROR if check.blocking else dg.AssetCheckSeverity.WARN,
            description=found.text if found.passed else f"{found.text}\n\nWhat to do: {found.remedy}.",
            metadata={figure.replace("_", " "): _shown(value) for figure, value in found.figures.items()},
        )

    return evaluate


def _shown(value: Any) -> Any:
    return table(value) if isinstance(value, list) else value
