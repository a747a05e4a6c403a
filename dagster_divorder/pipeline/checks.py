"""Runs the checks that stages declare (`Stage.checks`). A finding says what to do. Nothing is stored; only damaged
files are removed, so that their stages make them again.

Cost: `every_record_in_output` reads the output, in about the time of writing it; the others take about as long as a
sort.
"""

from __future__ import annotations

from collections.abc import Iterator

from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DamagedFileError
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.repair import discard
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
    """Run all checks, or only those of a stage, on the last run's results. Holds the store's lease meanwhile.

    Raises:
        MissingStageError: there is no result under these settings.
        StoreError: the store cannot be read, or is in use and `store.wait` is false.
    """
    checks = [
        (claimer, check) for claimer, check in all_checks(graph, settings) if stage in (None, claimer.name)
    ]
    if not checks:
        return {}
    store = store_of(settings.store)
    with store.lease(wait=settings.store.wait):
        run = Run(settings, store.open(), graph, Silent())
        return {check.name: _finding(run, claimer, check) for claimer, check in checks}


def _finding(run: Run, stage: Stage, check: Check) -> Finding:
    try:
        return check.check(run)
    except DamagedFileError as error:
        # No stage reads its own result, so the stage would not notice the damage.
        maker = discard(run.store, error.name, run.graph) or stage.name
        run.forget()
        return Finding(
            passed=False,
            text=str(error),
            remedy=f"materialise {maker} again, the stage that made the damaged file",
        )
