"""Asset diversity_metrics."""

import base64
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result, table
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore


@dg.asset(group_name="ordering", kinds={"pandas"})
def diversity_metrics(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """The proof, for every window of training: documents in their original order, shuffled (three seeds) and curated,
    packed sequences shuffled and in their own order, measured side by side."""
    from dagster_divorder.pipeline.diversity_metrics import load_table

    receipt = materialize(context, settings)
    measures = load_table(LocalStore(settings.store.path), receipt.files["table"])
    files = {name: settings.store.path / file for name, file in receipt.files.items()}
    shown: dict[str, Any] = {"orders": table(receipt.report["summary"]), "measures": table(measures)}
    shown |= {f"{name}_file": dg.MetadataValue.path(str(path)) for name, path in files.items()}
    if "picture" in files:
        shown["ordering_comparison"] = dg.MetadataValue.md(_inline(files["picture"]))
    return result(receipt, shown)


def _inline(picture: Path) -> str:
    return f"![orders compared](data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()})"
