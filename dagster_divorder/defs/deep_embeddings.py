"""Asset deep_embeddings."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="embedding", kinds={"huggingface"})
def deep_embeddings(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """One vector a document: the pooled last hidden states of a causal or encoder model, L2-normalised."""
    return result(materialize(context, settings))
