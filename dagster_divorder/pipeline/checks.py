"""Testing what stages claim of their results (`Stage.checks`). A finding says what to do. Nothing is stored; only
damaged files are removed, so that their stages make them again.

Cost: `every_record_in_output` reads the output, which takes about as long as writing it; the others take a sort.
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
    """Every check of these settings with its stage, in the order of the stages."""
    for stage in graph.values():
        for check in stage.checks:
            if check.when(settings):
                yield stage, check


def run_checks(graph: Graph, settings: Settings, stage: str | None = None) -> dict[str, Finding]:
    """Run every check, or those of a stage, on the last run's results, alone on the store meanwhile.

    Raises:
        MissingStageError: there is no result under these settings.
        StoreError: the store cannot be read, or is in use where `store.wait` is false.
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
        # The stage itself would not notice the damage, since no stage reads its own result.
        maker = discard(run.store, error.name, run.graph) or stage.name
        run.forget()
        return Finding(
            passed=False,
            text=str(error),
            remedy=f"materialise {maker} again: a damaged file is made anew by the stage that made it",
        )
