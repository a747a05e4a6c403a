"""no_token_lost: the plan of sequences holds every token of every document once."""

from __future__ import annotations

from dagster_divorder.core.packing.coverage import coverage
from dagster_divorder.pipeline.packed_sequences import load_packed
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.pipeline.verify import Finding


def look(run: Run) -> Finding:
    receipt = run.receipt("packed_sequences")
    view = load_view(run)
    tokens = token_files(run).column(view.documents, "lengths")[view.document_row]
    lengths = tokens.astype("int64") + run.settings.packing.end_of_text
    found = coverage(load_packed(run), lengths)
    figures = {name: getattr(found, name) for name in ("tokens", "missing", "doubled", "outside")}
    if found.exact:
        text = f"{found.tokens:,} tokens of {len(lengths):,} documents, each in exactly one sequence."
        return Finding(passed=True, text=text, figures=figures)
    where = (
        f"; the first document at fault is record {found.first:,} of the input"
        if found.first is not None
        else ""
    )
    return Finding(
        passed=False,
        text=f"Of {found.tokens:,} tokens {found.missing:,} are in no sequence, {found.doubled:,} are laid again, and "
        f"{found.outside:,} are laid that no document has{where}.",
        remedy=f"delete the folder {run.store.path(receipt.files['plan']).parent} and materialise packed_sequences "
        "again, which packs anew; do not train on an output of this plan",
        figures=figures,
    )
