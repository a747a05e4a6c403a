"""One factory over the stages. A Dagster asset runs its stage, logs progress, and shows the result."""

import functools
from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import CODE_VERSION_TAG

from dagster_divorder.defs.automation import condition
from dagster_divorder.defs.checks import check_results, check_specs
from dagster_divorder.defs.downstream import RESULTS_IO, results_io
from dagster_divorder.defs.jobs import STORE, store_names
from dagster_divorder.defs.metadata import asset_metadata
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.defs.settings import SETTINGS_RESOURCE, refuse_partial_run, settings_resource
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
    """An asset for every stage of these settings that has one."""
    resources = {
        pipeline.named(SETTINGS_RESOURCE): settings_resource(pipeline),
        pipeline.named(RESULTS_IO): results_io(pipeline),
    }
    reads = pipeline.graph.asset_upstream(pipeline.settings)
    return [_asset(pipeline, resources, name, before) for name, before in reads.items()]


def _asset(
    pipeline: Pipeline, resources: Mapping[str, dg.ResourceDefinition], name: str, reads: tuple[str, ...]
) -> dg.AssetsDefinition:
    graph, settings = pipeline.graph, pipeline.settings
    stage, needed = graph[name], graph.needed(settings)
    group = stage.group
    if group == "evidence" and name in needed:
        group = "embedding"
    elif group in ("embedding", "ordering") and name not in needed:
        # Its edges would cross those of what the output is made from.
        group = "evidence"
    resource_key = pipeline.named(SETTINGS_RESOURCE)

    @dg.asset(
        key=pipeline.key(name),
        deps=[*map(pipeline.key, reads), *pipeline.upstream.get(name, ())],
        code_version=pipeline.code_version(name),
        description=stage.description_under(settings),
        group_name=pipeline.group_name or pipeline.named(group),
        kinds=set(stage.kinds_under(settings)),
        tags=pipeline.tags,
        owners=pipeline.owners,
        check_specs=check_specs(pipeline, stage),
        automation_condition=condition(pipeline, name),
        resource_defs=resources,
        required_resource_keys={resource_key},
        io_manager_key=pipeline.named(RESULTS_IO),
        # Steps run one after another: evidence waits for the output.
        op_tags={"dagster/priority": "0" if name in needed else "-1"},
    )
    def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        # Dagster knows the result of an asset with checks by the bare name alone.
        return _materialize(context, getattr(context.resources, resource_key), stage, pipeline)

    return asset


def _materialize(
    context: dg.AssetExecutionContext, settings: Settings, stage: Stage, pipeline: Pipeline
) -> dg.MaterializeResult[Any]:
    """Run the stage; say whether its result has changed, where it lies, and what a person sees of it."""
    graph = pipeline.graph
    refuse_partial_run(context, pipeline, settings, stage.name)
    resend_interrupts()
    store = store_of(settings.store)
    before = _version(store, stage.name)
    # The sensor knows its own runs by the store, whoever started them.
    _tag(context.instance, context.run.run_id, store_names(store)[0])
    parts = graph.step(settings, stage.name)
    receipt = run_graph(graph, settings, Log(context.log.info), parts)[stage.name]
    figures = receipt.figures
    changed = receipt.version != before
    context.log.info(
        f"{stage.name}: {figures['documents']:,} documents, {figures['new_documents']:,} new, "
        f"{figures['reused_documents']:,} reused, {duration(figures['seconds'])}"
        f"{'' if changed else '; the same result as before'}"
    )
    # Dagster itself tags with the code version of the definition, under the settings that all runs share.
    own = settings != pipeline.settings
    tags = {CODE_VERSION_TAG: pipeline.code_version(stage.name, settings)} if own else None
    return dg.MaterializeResult(
        metadata=asset_metadata(Run(settings, store, graph), receipt, changed),
        data_version=dg.DataVersion(receipt.version),
        tags=tags,
        check_results=check_results(pipeline, stage, settings),
    )


@functools.lru_cache(maxsize=1)
def _tag(instance: dg.DagsterInstance, run: str, store: str) -> None:
    """Tag a run with its store. Once a run: that costs as much as a stage with nothing to do."""
    instance.add_run_tags(run, {STORE: store})


def _version(store: Store, stage: str) -> str | None:
    try:
        receipt = load_receipt(store, stage)
    except DivOrderError:
        return None
    return receipt.version if receipt else None
