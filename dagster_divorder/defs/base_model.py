"""Asset base_model."""

from typing import Any

import dagster as dg

from dagster_divorder.defs.stage import materialize, result
from dagster_divorder.settings import Settings


@dg.asset(group_name="embedding", kinds={"huggingface"})
def base_model(
    context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[Any]:
    """Tokenizer and token table of the model to be trained (or a bootstrap trained on a sample), pinned: appended
    documents use it as it is."""
    return result(materialize(context, settings))
