"""Runs the checks that stages declare (`Stage.checks`). A finding says what to do. Nothing is stored.

Cost: `every_record_in_output` reads the output, in about the time of writing it; the others take about as long as a
sort.
"""

from __future__ import annotations

from collections.abc import Iterator

from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DamagedFileError
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, Stage
from dagster_divorder.settings import Settings
from dagster_divorder.store.connect import store_of


def all_checks(graph: Graph, settings: Settings) -> Iterator[tuple[Stage, Check]]:
    """All checks under these settings with their stages, in the order of the stages."""
    for stage in graph.values():
        for check in stage.checks:
            if check.when(settings):
                yield stage, check


def run_checks(graph: Graph, settings: Settings, stage: str | None = None) -> dict[str, Finding]:
    """Run all checks, or only those of a stage, on the last run's results. Holds the store's lock meanwhile.

    Raises:
        MissingStageError: there is no result under these settings.
        StoreError: the store cannot be read.
    """
    checks = [
        (claimer, check) for claimer, check in all_checks(graph, settings) if stage in (None, claimer.name)
    ]
    if not checks:
        return {}
    store = store_of(settings.store)
    with store.lock():
        run = Run(settings, store.open(), graph, Silent())
        return {check.name: _finding(run, check) for _, check in checks}


def _finding(run: Run, check: Check) -> Finding:
    try:
        return check.check(run)
    except DamagedFileError as error:
        return Finding(passed=False, text=str(error), remedy="delete this file and run again")
