"""Asset raw_docs."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result, table
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore


@dg.asset(group_name="corpus", kinds={"parquet", "json"})
def raw_docs(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """Records of the input files, each stored once by its hash, and the documents (texts) they hold. Refused records go
    to the rejects with path, line and reason."""
    from dagster_divorder.pipeline.input_report import first_rejects, input_files

    receipt = materialize(context, settings)
    store = LocalStore(settings.store.path)
    rejects = first_rejects(store, receipt)
    others = [{"name": name, "files": count} for name, count in receipt.report["other_files"].items()]
    return result(
        receipt,
        {
            "input_files": table(input_files(store, receipt)),
            "other_files": table(others),
            "skipped_folders": table([{"folder": folder} for folder in receipt.report["skipped_folders"]]),
            "first_rejects": table(rejects),
        },
    )
