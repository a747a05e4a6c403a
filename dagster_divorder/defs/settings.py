"""Shows the settings of a pipeline on Dagster's pages; two of them can be changed for one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.errors import SettingsError
from dagster_divorder.pipeline.changes import differences
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import RULES

SETTINGS_RESOURCE = "divorder"
"""Key of the resource that gives assets their settings, before the prefix."""

REFIT = "Fits to learn again from the present corpus, such as [clusters]."

WEIGHTS = (
    "Other shares for values in mixing.weights, such as {books: 0.4}. The run must include every asset from repeats to "
    "the output and the exports, as the job curate does."
)

SETTINGS_NOTE = (
    "To change settings, edit this file (or environment variables DIVORDER_...) and reload definitions. The launchpad "
    f"takes two settings for a single run. refit: {REFIT} weights: {WEIGHTS} The next run uses the file again."
)

FIT = dg.Enum("Fit", [dg.EnumValue(name) for name in RULES])


def settings_resource(pipeline: Pipeline) -> dg.ResourceDefinition:
    """The settings for assets, with the changes that a run's configuration makes. The launchpad shows the
    description."""

    def settings_of_run(context: dg.InitResourceContext) -> Settings:
        given = context.resource_config
        return pipeline.settings.weighting(given["weights"]).refitting(*given["refit"])

    return dg.ResourceDefinition(
        settings_of_run,
        config_schema={
            "refit": dg.Field([FIT], default_value=[], is_required=False, description=REFIT),
            "weights": dg.Field(
                dg.Map(str, float, "value"), default_value={}, is_required=False, description=WEIGHTS
            ),
        },
        description=f"{settings_file(pipeline.file)}. {SETTINGS_NOTE}",
    )


def refuse_partial_run(
    context: dg.AssetExecutionContext, pipeline: Pipeline, settings: Settings, asset: str
) -> None:
    """Check, before a run makes an asset, that the settings of this run alone reach every asset that they concern.

    Raises:
        SettingsError: an asset would keep a result of other settings, or the run leaves out a fit that refit names.
    """
    graph, usual = pipeline.graph, pipeline.settings
    if settings == usual:
        return
    steps = context.run.step_keys_to_execute or [node.name for node in context.job_def.nodes]
    reads = graph.asset_upstream(settings)
    left_out = {name for name in reads if pipeline.key(name).to_python_identifier() not in steps}
    # A retry makes only the assets from the failed one onwards; an earlier run has made the rest.
    is_retry = context.run.parent_run_id is not None
    concerned, made = set[str](), {asset} if is_retry else set(reads)
    for name, before in reads.items():
        changed = pipeline.code_version(name, settings) != pipeline.code_version(name)
        if name in pipeline.needed and (changed or not concerned.isdisjoint(before)):
            concerned.add(name)
        if not made.isdisjoint(before):
            made.add(name)
    if stay := [name for name in reads if name in concerned & made & left_out]:
        raise SettingsError(
            f"weights is set for this run alone, but the run leaves out {', '.join(stay)}, which would keep the "
            "weights of the settings; select every asset from repeats to the output and the exports, as the job curate "
            "does"
        )
    asked = [fit for fit, rule in settings.refit.items() if rule != usual.refit[fit]]
    for fit in () if is_retry else asked:
        makers = [
            name
            for name in reads
            if any(getattr(graph[part], "refit", None) == fit for part in graph.step(settings, name))
        ]
        if left_out.issuperset(makers):
            raise SettingsError(
                f"refit names {fit!r}, which {' or '.join(makers)} learns, but this run leaves it out; select it too"
                if makers
                else f"refit names {fit!r}, which these settings do not use; remove it from refit"
            )


def settings_file(file: Path | None) -> str:
    """The source of the settings, for people."""
    return str(file) if file else "no file; defaults and environment"


def for_this_run_alone(settings: Settings, usual: Settings) -> str:
    """The settings that a run changes, such as `mixing.weights.books 0.3 -> 0.5`."""
    dumps = [each.model_dump(mode="json") for each in (usual, settings)]
    return ", ".join(change.removeprefix("settings.") for change in differences("settings", *dumps))


def settings_table(settings: Settings) -> dg.MetadataValue[Any]:
    """The settings that are not at their defaults."""
    values: dict[str, Any] = {}
    for name, section in settings.model_dump(mode="json", exclude_defaults=True).items():
        is_section = isinstance(section, dict)
        values |= (
            {f"{name}.{key}": value for key, value in section.items()} if is_section else {name: section}
        )
    rows = [dg.TableRecord({"setting": name, "value": json.dumps(value)}) for name, value in values.items()]
    return dg.MetadataValue.table(rows) if rows else dg.MetadataValue.text("none")
