"""Asset packed_sequences."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="ordering", kinds={"numpy"})
def packed_sequences(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """Which tokens make which training sequence: the ordered documents packed to the sequence length, as a plan."""
    return result(materialize(context, settings))
