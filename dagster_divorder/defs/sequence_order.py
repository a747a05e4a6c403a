"""Asset sequence_order."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="ordering", kinds={"numpy"})
def sequence_order(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """The order of the packed sequences in which every batch, and every run of batches, carries the corpus's own mix;
    one order an epoch."""
    return result(materialize(context, settings))
