"""The Dagster code location: settings are loaded once, assets gathered, code versions set from the settings."""

from __future__ import annotations

import warnings

import dagster as dg

from dagster_divorder.defs.base_model import base_model
from dagster_divorder.defs.checks import order_beats_shuffling
from dagster_divorder.defs.clusters import clusters
from dagster_divorder.defs.curated_output import curated_output
from dagster_divorder.defs.diversity_metrics import diversity_metrics
from dagster_divorder.defs.greedy_order import greedy_order
from dagster_divorder.defs.packed_sequences import packed_sequences
from dagster_divorder.defs.raw_docs import raw_docs
from dagster_divorder.defs.sequence_order import sequence_order
from dagster_divorder.defs.shallow_embeddings import shallow_embeddings
from dagster_divorder.defs.strategy_comparison import strategy_comparison
from dagster_divorder.defs.token_counts import token_counts
from dagster_divorder.pipeline.graph import upstream
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
    clusters,
    greedy_order,
    packed_sequences,
    sequence_order,
    diversity_metrics,
    strategy_comparison,
    curated_output,
]


GRAPH = upstream(settings)


def _as_set(spec: dg.AssetSpec) -> dg.AssetSpec:
    """The settings say what an asset reads; an edited file shows the assets it concerns as stale (once the code
    location is reloaded)."""
    stage = spec.key.path[-1]
    return spec.replace_attributes(code_version=settings.recipe(stage), deps=GRAPH[stage])


defs = dg.Definitions(
    assets=dg.map_asset_specs(_as_set, [asset for asset in ASSETS if asset.key.path[-1] in GRAPH]),
    asset_checks=[order_beats_shuffling],
    resources={"settings": settings},
    executor=dg.in_process_executor,
)
