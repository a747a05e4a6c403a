"""Asset greedy_order."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="ordering", kinds={"numpy"})
def greedy_order(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """The order of the documents in which every window of training carries the corpus's own mix of traits."""
    return result(materialize(context, settings))
