"""Tables: with a caption, heads of their own for columns and rows, and a frame that scrolls on a narrow screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagster_divorder.view.report.html import Markup, fill

_TABLE = """\
<div class="scroll" tabindex="0" role="region" aria-label="{{ caption }}">
<table>
<caption><span>{{ caption }}</span></caption>
<thead><tr>
{% for column in columns %}
<th scope="col" class="{{ column.classes }}">{{ column.head }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr{% if loop.index0 in marked %} class="marked"{% endif %}>
{% for column, cell in zip(columns, row) %}
{% if loop.first %}
<th scope="row">{{ cell }}</th>
{% else %}
<td class="{{ column.classes }}">{{ cell }}</td>
{% endif %}
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
"""


@dataclass(frozen=True)
class Column:
    """head: what stands above it, with the unit. text: left-aligned; else it holds numbers. desk: left out on a
    phone."""

    head: str
    text: bool = False
    desk: bool = False

    @property
    def classes(self) -> str:
        return " ".join(["t" if self.text else "n", *["desk"] * self.desk])


def table(
    caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]], marked: Sequence[int] = ()
) -> Markup:
    """Rows of cells, texts or markup; the first cell of a row is its head. marked: rows that stand out."""
    return fill(_TABLE, caption=caption, columns=columns, rows=rows, marked=set(marked), zip=zip)
