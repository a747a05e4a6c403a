"""Two kinds of vectors: do both see the same topics?"""

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
    first, second = report["spaces"]
    parts = [_figures(report), _pairs(pairs, first, second)]
    if heatmap:
        matched = percent(report["matched_documents"])
        alt = f"Matched clusters lie on the diagonal, which holds {matched} of the documents."
        caption = f"Share of each {first} cluster’s documents in each {second} cluster."
        parts.append(_picture(heatmap, alt, caption))
    parts.append(_disagreements(disagreements, first, second))
    if maps:
        alt = "Two clouds of the same documents, beside each other; clusters that are matched have the same colour."
        parts.append(_picture(maps, alt, "Both spaces as maps of the same documents."))
    return Section(
        "agreement",
        f"Do {first} and {second} vectors agree?",
        f"{report['verdict']} Measured on {count(report['measured_documents'], 'document')} with {number(report['k'])} "
        "clusters in either space.",
        Markup("").join(parts),
    )


def _figures(report: Mapping[str, Any]) -> Markup:
    rows = [
        ("Adjusted Rand index (ARI)", fixed(report["ari"], 3)),
        ("Adjusted mutual information (AMI)", fixed(report["ami"], 3)),
        ("Normalised mutual information (NMI)", fixed(report["nmi"], 3)),
        ("Overlap of their structure", report["overlap"]),
        ("Documents in matched clusters", percent(report["matched_documents"])),
        *_cosine(report["document_cosine"]),
        *((f"Silhouette, {kind}", fixed(value, 3)) for kind, value in report["silhouettes"].items()),
        *(
            (f"Bits a word that the clusters tell, {kind}", fixed(bits, 3))
            for kind, bits in report["word_bits"].items()
        ),
    ]
    return table("Agreement of the two clusterings", [Column("measure", text=True), Column("value")], rows)


def _cosine(found: Mapping[str, float] | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    spread = f"{fixed(found['min'], 3)} to {fixed(found['max'], 3)}"
    return [("Cosine of a document’s two vectors, mean and range", f"{fixed(found['mean'], 3)}, {spread}")]


def _pairs(pairs: list[dict[str, Any]], first: str, second: str) -> Markup:
    columns = [
        Column(f"{first} cluster", text=True),
        Column(f"{second} cluster", text=True),
        Column("documents in both"),
        Column(f"of the {first} one"),
        Column(f"of the {second} one"),
    ]
    rows = [
        (
            clip(pair[first], NAME),
            clip(pair[second], NAME),
            number(pair["documents"]),
            percent_fixed(pair[f"of the {first} one"]),
            percent_fixed(pair[f"of the {second} one"]),
        )
        for pair in pairs[:PAIRS]
    ]
    return table("Clusters that match, those with most common documents first", columns, rows)


def _disagreements(disagreements: list[dict[str, Any]], first: str, second: str) -> Markup:
    if not disagreements:
        return Markup("")
    columns = [
        Column(f"{first} cluster", text=True),
        Column(f"{second} cluster", text=True),
        Column("documents"),
        Column("for example", text=True),
    ]
    rows = [
        (
            clip(cell[first], NAME),
            clip(cell[second], NAME),
            number(cell["documents"]),
            fill(_EXAMPLES, examples=cell["examples"], characters=EXAMPLE),
        )
        for cell in disagreements[:DISAGREEMENTS]
    ]
    return table("Where they disagree most: clusters that share documents but do not match", columns, rows)


def _picture(png: bytes, alt: str, caption: str) -> Markup:
    return fill(_PICTURE, picture=png_uri(png), alt=alt, caption=caption)
