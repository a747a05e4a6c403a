"""Asset clusters."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result, table
from dagster_divorder.settings import Settings


@dg.asset(group_name="embedding", kinds={"scikitlearn"})
def clusters(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """A topic for every document by k-means. Centroids are pinned; `fitted` says whether and why they were made
    again."""
    receipt = materialize(context, settings)
    sizes = receipt.report["cluster_sizes"]
    documents = sum(sizes)
    rows = [
        {"cluster": label, "documents": size, "share": size / documents} for label, size in enumerate(sizes)
    ]
    return result(receipt, {"cluster_sizes": table(rows[:200])})
