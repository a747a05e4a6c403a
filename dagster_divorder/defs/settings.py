"""The settings of a pipeline on Dagster's pages, and what one run may set otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.defs.metadata import table
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import RULES

SETTINGS_RESOURCE = "divorder"
"""Key of the resource that gives assets their settings, before the prefix."""

SETTINGS_NOTE = (
    "To change settings, edit this file (or the environment, DIVORDER_...) and reload definitions. The launchpad takes "
    "one for its run alone: refit, the fits to learn again from the present corpus, such as [clusters]."
)

FIT = dg.Enum("Fit", [dg.EnumValue(name) for name in RULES])


def settings_resource(pipeline: Pipeline) -> dg.ResourceDefinition:
    """The settings for assets, with the `refit` of a run's configuration. The launchpad shows the description."""
    return dg.ResourceDefinition(
        lambda context: pipeline.settings.refitting(*context.resource_config["refit"]),
        config_schema={"refit": dg.Field([FIT], default_value=[], is_required=False)},
        description=f"{settings_file(pipeline.file)}. {SETTINGS_NOTE}",
    )


def settings_file(file: Path | None) -> str:
    """The source of the settings, for people."""
    return str(file) if file else "no file; defaults and environment"


def settings_table(settings: Settings) -> dg.MetadataValue[Any]:
    """The settings that are not at their defaults."""
    values: dict[str, Any] = {}
    for name, section in settings.model_dump(mode="json", exclude_defaults=True).items():
        is_section = isinstance(section, dict)
        values |= (
            {f"{name}.{key}": value for key, value in section.items()} if is_section else {name: section}
        )
    return table([{"setting": name, "value": json.dumps(value)} for name, value in values.items()])
