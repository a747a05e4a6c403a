"""Holding results against what their stages claim of them (`Stage.checks`). A finding says what to do; nothing is
stored, and only a damaged file is taken away, so that its stage makes it again.

Cost: of the order of writing the output for `every_record_in_output`, which reads it; of a sort for the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DamagedFileError
from dagster_divorder.pipeline.graph import Graph, default_graph
from dagster_divorder.pipeline.repair import discard
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, Stage
from dagster_divorder.settings import Settings
from dagster_divorder.store.connect import store_of


def all_checks(graph: Graph | None = None) -> Iterator[tuple[Stage, Check]]:
    """Every check with its stage, in the order of the stages."""
    for stage in (graph or default_graph()).values():
        for check in stage.checks:
            yield stage, check


def run_check(settings: Settings, name: str, graph: Graph | None = None) -> Finding:
    """Hold one check against the last run's results, alone on the store meanwhile.

    Raises:
        MissingStageError: there is no result under these settings.
        StoreError: the store cannot be read, or is in use where `store.wait` is false.
    """
    graph = graph or default_graph()
    stage, check = next(pair for pair in all_checks(graph) if pair[1].name == name)
    store = store_of(settings.store)
    with store.lease(wait=settings.store.wait):
        try:
            return check.check(Run(settings, store.open(), Silent(), graph))
        except DamagedFileError as error:
            # No stage reads its own result to see whether it is sound.
            maker = discard(store, error.name, graph) or stage.name
            return Finding(
                passed=False,
                text=str(error),
                remedy=f"materialise {maker} again: a damaged file is made anew by the stage that made it",
            )


def run_checks(settings: Settings, graph: Graph | None = None) -> dict[str, Finding]:
    """Every check; see `run_check`."""
    return {check.name: run_check(settings, check.name, graph) for _, check in all_checks(graph)}
