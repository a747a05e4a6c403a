"""The worst windows, with the documents that are in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import listed, number, percent

_WINDOW = """\
<article class="window">
<h3>{{ window.name }}</h3>
<p>{{ window.says }}</p>
<ol>
{% for document in window.documents %}
<li><p class="facts">{{ document.facts }}</p>
<blockquote dir="auto">{{ document.text | clip or "(no text)" }}</blockquote></li>
{% endfor %}
</ol>
</article>
"""
_NOTE = "<p>{{ note }}</p>"
_TEXT = '{{ facts }}<br><bdi class="text">{{ text | clip(120) or "(no text)" }}</bdi>'
_CAPTION = (
    "The sequences whose clusters differ most from the corpus’s, each with another document. TV: the share "
    "of the tokens that would have to change to match the corpus"
)
_COLUMNS = [
    Column("sequence", text=True),
    Column("TV"),
    Column("clusters"),
    Column("documents"),
    Column("the largest of them", text=True),
]


@dataclass(frozen=True)
class Shown:
    """A document of a window. facts: tokens there and in all, cluster, source. text: as it is in the corpus; the page
    shows its beginning, escaped."""

    facts: str
    text: str


@dataclass(frozen=True)
class Window:
    """name: what window it is. says: how it strays. documents: some of those in it."""

    name: str
    says: str
    documents: Sequence[Shown]


@dataclass(frozen=True)
class OneSided:
    """A sequence, by its place in the first epoch, from 0; its total variation from the corpus's clusters; how many
    clusters and documents it holds, and the largest document."""

    place: int
    variation: float
    clusters: int
    documents: int
    largest: Shown


def section(
    windows: Sequence[Window], sequences: Sequence[OneSided], alone: int, of: int, moving: Sequence[str] = ()
) -> Section:
    """alone: sequences that hold one document only, of how many. moving: traits whose mix is to move; their batches are
    not among the windows."""
    parts = [fill(_WINDOW, window=window) for window in windows]
    rows = [
        (
            f"{number(one.place + 1)} of {number(of)}",
            percent(one.variation),
            number(one.clusters),
            number(one.documents),
            fill(_TEXT, facts=one.largest.facts, text=one.largest.text),
        )
        for one in sequences
    ]
    parts.append(table(_CAPTION, _COLUMNS, rows))
    parts.append(fill(_NOTE, note=_note(alone, of)))
    return Section(
        "worst",
        "The worst windows",
        f"Where this order strays most from the corpus’s own mix, and the documents that make it so{_but(moving)}.",
        Markup("").join(parts),
    )


def _but(moving: Sequence[str]) -> str:
    return f"; {listed(list(moving))}, whose mix is to move, has no worst batch here" if moving else ""


def _note(alone: int, of: int) -> str:
    if not alone:
        return "Every sequence holds more than one document."
    return (
        f"{number(alone)} of {number(of)} sequences hold tokens of one document only, which no order of "
        "whole documents can mix; packing.piece_tokens cuts long documents into pieces, at the price of long context."
    )
