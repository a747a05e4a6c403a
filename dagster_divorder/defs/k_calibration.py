"""Asset k_calibration."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, picture, result, table
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore


@dg.asset(group_name="evidence", kinds={"scikitlearn"})
def k_calibration(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """How many clusters: silhouettes, sizes and what the order gains for several numbers, and the one to take
    (`clusters.k = "auto"` takes it). Measured again once enough documents have changed; `measured` says why."""
    from dagster_divorder.pipeline.k_calibration import load_table

    receipt = materialize(context, settings)
    rows = load_table(LocalStore(settings.store.path), receipt.files["fit"])
    file = settings.store.path / receipt.files["picture"]
    return result(receipt, {"calibration": table(rows), "picture": picture(file, "silhouettes")})
