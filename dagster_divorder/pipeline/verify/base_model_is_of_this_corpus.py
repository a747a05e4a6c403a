"""base_model_is_of_this_corpus: of the documents that the base model was made on, enough are left.

A corpus that was exchanged for another keeps the tokenizer (or the weights of tokens) that was learnt from the first
one, and is cut into more tokens than need be.
"""

from __future__ import annotations

from dagster_divorder.pipeline.base_model import warn_of_another_corpus
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.verify import Finding


def look(run: Run) -> Finding:
    # Receipts of earlier versions do not say.
    left = run.receipt("base_model").report.get("documents_left", 1.0)
    return Finding(
        passed=warn_of_another_corpus(left) is None,
        text=f"{left:.0%} of the documents that the base model was made on are left in the input.",
        remedy='set model.refit = "now" for one run, or keep another corpus in a store of its own (store.path)',
        figures={"documents_left": left},
    )
