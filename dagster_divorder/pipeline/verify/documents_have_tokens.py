"""documents_have_tokens: the tokenizer makes something of the documents. One without tokens is in no sequence."""

from __future__ import annotations

from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.pipeline.verify import Finding

MOST = 0.01


def look(run: Run) -> Finding:
    view = load_view(run)
    empty = token_files(run).column(view.documents, "lengths")[view.document_row] == 0
    share = float(empty.mean())
    first = f" (the first: record {int(empty.argmax()):,} of the input)" if empty.any() else ""
    return Finding(
        passed=share <= MOST,
        text=f"{int(empty.sum()):,} of {len(empty):,} documents have no token{first}, {share:.2%}; at most {MOST:.0%} "
        "should.",
        remedy="look at those documents; a tokenizer without bytes or an unknown token drops what it was not made for: "
        "set model.base to a model of these languages, or take the documents out of the input",
        figures={"without_tokens": int(empty.sum()), "share": share},
    )
