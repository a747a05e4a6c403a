"""The certificate: windows of three sizes at every position, against shuffling."""

from __future__ import annotations

from typing import Any

from dagster_divorder.core.metrics import Verdict
from dagster_divorder.core.metrics.verdict import SEAM
from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.names import SERIES
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
_SEAMS = ("sequences", "sequences_random", "curated", "random", "original")
_SEAM_COLUMNS = [Column("trait", text=True), *(Column(SERIES[name].name) for name in _SEAMS)]
_NOTES = """\
<ul class="notes">
{% for note in notes %}
<li>{{ note }}</li>
{% endfor %}
</ul>
"""


def section(judgement: Judgement) -> Section:
    """Both verdicts as tables, and both sides of the seam."""
    before = judgement.metrics["original"]
    parts = [
        _table("Packed sequences in their order, as a trainer reads them", judgement.sequences, before),
        _table("Curated documents, without an order of sequences", judgement.documents, before),
        _seam(judgement),
    ]
    moving = judgement.sequences.traits(moving=True)
    notes = [f"{trait}: held against what can be had of its targets there, which moves." for trait in moving]
    notes += [f"Not compared: {reason}." for reason in judgement.sequences.skipped]
    notes += [
        f"Shuffling is already good enough for any {window}: its worst one strays by at most one percentage point."
        for window in judgement.sequences.good_enough
    ]
    if notes:
        parts.append(fill(_NOTES, notes=notes))
    return Section(
        "certificate",
        "Every window, wherever it starts",
        f"The largest stray of any value’s share from {'the mix' if moving else 'the corpus’s'}, in percentage "
        "points, over windows that start at every token; shuffling is the mean of three seeds.",
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
            points((before["seam"] if c.window == SEAM else before["windows"][c.window])[c.trait]["worst"]),
            times(c.worst, c.shuffled_worst),
            "better" if c.passed else "not better",
        )
        for c in verdict.comparisons
    ]
    return table(caption, _COLUMNS, rows) if rows else Markup("")


def _seam(judgement: Judgement) -> Markup:
    """The last batch of one reading against the first one of the next."""
    metrics = judgement.metrics
    traits = list(dict.fromkeys(c.trait for c in judgement.sequences.comparisons if c.window == SEAM))
    rows = [
        (trait, *(points(metrics[name]["seam"][trait]["head_tail"]) for name in _SEAMS)) for trait in traits
    ]
    caption = (
        "Where the data is read again: TV between the last batch’s mix and the first’s, in percentage points"
    )
    return table(caption, _SEAM_COLUMNS, rows) if rows else Markup("")
