"""order_is_a_permutation: the document order names every accepted record once."""

from __future__ import annotations

import numpy as np

from dagster_divorder.pipeline.greedy_order import load_order
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.verify import Finding
from dagster_divorder.pipeline.verify.permutation import look_at


def look(run: Run) -> Finding:
    receipt = run.receipt("greedy_order")
    folder = run.store.path(receipt.files["order"]).parent
    return look_at(
        load_order(run)[np.newaxis], len(load_view(run)), "accepted records", "greedy_order", folder
    )
