"""Dagster definitions of a corpus, for any Dagster project."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_divorder.corpus.find import find_inputs
from dagster_divorder.corpus.formats import recognised
from dagster_divorder.defs.assets import assets
from dagster_divorder.defs.automation import daily, follow_upstream, watch_input
from dagster_divorder.defs.jobs import jobs
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.settings import Settings, config_file, load_settings
from dagster_divorder.stages import GRAPH


def build_definitions(
    settings: Settings | str | os.PathLike[str] | None = None,
    *,
    key_prefix: str | Sequence[str] | None = None,
    group_name: str | None = None,
    upstream: Mapping[str, Sequence[dg.AssetKey]] | None = None,
    executor: dg.ExecutorDefinition | None = None,
    automation: bool = True,
    tags: Mapping[str, str] | None = None,
    owners: Sequence[str] | None = None,
) -> dg.Definitions:
    """The assets, jobs, sensors and schedules of a corpus, to be merged with any others.

    Settings are bound to the assets. Two corpora in one code location need two prefixes.

    Args:
        settings: settings, or their file; None: as `load_settings` finds them.
        key_prefix: first parts of every asset key; joined by underscores they begin the names of jobs, sensors,
            schedules, resources and groups too.
        group_name: one group for all assets; by default a group for each part of the pipeline.
        upstream: by asset, such as "raw_docs", the assets that write what it reads. An update of one starts a run.
        executor: default: Dagster's own, or the one that the project sets.
        automation: whether there are the sensors that start a run on new input, and the schedule.
        tags, owners: of every asset.

    Raises:
        dg.DagsterInvalidDefinitionError: settings cannot be used, or there is no input and no asset upstream writes
            it.
    """
    try:
        file = None if isinstance(settings, Settings) else config_file(settings, os.environ)
        loaded = settings if isinstance(settings, Settings) else load_settings(settings)
        if "raw_docs" not in (upstream or {}):
            find_inputs(loaded)
        pipeline = Pipeline(
            GRAPH,
            recognised(loaded),
            file,
            (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix or ()),
            group_name,
            upstream or {},
            tags or {},
            owners or (),
            automation,
        )
    except DivOrderError as error:
        # Dagster's pages begin with the message of its own errors, and wrap others.
        raise dg.DagsterInvalidDefinitionError(str(error)) from None
    return definitions(pipeline, executor)


def definitions(pipeline: Pipeline, executor: dg.ExecutorDefinition | None = None) -> dg.Definitions:
    """Dagster's definitions of a pipeline."""
    starts_itself = pipeline.automation and OUTPUT in pipeline.graph
    sensors: list[Any] = [watch_input(pipeline)] if starts_itself else []
    if starts_itself and pipeline.upstream:
        sensors.append(follow_upstream(pipeline))
    # Resources of an asset's own are in beta; in our use they are stable.
    with warnings.catch_warnings(action="ignore", category=dg.BetaWarning):
        return dg.Definitions(
            assets=assets(pipeline),
            jobs=jobs(pipeline),
            sensors=sensors,
            schedules=[daily(pipeline)] if starts_itself else [],
            executor=executor,
        )
