"""Shallow against deep vectors: do both see the same topics?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.picture import png_uri
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.strips import NAME
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import clip, count, fixed, number, percent, percent_fixed

PAIRS, DISAGREEMENTS, EXAMPLE = 15, 8, 160
"""Pairs of clusters and disagreements that are shown, and characters of an example."""

_PICTURE = """\
<figure class="plate">
<img src="{{ picture }}" alt="{{ alt }}">
<figcaption>{{ caption }}</figcaption>
</figure>
"""
_EXAMPLES = """\
{% for text in examples %}
<bdi class="text">{{ text | clip(characters) or "(no text)" }}</bdi>{% if not loop.last %}<br>{% endif %}
{% endfor %}
"""


def section(
    report: Mapping[str, Any],
    pairs: list[dict[str, Any]],
    disagreements: list[dict[str, Any]],
    heatmap: bytes | None,
    maps: bytes | None,
) -> Section:
    """report: of ari_comparison; pairs and disagreements: its tables; heatmap, maps: its pictures, PNG."""
    parts = [_figures(report), _pairs(pairs)]
    if heatmap:
        matched = percent(report["matched_documents"])
        alt = f"Matched clusters lie on the diagonal, which holds {matched} of the documents."
        caption = "Share of each shallow cluster’s documents in each deep cluster."
        parts.append(_picture(heatmap, alt, caption))
    parts.append(_disagreements(disagreements))
    if maps:
        alt = "Two clouds of the same documents, beside each other; clusters that are matched have the same colour."
        parts.append(_picture(maps, alt, "Both spaces as maps of the same documents."))
    return Section(
        "agreement",
        "Do shallow and deep vectors agree?",
        f"{report['verdict']} Measured on {count(report['measured_documents'], 'document')} with {number(report['k'])} "
        "clusters in either space.",
        Markup("").join(parts),
    )


def _figures(report: Mapping[str, Any]) -> Markup:
    rows = [
        ("Adjusted Rand index (ARI)", fixed(report["ari"], 3)),
        ("Adjusted mutual information (AMI)", fixed(report["ami"], 3)),
        ("Normalised mutual information (NMI)", fixed(report["nmi"], 3)),
        ("Documents in matched clusters", percent(report["matched_documents"])),
        *((f"Silhouette, {kind}", fixed(value, 3)) for kind, value in report["silhouettes"].items()),
        *(
            (f"Bits a word that the clusters tell, {kind}", fixed(bits, 3))
            for kind, bits in report["word_bits"].items()
        ),
    ]
    return table("Agreement of the two clusterings", [Column("measure", text=True), Column("value")], rows)


def _pairs(pairs: list[dict[str, Any]]) -> Markup:
    columns = [
        Column("shallow cluster", text=True),
        Column("deep cluster", text=True),
        Column("documents in both"),
        Column("of the shallow one"),
        Column("of the deep one"),
    ]
    rows = [
        (
            clip(pair["shallow"], NAME),
            clip(pair["deep"], NAME),
            number(pair["documents"]),
            percent_fixed(pair["of the shallow one"]),
            percent_fixed(pair["of the deep one"]),
        )
        for pair in pairs[:PAIRS]
    ]
    return table("Clusters that match, those with most common documents first", columns, rows)


def _disagreements(disagreements: list[dict[str, Any]]) -> Markup:
    if not disagreements:
        return Markup("")
    columns = [
        Column("shallow cluster", text=True),
        Column("deep cluster", text=True),
        Column("documents"),
        Column("for example", text=True),
    ]
    rows = [
        (
            clip(cell["shallow"], NAME),
            clip(cell["deep"], NAME),
            number(cell["documents"]),
            fill(_EXAMPLES, examples=cell["examples"], characters=EXAMPLE),
        )
        for cell in disagreements[:DISAGREEMENTS]
    ]
    return table("Where they disagree most: clusters that share documents but do not match", columns, rows)


def _picture(png: bytes, alt: str, caption: str) -> Markup:
    return fill(_PICTURE, picture=png_uri(png), alt=alt, caption=caption)
