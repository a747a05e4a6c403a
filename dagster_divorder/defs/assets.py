"""Makes a Dagster asset for each stage: it runs the stage with its parts, logs progress, and shows the result and the
results of its checks.

Checks run in the step that makes their asset. A blocking check that fails ends the run, so that nothing is made from a
broken result; others only warn.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import dagster as dg

from dagster_divorder.defs.metadata import result_metadata
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.engine.progress import Log
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.run import Run, run_checks, run_graph
from dagster_divorder.pipeline.stage import Stage
from dagster_divorder.store.objects import store_at


def assets(pipeline: Pipeline) -> list[dg.AssetsDefinition]:
    """The assets of all stages that have one under these settings."""
    return [_asset(pipeline, pipeline.graph[name]) for name in pipeline.specs]


def _asset(pipeline: Pipeline, stage: Stage) -> dg.AssetsDefinition:
    key = pipeline.key(stage.name)

    @dg.multi_asset(
        name=key.to_python_identifier(),
        specs=[pipeline.specs[stage.name]],
        check_specs=[
            dg.AssetCheckSpec(check.name, asset=key, description=check.description, blocking=check.blocking)
            for check in stage.checks
        ],
        pool=pipeline.named("divorder"),
        # Steps run one after another; evidence comes after the output.
        op_tags={"dagster/priority": "0" if stage.name in pipeline.needed else "-1"},
    )
    def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        try:
            with _cancelled_for_certain():
                return _materialize(context, pipeline, stage)
        except DivOrderError as error:
            # The page of the run begins with this sentence.
            raise dg.Failure(str(error), allow_retries=False) from error

    return asset


@contextlib.contextmanager
def _cancelled_for_certain() -> Iterator[None]:
    """Ends with DagsterExecutionInterruptedError if the run was cancelled meanwhile.

    Dagster cancels by a signal whose handler raises. Raised in a callback of the garbage collector, of which SQLAlchemy
    has many, the error is printed and lost, and the run would end as if nobody had cancelled it.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one has handlers
        yield
        return
    cancelled = threading.Event()

    def cancel(*_: object) -> None:
        cancelled.set()
        raise dg.DagsterExecutionInterruptedError

    handlers = {number: signal.signal(number, cancel) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if cancelled.is_set():
        raise dg.DagsterExecutionInterruptedError


def _materialize(
    context: dg.AssetExecutionContext, pipeline: Pipeline, stage: Stage
) -> dg.MaterializeResult[Any]:
    """Run the stage. Reports what people see of its result."""
    graph, settings, key = pipeline.graph, pipeline.settings, pipeline.key(stage.name)
    receipt = run_graph(graph, settings, Log(context.log.info), graph.step(settings, stage.name))[stage.name]
    shown, figures = stage.show(Run(settings, store_at(settings.store.path), graph), receipt), receipt.figures
    context.log.info(f"{stage.name}: {figures['documents']:,} documents, {figures['new_documents']:,} new")
    blocking = {check.name: check.blocking for check in stage.checks}
    return dg.MaterializeResult(
        asset_key=key,
        metadata=result_metadata(shown, figures),
        data_version=dg.DataVersion(receipt.version),
        check_results=[
            dg.AssetCheckResult(
                check_name=name,
                asset_key=key,
                passed=found.passed,
                severity=dg.AssetCheckSeverity.ERROR if blocking[name] else dg.AssetCheckSeverity.WARN,
                description=found.text if found.passed else f"{found.text}\n\nWhat to do: {found.remedy}.",
            )
            for name, found in run_checks(graph, pipeline.settings, stage.name).items()
        ],
    )
