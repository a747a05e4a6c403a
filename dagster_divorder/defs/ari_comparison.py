"""Asset ari_comparison."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, picture, result, table
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore


@dg.asset(group_name="evidence", kinds={"scikitlearn"})
def ari_comparison(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """Whether deep vectors (the second of `ari_comparison.spaces`) hold other structure than the shallow ones (the
    first), and are worth using: both clustered at the same number of clusters and held against each other. With
    `embedding.kind = "auto"` it picks the space."""
    from dagster_divorder.pipeline.ari_comparison import (
        HEATMAP,
        MAPS,
        load_disagreements,
        load_pairs,
    )

    receipt = materialize(context, settings)
    store, fit = LocalStore(settings.store.path), receipt.files["fit"]
    disagreements = [
        {**row, "examples": " … ".join(row["examples"])} for row in load_disagreements(store, fit)
    ]
    shown: dict[str, Any] = {
        "matched_clusters": table(load_pairs(store, fit)[:200]),
        "disagreements": table(disagreements),
    }
    for name, what in (
        (HEATMAP, "clusters of the one space against those of the other"),
        (MAPS, "the maps of both spaces"),
    ):
        if store.exists(f"{fit}/{name}"):
            shown[name.removesuffix(".png")] = picture(store.path(f"{fit}/{name}"), what)
    return result(receipt, shown)
