"""Asset shallow_embeddings."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="embedding", kinds={"numpy"})
def shallow_embeddings(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """One vector a document, the pooled rows of the base model's token table: texts on like topics point alike."""
    return result(materialize(context, settings))
