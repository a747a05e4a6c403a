"""The certificate: windows of three sizes at every position, against shuffling."""

from __future__ import annotations

from typing import Any

from dagster_divorder.core.metrics import Verdict
from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.verdict import Judgement
from dagster_divorder.view.report.words import points, times

_COLUMNS = [
    Column("any", text=True),
    Column("trait", text=True),
    Column("mean, ours"),
    Column("mean, shuffled"),
    Column("worst, ours"),
    Column("worst, shuffled"),
    Column("worst, original"),
    Column("worst against shuffling", text=True),
    Column("verdict", text=True),
]
_NOTES = """\
<ul class="notes">
{% for note in notes %}
<li>{{ note }}</li>
{% endfor %}
</ul>
"""


def section(judgement: Judgement) -> Section:
    """Both verdicts as tables."""
    before = judgement.metrics["original"]["windows"]
    parts = [
        _table("Packed sequences in their order, as a trainer reads them", judgement.sequences, before),
        _table("Curated documents, without an order of sequences", judgement.documents, before),
    ]
    notes = [f"Not compared: {reason}." for reason in judgement.sequences.skipped]
    notes += [
        f"Shuffling is already good enough for any {window}: its worst one strays by at most one percentage point."
        for window in judgement.sequences.good_enough
    ]
    if notes:
        parts.append(fill(_NOTES, notes=notes))
    return Section(
        "certificate",
        "Every window, wherever it starts",
        "The largest stray of any value’s share from the corpus’s, in percentage points, over windows that "
        "start at every token; shuffling is the mean of three seeds.",
        Markup("").join(parts),
    )


def _table(caption: str, verdict: Verdict, before: dict[str, Any]) -> Markup:
    rows = [
        (
            c.window,
            c.trait,
            points(c.mean),
            points(c.shuffled_mean),
            points(c.worst),
            points(c.shuffled_worst),
            points(before[c.window][c.trait]["worst"]),
            times(c.worst, c.shuffled_worst),
            "better" if c.passed else "not better",
        )
        for c in verdict.comparisons
    ]
    return table(caption, _COLUMNS, rows) if rows else Markup("")
