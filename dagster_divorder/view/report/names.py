"""The orders that are measured: what readers call them, and the colour they have in every chart."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_divorder.view.report.html import Markup, fill


@dataclass(frozen=True)
class Series:
    """name: what readers call it. colour: a key of `chart.COLOURS`. dashed: also told apart without colour."""

    name: str
    colour: str
    dashed: bool = False


SERIES = {
    "original": Series("original documents", "original"),
    "random": Series("shuffled documents", "shuffled"),
    "curated": Series("curated documents", "curated"),
    "sequences_random": Series("shuffled sequences", "shuffled", dashed=True),
    "sequences": Series("curated sequences", "sequences"),
}
"""By the names of `diversity_metrics`."""

_LEGEND = """\
<ul class="legend">
{% for item in series %}
<li><svg viewBox="0 0 26 8" aria-hidden="true"><path d="M1 4H25"\
 style="stroke: var(--{{ item.colour }}){% if item.dashed %}; stroke-dasharray: 4 4{% endif %}"/></svg>\
{{ item.name }}</li>
{% endfor %}
</ul>
"""


def legend(*series: str | Series) -> Markup:
    """A legend of some lines, orders by name, above their chart."""
    return fill(_LEGEND, series=[SERIES[of] if isinstance(of, str) else of for of in series])
