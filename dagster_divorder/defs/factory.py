"""Builds the Dagster definitions of a corpus, for any Dagster project."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.corpus.find import find_inputs
from dagster_divorder.corpus.formats import recognised
from dagster_divorder.defs.assets import assets
from dagster_divorder.defs.automation import daily, follow_upstream, watch_input
from dagster_divorder.defs.jobs import jobs
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.errors import DivOrderError, InputError, SettingsError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.settings import Settings, anchored, config_file, fixed_beginning, load_settings
from dagster_divorder.settings.places import is_url
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.state import load_receipt


def build_definitions(
    settings: Settings | str | os.PathLike[str] | None = None,
    *,
    file: Path | None = None,
    key_prefix: str | Sequence[str] | None = None,
    group_name: str | None = None,
    upstream: Mapping[str, Any] | None = None,
    executor: dg.ExecutorDefinition | None = None,
    automation: bool = True,
    tags: Mapping[str, str] | None = None,
    owners: Sequence[str] | None = None,
    translation: Callable[[dg.AssetSpec], dg.AssetSpec] | None = None,
) -> dg.Definitions:
    """The assets, jobs, sensors and schedules of a corpus; a project may merge them with others.

    The assets keep their settings. Two corpora in one code location need two prefixes.

    Args:
        settings: settings, or their file; None: as `load_settings` finds them. Relative paths start at the file's
            folder, or at the working directory without a file.
        file: the file that given settings come from; only shown.
        key_prefix: first parts of every asset key, such as "news" or "text/news". Joined by underscores, they also
            begin the names of jobs, sensors, schedules, resources and groups.
        group_name: one group for all assets; by default a group for each part of the pipeline.
        upstream: asset that reads files (raw_docs, external_embeddings, scores) -> the assets that write these files,
            as a list of keys such as "docs" or "raw/docs", or of anything that `deps` takes. Their updates start a run.
        executor: by default the project's or Dagster's own.
        automation: whether to define the sensors that start runs on new input, and the schedule.
        tags, owners: of every asset.
        translation: maps the spec of an asset to the spec to show; it may change key, group, description, metadata,
            tags, owners, kinds and automation condition.

    Raises:
        dg.DagsterInvalidDefinitionError: settings cannot be used; or there is no input, and no upstream asset writes
            it.
    """
    try:
        if isinstance(settings, Settings):
            loaded = anchored(settings, Path.cwd())
        else:
            file, loaded = config_file(settings, os.environ), load_settings(settings)
        upstream = upstream or {}
        if not isinstance(upstream, Mapping):
            raise SettingsError(
                f"upstream is {upstream!r}; expected the assets that write the files of each asset, such as "
                '{"raw_docs": ["docs"]}'
            )
        if "raw_docs" not in upstream:
            _check_input(loaded)
        pipeline = Pipeline(
            GRAPH,
            recognised(loaded),
            file,
            tuple(key_prefix.split("/") if isinstance(key_prefix, str) else key_prefix or ()),
            group_name,
            {asset: _deps(written_by) for asset, written_by in upstream.items()},
            tags or {},
            owners or (),
            automation,
            translation,
        )
    except DivOrderError as error:
        # Dagster's pages begin with the message of its own errors, and wrap others.
        raise dg.DagsterInvalidDefinitionError(str(error)) from None
    return definitions(pipeline, executor)


def _check_input(settings: Settings) -> None:
    """Check that there is input. URLs are left to the run, because each check is a request. A folder that an earlier
    run has read may be empty for a while: the sensor waits for files.

    Raises:
        InputError: there is none.
    """
    if any(map(is_url, settings.input.paths)):
        return
    try:
        find_inputs(settings)
    except InputError:
        paths = map(fixed_beginning, settings.input.paths)
        if not all(map(os.path.exists, paths)) or load_receipt(store_of(settings.store), "raw_docs") is None:
            raise


def _deps(written_by: Any) -> list[dg.AssetDep]:
    """The deps of an upstream asset, or of a list of them."""
    deps = []
    # Dagster's keys, specs and deps are tuples, not lists of assets.
    for asset in written_by if type(written_by) in (list, tuple) else [written_by]:
        if isinstance(asset, str):
            deps.append(dg.AssetDep(dg.AssetKey.from_user_string(asset)))
        elif isinstance(asset, dg.AssetsDefinition):
            deps += map(dg.AssetDep, asset.keys)
        else:
            deps.append(asset if isinstance(asset, dg.AssetDep) else dg.AssetDep(asset))
    return deps


def definitions(pipeline: Pipeline, executor: dg.ExecutorDefinition | None = None) -> dg.Definitions:
    """Dagster's definitions of a pipeline."""
    starts_itself = pipeline.automation and OUTPUT in pipeline.graph
    # Dagster marks resources of an asset and custom conditions as beta; as used here they are stable.
    with warnings.catch_warnings(action="ignore", category=dg.BetaWarning):
        sensors: list[Any] = [watch_input(pipeline)] if starts_itself else []
        if starts_itself and pipeline.upstream:
            sensors.append(follow_upstream(pipeline))
        return dg.Definitions(
            assets=assets(pipeline),
            jobs=jobs(pipeline),
            sensors=sensors,
            schedules=[daily(pipeline)] if starts_itself else [],
            executor=executor,
        )
