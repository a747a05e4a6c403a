"""Asset curated_output."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result, table
from dagster_divorder.settings import Settings


@dg.asset(
    deps=["greedy_order", "diversity_metrics", "raw_docs"], group_name="output", kinds={"json", "parquet"}
)
def curated_output(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """The corpus in its curated order, records byte for byte as they were read, with curated_meta.json as manifest."""
    receipt = materialize(context, settings)
    rows = [{"file": name, **entry} for name, entry in receipt.report["files"].items()]
    return result(
        receipt,
        {"output_folder": dg.MetadataValue.path(receipt.report["folder"]), "output_files": table(rows[:200])},
    )
