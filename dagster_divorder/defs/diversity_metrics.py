"""Asset diversity_metrics."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, picture, result, table
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
    shown: dict[str, Any] = {
        "orders": table(_by_figure(receipt.report["summary"])),
        "findings": dg.MetadataValue.md("\n".join(f"- {line}" for line in receipt.report["findings"])),
    }
    if "picture" in receipt.files:
        file = settings.store.path / receipt.files["picture"]
        shown["ordering_comparison"] = picture(file, "orders compared")
    return result(receipt, {**shown, "measures": table(measures)})


def _by_figure(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Orders side by side, a line a figure: people compare along a line."""
    figures = [name for name in rows[0] if name != "order"]
    return [{"figure": name, **{row["order"]: row[name] for row in rows}} for name in figures]
