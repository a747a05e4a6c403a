"""The run: time of each stage, and what was new."""

from __future__ import annotations

from typing import Any

from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import number, seconds

_COLUMNS = [
    Column("stage", text=True),
    Column("documents"),
    Column("new"),
    Column("reused"),
    Column("time"),
]


def section(reports: dict[str, dict[str, Any]], delta: dict[str, int]) -> Section:
    """reports: by stage, of its last run. delta: documents against the output that this one replaced."""
    rows: list[tuple[str, ...]] = [
        (
            stage,
            number(report["documents"]),
            number(report["new_documents"]),
            number(report["reused_documents"]),
            seconds(report["seconds"]),
        )
        for stage, report in reports.items()
    ]
    total = sum(report["seconds"] for report in reports.values())
    rows.append(("all stages", "", "", "", seconds(total)))
    new, kept, gone = (delta[f"{name}_documents"] for name in ("new", "reused", "dropped"))
    before = (
        f"Against the output before it, {number(new)} documents are new, {number(kept)} were there, "
        f"{number(gone)} are gone."
        if kept or gone
        else "It is the first output in its folder."
    )
    return Section(
        "run",
        "The run, and what was new",
        f"Time of every stage in its last run. {before}",
        table("Stages of the last run", _COLUMNS, rows, [len(rows) - 1]),
    )
