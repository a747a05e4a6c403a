"""rejects_below_limit: the share of refused records, by the limit that the settings hold now; and what of the input was
left out.

A run above the limit fails before it stores anything; this also holds what is stored against a limit that was lowered.
"""

from __future__ import annotations

from dagster_divorder.pipeline.input_report import first_rejects, left_out
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.verify import Finding


def look(run: Run) -> Finding:
    raw_docs = run.receipt("raw_docs")
    report = raw_docs.report
    rejected, limit = report["rejected_records"], run.settings.input.max_reject_share
    read = rejected + report["records"]
    share = rejected / read
    return Finding(
        passed=share <= limit,
        text=f"{rejected:,} of {read:,} records were refused ({share:.2%}); input.max_reject_share allows {limit:.2%}. "
        f"{left_out(report)}".rstrip(),
        remedy="correct the records that the table names (or input.text_field) and materialise raw_docs again, or "
        f"raise input.max_reject_share above {share:.4g}",
        figures={
            "rejected_records": rejected,
            "share": share,
            "first_rejects": first_rejects(run.store, raw_docs),
        },
    )
