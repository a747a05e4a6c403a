"""Asset clusters."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result, table
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore


@dg.asset(group_name="embedding", kinds={"scikitlearn"})
def clusters(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """A topic for every document by k-means, named by its characteristic words. Centroids and names are pinned;
    `fitted` says whether and why they were made again."""
    from dagster_divorder.pipeline.cluster_table import load_cluster_table

    receipt = materialize(context, settings)
    figures = ("cluster", "name", "documents", "share", "mean_distance")
    rows = [
        {**{figure: row[figure] for figure in figures}, "example": next(iter(row["examples"]), "")}
        for row in load_cluster_table(LocalStore(settings.store.path), receipt)
    ]
    return result(receipt, {"cluster_sizes": table(rows[:200])})
