"""Before and after: the whole dataset as bars of its clusters, in each order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view.ordering_comparison import cluster_colours
from dagster_divorder.view.report.html import fill
from dagster_divorder.view.report.picture import bar, two_bars
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.words import number

ROWS = 96
"""Pixels of a bar's height."""

_BARS = """\
<figure class="bars">
{% for order in orders %}
<div class="bar">
<h3>{{ order.name }}</h3>
<img class="mix" src="{{ order.picture }}" alt="{{ order.alt }}">
<img class="whole" src="{{ corpus }}" alt="The corpus’s own mix{{ resembled }}.">
</div>
{% endfor %}
<div class="axis" aria-hidden="true">
{% for percent in (0, 25, 50, 75, 100) %}
<span>{{ percent }}</span>
{% endfor %}
</div>
<figcaption>Position in the dataset, % of tokens. Each column shows the clusters’ shares of {{ width }} consecutive
tokens; the narrow bar on the right is the whole corpus{{ folded }}. Colours are those of the table of clusters
below.</figcaption>
</figure>
"""


@dataclass(frozen=True, eq=False)
class Bar:
    """One order of the corpus. mix: float (C, K), shares of the K shown values in C slices (`cluster_mix`)."""

    name: str
    mix: NDArray[np.float32]


def stacking(original: NDArray[np.floating]) -> NDArray[np.int64]:
    """The clusters in the order in which bars are stacked, (K,): those that lie together in the original order get
    neighbouring colours."""
    total = original.sum(axis=0, dtype=np.float64)
    moment = (np.arange(len(original))[:, None] * original).sum(axis=0, dtype=np.float64)
    ranked: NDArray[np.int64] = np.argsort(moment / np.where(total > 0, total, 1.0), kind="stable")
    return ranked


def colours_of(original: NDArray[np.floating]) -> NDArray[np.float64]:
    """The colour of each shown value, RGB in [0, 1] (K, 3)."""
    ranked = stacking(original)
    colours = np.empty((len(ranked), 3))
    colours[ranked] = cluster_colours(len(ranked))
    return colours


def section(bars: list[Bar], tokens: int, others: int, *, keeps: bool = True) -> Section:
    """bars: the original order first. others: clusters that share the last value, 0 for none. keeps: whether the mix of
    clusters is to stay."""
    ranked = stacking(bars[0].mix)
    colours = cluster_colours(len(ranked))
    whole = bars[0].mix.mean(axis=0, dtype=np.float64)[np.newaxis, ranked]
    orders = [
        {"name": of.name, "picture": bar(of.mix[:, ranked], colours, ROWS), "alt": _alt(of, whole[0], ranked)}
        for of in bars
    ]
    body = fill(
        _BARS,
        orders=orders,
        corpus=bar(whole, colours, ROWS),
        resembled=", which every column should resemble" if keeps else "",
        width=number(tokens / len(bars[0].mix)),
        folded=f"; {others:,} small clusters are one colour" if others else "",
    )
    return Section(
        "before-and-after",
        "Before and after",
        "The same documents from the first token to the last: where one colour fills a column, training would see one "
        "topic for a long while.",
        body,
    )


def small_picture(before: NDArray[np.floating], after: NDArray[np.floating]) -> bytes:
    """Two bars above each other as a PNG file, for a page that has no room for more."""
    ranked = stacking(before)
    return two_bars(before[:, ranked], after[:, ranked], cluster_colours(len(ranked)))


def _alt(of: Bar, whole: NDArray[np.float64], ranked: NDArray[np.int64]) -> str:
    """What the picture shows, in numbers."""
    off = np.abs(of.mix[:, ranked] - whole).sum(axis=1) / 2
    largest = of.mix.max(axis=1)
    return (
        f"{of.name}: in a column the largest cluster has {100 * largest.mean():.0f} % of the tokens on average and "
        f"{100 * largest.max():.0f} % at most; {100 * off.mean():.0f} % of a column’s tokens would have to "
        "change to match the corpus."
    )
