"""Asset cluster_map."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, picture, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="evidence", kinds={"numpy"})
def cluster_map(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """Documents as a map, like ones near each other, coloured by cluster, and the clusters' sizes. The map stays put as
    the corpus grows: new documents are placed on it. `note` says what to do where umap-learn is missing."""
    receipt = materialize(context, settings)
    file = settings.store.path / receipt.files["picture"]
    return result(receipt, {"cluster_map": picture(file, "map of the documents by cluster")})
