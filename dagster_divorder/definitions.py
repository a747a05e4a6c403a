"""The Dagster code location: settings are loaded once, and the stages that they have become assets."""

from __future__ import annotations

import warnings

import dagster as dg

from dagster_divorder.defs.assets import assets
from dagster_divorder.defs.automation import daily, watch_input
from dagster_divorder.defs.checks import checks
from dagster_divorder.defs.jobs import jobs
from dagster_divorder.pipeline.graph import OUTPUT, Graph
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH

# `--select '*'` and MaterializeResult's generics are stable for our use.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)


def definitions(graph: Graph, settings: Settings) -> dg.Definitions:
    """All that Dagster sees of some stages under some settings."""
    return dg.Definitions(
        assets=assets(graph, settings),
        asset_checks=checks(graph, settings),
        jobs=jobs(graph, settings),
        sensors=[watch_input(graph, settings)] if OUTPUT in graph else [],
        schedules=[daily] if OUTPUT in graph else [],
        resources={"settings": settings},
        executor=dg.in_process_executor,
    )


defs = definitions(GRAPH, load_settings())
