"""The Dagster code location: it loads the settings once and makes an asset of each of their stages."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import dagster as dg

from dagster_divorder.corpus.formats import recognised
from dagster_divorder.defs.assets import assets
from dagster_divorder.defs.automation import daily, watch_input
from dagster_divorder.defs.jobs import jobs
from dagster_divorder.defs.metadata import settings_resource
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.graph import OUTPUT, Graph
from dagster_divorder.settings import Settings, config_file, load_settings
from dagster_divorder.stages import GRAPH

# `--select '*'` and MaterializeResult's generics are stable for our use.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)


def definitions(graph: Graph, settings: Settings, file: Path | None = None) -> dg.Definitions:
    """Dagster's definitions of a graph under settings. file: holds the settings."""
    return dg.Definitions(
        assets=assets(graph, settings),
        jobs=jobs(graph, settings, file),
        sensors=[watch_input(graph, settings)] if OUTPUT in graph else [],
        schedules=[daily] if OUTPUT in graph else [],
        resources={"settings": settings_resource(settings, file)},
        executor=dg.in_process_executor,
    )


try:
    defs = definitions(GRAPH, recognised(load_settings()), config_file(None, os.environ))
except DivOrderError as error:
    # Commands end with one sentence.
    sys.excepthook = lambda kind, raised, trace: print(f"divorder: {raised}", file=sys.stderr)
    # Dagster's pages begin with the message of its own errors, and wrap others.
    raise dg.DagsterInvalidDefinitionError(str(error)) from None
