"""Asset checks: a stage's claims about its result, checked in the step that makes it.

A blocking check that fails ends the run, so that nothing is made from a broken result. Other checks only warn. Checks
in separate steps would add events to every run, and each would take the lease and read the store.
"""

from __future__ import annotations

import dagster as dg

from dagster_divorder.defs.metadata import table
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.pipeline.checks import run_checks
from dagster_divorder.pipeline.stage import Stage
from dagster_divorder.settings import Settings


def check_specs(pipeline: Pipeline, stage: Stage) -> list[dg.AssetCheckSpec]:
    """The asset checks of a stage under these settings."""
    return [
        dg.AssetCheckSpec(
            check.name,
            asset=pipeline.key(stage.name),
            description=check.description,
            blocking=check.blocking,
        )
        for check in stage.checks
        if check.when(pipeline.settings)
    ]


def check_results(pipeline: Pipeline, stage: Stage, settings: Settings) -> list[dg.AssetCheckResult]:
    """The results of a stage's checks of its last result."""
    blocking = {check.name: check.blocking for check in stage.checks}
    return [
        dg.AssetCheckResult(
            check_name=name,
            asset_key=pipeline.key(stage.name),
            passed=finding.passed,
            severity=dg.AssetCheckSeverity.ERROR if blocking[name] else dg.AssetCheckSeverity.WARN,
            description=finding.text
            if finding.passed
            else f"{finding.text}\n\nWhat to do: {finding.remedy}.",
            metadata={
                figure.replace("_", " "): table(value) if isinstance(value, list) else value
                for figure, value in finding.figures.items()
            },
        )
        for name, finding in run_checks(pipeline.graph, settings, stage.name).items()
    ]
