"""The Dagster code location: settings are loaded once, assets gathered, code versions set from the settings."""

from __future__ import annotations

import warnings

import dagster as dg

from dagster_divorder.defs.ari_comparison import ari_comparison
from dagster_divorder.defs.automation import daily, watch_input
from dagster_divorder.defs.base_model import base_model
from dagster_divorder.defs.checks import CHECKS
from dagster_divorder.defs.cluster_map import cluster_map
from dagster_divorder.defs.clusters import clusters
from dagster_divorder.defs.curated_output import curated_output
from dagster_divorder.defs.deep_embeddings import deep_embeddings
from dagster_divorder.defs.diversity_metrics import diversity_metrics
from dagster_divorder.defs.external_embeddings import external_embeddings
from dagster_divorder.defs.greedy_order import greedy_order
from dagster_divorder.defs.jobs import jobs
from dagster_divorder.defs.k_calibration import k_calibration
from dagster_divorder.defs.ordering_animation import ordering_animation
from dagster_divorder.defs.ordering_report import ordering_report
from dagster_divorder.defs.packed_sequences import packed_sequences
from dagster_divorder.defs.raw_docs import raw_docs
from dagster_divorder.defs.sequence_order import sequence_order
from dagster_divorder.defs.shallow_embeddings import shallow_embeddings
from dagster_divorder.defs.strategy_comparison import strategy_comparison
from dagster_divorder.defs.token_counts import token_counts
from dagster_divorder.pipeline.graph import needed, upstream
from dagster_divorder.settings import load_settings

# `--select '*'` and MaterializeResult's generics are stable for our use.
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)

settings = load_settings()

ASSETS = [
    raw_docs,
    base_model,
    token_counts,
    shallow_embeddings,
    deep_embeddings,
    ari_comparison,
    external_embeddings,
    k_calibration,
    clusters,
    cluster_map,
    greedy_order,
    packed_sequences,
    sequence_order,
    diversity_metrics,
    strategy_comparison,
    curated_output,
    ordering_animation,
    ordering_report,
]


GRAPH = upstream(settings)
NEEDED = needed(settings)


def _as_set(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """The settings say what an asset reads; an edited file shows the assets it concerns as stale (once the code
    location is reloaded)."""
    stage, spec = asset.key.path[-1], asset.get_asset_spec()
    # What clusters are made by is no evidence, but a part of how they come about.
    group = "embedding" if spec.group_name == "evidence" and stage in NEEDED else spec.group_name
    # Decorated anew: `map_asset_specs` with other deps shows them, but a run does not follow them (Dagster 1.13).
    function = asset.op.compute_fn.decorated_fn  # type: ignore[union-attr]
    return dg.asset(
        name=stage,
        deps=GRAPH[stage],
        code_version=settings.recipe(stage),
        description=spec.description,
        group_name=group,
        kinds=spec.kinds,
    )(function)


SHOWN = {asset.key.path[-1]: _as_set(asset) for asset in ASSETS if asset.key.path[-1] in GRAPH}

defs = dg.Definitions(
    assets=list(SHOWN.values()),
    asset_checks=CHECKS,
    jobs=jobs(settings, SHOWN),
    sensors=[watch_input(settings)],
    schedules=[daily],
    resources={"settings": settings},
    executor=dg.in_process_executor,
)
