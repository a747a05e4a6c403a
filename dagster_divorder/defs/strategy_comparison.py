"""Asset strategy_comparison."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result, table
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore


@dg.asset(group_name="evidence", kinds={"numpy"})
def strategy_comparison(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """Strategies for documents and for sequences, every pair of them on this corpus: diversity, deviations, seconds and
    memory in one table."""
    from dagster_divorder.pipeline.strategy_comparison import load_comparison

    receipt = materialize(context, settings)
    rows = load_comparison(LocalStore(settings.store.path), receipt.files["table"])
    return result(receipt, {"comparison": table(rows)})
