"""Asset curated_output."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result, table
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore


@dg.asset(group_name="output", kinds={"json", "parquet"})
def curated_output(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """The corpus in its curated order, records byte for byte as they were read, with curated_meta.json as manifest."""
    from dagster_divorder.pipeline.prune import disk_use

    receipt = materialize(context, settings)
    files = [{"file": name, **entry} for name, entry in receipt.report["files"].items()]
    disk = disk_use(LocalStore(settings.store.path))
    return result(
        receipt,
        {
            "output_folder": dg.MetadataValue.path(receipt.report["folder"]),
            "output_files": table(files[:200]),
            "store_disk": table([{"part": part, "bytes": size} for part, size in disk.items()]),
        },
    )
