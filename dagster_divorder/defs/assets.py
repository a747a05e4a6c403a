"""Makes a Dagster asset for each stage. The asset runs its stage, logs progress, and shows the result."""

import functools
from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import CODE_VERSION_TAG

from dagster_divorder.defs.automation import condition
from dagster_divorder.defs.checks import check_results, check_specs
from dagster_divorder.defs.downstream import RESULTS_IO, results_io
from dagster_divorder.defs.jobs import store_names, store_tag
from dagster_divorder.defs.metadata import asset_metadata
from dagster_divorder.defs.neighbours import corpus_metadata, refuse_conflicts_in_run
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.defs.settings import (
    SETTINGS_RESOURCE,
    for_this_run_alone,
    refuse_partial_run,
    settings_resource,
)
from dagster_divorder.defs.turns import turn
from dagster_divorder.engine.interrupts import resend_interrupts
from dagster_divorder.engine.progress import Log
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.run import Run, run_graph
from dagster_divorder.pipeline.stage import Stage
from dagster_divorder.settings import Settings
from dagster_divorder.store.base import Store
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.state import load_receipt
from dagster_divorder.units import duration


def assets(pipeline: Pipeline) -> list[dg.AssetsDefinition]:
    """The assets of all stages that have one under these settings."""
    resources = {
        pipeline.named(SETTINGS_RESOURCE): settings_resource(pipeline),
        pipeline.named(RESULTS_IO): results_io(pipeline),
    }
    return [_asset(pipeline, resources, name) for name in pipeline.specs]


def _asset(
    pipeline: Pipeline, resources: Mapping[str, dg.ResourceDefinition], name: str
) -> dg.AssetsDefinition:
    stage, spec = pipeline.graph[name], pipeline.specs[name]
    resource_key = pipeline.named(SETTINGS_RESOURCE)

    @dg.asset(
        key=spec.key,
        deps=spec.deps,
        code_version=spec.code_version,
        description=spec.description,
        group_name=spec.group_name,
        tags=spec.tags,
        owners=spec.owners,
        metadata={**spec.metadata, **corpus_metadata(pipeline)},
        freshness_policy=spec.freshness_policy,
        check_specs=check_specs(pipeline, stage),
        automation_condition=spec.automation_condition or condition(pipeline, name),
        resource_defs=resources,
        required_resource_keys={resource_key},
        io_manager_key=pipeline.named(RESULTS_IO),
        # Steps run one after another; evidence comes after the output.
        op_tags={"dagster/priority": "0" if name in pipeline.needed else "-1"},
    )
    def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        # Dagster accepts the result of an asset with checks only under the annotation's bare name.
        return _materialize(context, getattr(context.resources, resource_key), stage, pipeline)

    return asset


def _materialize(
    context: dg.AssetExecutionContext, settings: Settings, stage: Stage, pipeline: Pipeline
) -> dg.MaterializeResult[Any]:
    """Run the stage. Reports whether its result has changed, where it lies, and what people see of it."""
    graph = pipeline.graph
    refuse_conflicts_in_run(context, pipeline)
    refuse_partial_run(context, pipeline, settings, stage.name)
    resend_interrupts()
    store = store_of(settings.store)
    before = _version(store, stage.name)
    # The sensor finds the runs on its store by this tag, whoever started them.
    _tag(context.instance, context.run.run_id, store_tag(pipeline), store_names(store)[0])
    parts = graph.step(settings, stage.name)
    with turn(context.run.run_id, store.real_place, stage.name, context.log.info):
        receipt = run_graph(graph, settings, Log(context.log.info), parts)[stage.name]
    figures = receipt.figures
    changed = receipt.version != before
    context.log.info(
        f"{stage.name}: {figures['documents']:,} documents, {figures['new_documents']:,} new, "
        f"{figures['reused_documents']:,} reused, {duration(figures['seconds'])}"
        f"{'' if changed else '; the same result as before'}"
    )
    metadata, tags = asset_metadata(Run(settings, store, graph), receipt, changed), None
    if settings != pipeline.settings:
        metadata["for_this_run_alone"] = for_this_run_alone(settings, pipeline.settings)
        # Dagster's own tag has the code version of the definition, which does not know this run's settings.
        tags = {CODE_VERSION_TAG: pipeline.code_version(stage.name, settings)}
    return dg.MaterializeResult(
        metadata=metadata,
        data_version=dg.DataVersion(receipt.version),
        tags=tags,
        check_results=check_results(pipeline, stage, settings),
    )


@functools.lru_cache(maxsize=16)
def _tag(instance: dg.DagsterInstance, run: str, tag: str, store: str) -> None:
    """Tag a run with its store. Cached, because tagging costs as much as a stage with nothing to do."""
    instance.add_run_tags(run, {tag: store})


def _version(store: Store, stage: str) -> str | None:
    try:
        receipt = load_receipt(store, stage)
    except DivOrderError:
        return None
    return receipt.version if receipt else None
