"""Asset raw_docs."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="corpus", kinds={"parquet", "json"})
def raw_docs(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """Records of the input files, each stored once by its hash, and the documents (texts) they hold. Refused records go
    to the rejects with path, line and reason."""
    receipt = materialize(context, settings)
    files = "\n".join(f"- `{path}`" for path in receipt.report["files"][:20])
    return result(receipt, {"input_files": dg.MetadataValue.md(files)})
