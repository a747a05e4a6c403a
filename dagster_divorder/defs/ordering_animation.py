"""Asset ordering_animation."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="evidence", kinds={"matplotlib"})
def ordering_animation(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """Two films: documents moving from the original order into the curated one, and the cluster map lighting up as
    documents are picked."""
    receipt = materialize(context, settings)
    films = {
        name.removesuffix(".mp4"): dg.MetadataValue.path(path)
        for name, path in receipt.report["films"].items()
    }
    return result(receipt, films)
