"""Evidence that is not in the report, and how to make it."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_divorder.view.report.html import fill
from dagster_divorder.view.report.section import Section

_LEFT_OUT = """\
<ul class="notes">
{% for stage, (shows, why) in items.items() %}
<li>{{ why }}; it would show {{ shows }}: make it with <code>divorder report --all</code>, or materialise \
<code>{{ stage }}</code> and then <code>ordering_report</code>.</li>
{% endfor %}
</ul>
"""


def section(items: Mapping[str, tuple[str, str]]) -> Section | None:
    """items: stage -> (what it would show, why it is missing). None where nothing is missing."""
    if not items:
        return None
    return Section(
        "left-out",
        "What is not in this report",
        "Evidence that has not been made for this corpus with these settings.",
        fill(_LEFT_OUT, items=items),
    )
