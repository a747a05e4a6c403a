"""sequence_order_is_a_permutation: every epoch's order names every packed sequence once."""

from __future__ import annotations

from dagster_divorder.pipeline.packed_sequences import load_packed
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.sequence_order import load_sequence_order
from dagster_divorder.pipeline.verify import Finding
from dagster_divorder.pipeline.verify.permutation import look_at


def look(run: Run) -> Finding:
    receipt = run.receipt("sequence_order")
    folder = run.store.path(receipt.files["order"]).parent
    return look_at(load_sequence_order(run), len(load_packed(run)), "sequences", "sequence_order", folder)
