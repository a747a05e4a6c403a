"""Asset ordering_report."""

from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, picture, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="evidence", kinds={"matplotlib"})
def ordering_report(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """One HTML file next to the output to send to someone: what was asked, the verdict, before and after, the worst
    windows and their documents, and the evidence that there is. It opens in any browser, without a network."""
    receipt = materialize(context, settings)
    report = receipt.report
    shown: dict[str, Any] = {
        "path": dg.MetadataValue.path(report["path"]),
        "open": dg.MetadataValue.url(Path(report["path"]).as_uri()),
        "sections": dg.MetadataValue.md(_list(report["sections"])),
        "missing": dg.MetadataValue.md(_list(report["missing"]) or "nothing"),
        "before_and_after": picture(
            settings.store.path / receipt.files["picture"], "the dataset's clusters, before and after"
        ),
    }
    return result(receipt, shown)


def _list(names: list[str]) -> str:
    return "\n".join(f"- {name}" for name in names)
