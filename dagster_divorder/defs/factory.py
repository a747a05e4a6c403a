"""Builds the Dagster definitions of a corpus, for any Dagster project."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.corpus.find import find_inputs
from dagster_divorder.corpus.peek import recognised
from dagster_divorder.defs.assets import assets
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.defs.sensor import CURATE, REPORT, daily, watch_input
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.settings import Settings, anchored, load_settings
from dagster_divorder.settings.places import is_url
from dagster_divorder.stages import EVIDENCE, GRAPH
from dagster_divorder.store.objects import store_at
from dagster_divorder.store.state import load_receipt

JOBS: dict[str, tuple[tuple[str, ...], str]] = {
    CURATE: ((OUTPUT,), "The curated output and everything it needs. Only what is new is computed."),
    REPORT: (
        (*sorted({*EVIDENCE} - {"training_evidence"}), "ordering_report", "ordering_animation"),
        "Evidence for choosing settings, a report on the curated output to send to others, and its films.",
    ),
}
"""Job -> its assets, and its description. All have every asset that they need, and nothing to fill in."""


def build_definitions(
    settings: Settings | str | os.PathLike[str] | None = None,
    *,
    key_prefix: str = "",
    upstream: Mapping[str, Any] | None = None,
    executor: dg.ExecutorDefinition | None = dg.in_process_executor,
    automation: bool = True,
) -> dg.Definitions:
    """The assets, jobs, sensor and schedule of a corpus; a project may merge them with others.

    The assets keep their settings. Two corpora in one code location need two prefixes. Groups, tags, owners and
    metadata are changed with `map_asset_specs`.

    Args:
        settings: settings, or their file; None: as `load_settings` finds them. Relative paths start at the file's
            folder, or at the working directory without a file.
        key_prefix: first parts of every asset key, such as "news" or "text/news". Joined by underscores, they also
            begin the names of jobs, the sensor, the schedule, the pool and groups.
        upstream: asset that reads files (raw_docs, external_embeddings) -> the assets that write these files,
            as a list of keys such as "docs" or "raw/docs", or of anything that `deps` takes. Their updates start a run.
        executor: of the jobs; None: the project's, by which single assets run in any case.
        automation: whether to define the sensor that starts runs on new input, and the schedule.

    Raises:
        dg.DagsterInvalidDefinitionError: settings cannot be used; or there is no input, and no upstream asset writes
            it.
    """
    upstream = upstream or {}
    try:
        loaded = anchored(settings, Path.cwd()) if isinstance(settings, Settings) else load_settings(settings)
        # Each check of a URL is a request. A folder that was read may be empty for a while: the sensor waits for files.
        is_there = "raw_docs" in upstream or any(map(is_url, loaded.input.paths))
        if not is_there and load_receipt(store_at(loaded.store.path), "raw_docs") is None:
            find_inputs(loaded)
        deps = {asset: _deps(written_by) for asset, written_by in upstream.items()}
        pipeline = Pipeline(GRAPH, recognised(loaded), tuple(filter(None, key_prefix.split("/"))), deps)
    except DivOrderError as error:
        # Dagster's pages begin with the message of its own errors, and wrap others.
        raise dg.DagsterInvalidDefinitionError(str(error)) from None
    selections = {job: _assets_of(pipeline, job) for job in JOBS}
    return dg.Definitions(
        assets=assets(pipeline),
        jobs=[
            dg.define_asset_job(
                pipeline.named(job),
                dg.AssetSelection.assets(*map(pipeline.key, selection)),
                description=JOBS[job][1],
                executor_def=executor,
            )
            for job, selection in selections.items()
        ],
        sensors=[watch_input(pipeline)] if automation else [],
        schedules=[daily(pipeline, selections[REPORT])] if automation else [],
    )


def _assets_of(pipeline: Pipeline, job: str) -> list[str]:
    """The assets of a job under the settings of a pipeline."""
    targets = [asset for asset in pipeline.specs if asset in JOBS[job][0]]
    return [asset for asset in pipeline.graph.needed(pipeline.settings, *targets) if asset in pipeline.specs]


def _deps(written_by: Any) -> list[Any]:
    """One or several assets upstream, as `deps` takes them."""
    # Dagster's keys, specs and deps are tuples, not lists of assets.
    given = written_by if type(written_by) in (list, tuple) else [written_by]
    return [dg.AssetKey.from_user_string(one) if isinstance(one, str) else one for one in given]
