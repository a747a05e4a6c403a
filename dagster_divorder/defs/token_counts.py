"""Asset token_counts."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="embedding", kinds={"huggingface"})
def token_counts(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """Every document tokenised once; ids and counts are kept, and only documents never seen are tokenised."""
    return result(materialize(context, settings))
