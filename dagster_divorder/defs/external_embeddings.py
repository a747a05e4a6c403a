"""Asset external_embeddings."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="embedding", kinds={"numpy"})
def external_embeddings(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """One vector a document from a file of your own (`embedding.path`), checked and L2-normalised."""
    return result(materialize(context, settings))
