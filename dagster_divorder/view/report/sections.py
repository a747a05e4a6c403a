"""The sections that only the page has; all others are what stages show. Letters: C slices of the dataset, J values of a
trait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from dagster_divorder.view import charts, words
from dagster_divorder.view.charts import ALONG, SERIES
from dagster_divorder.view.drawing import data_uri, pixels_png
from dagster_divorder.view.measures import SHARE_OF, TV_OF, followed, measures, summary_row
from dagster_divorder.view.report.html import Section, page, part, table
from dagster_divorder.view.shown import Chart, Panel, Shown
from dagster_divorder.view.verdict import SHOWN, Verdict
from dagster_divorder.view.words import ORDERS, TRAIN_ON, clip, number, percent, points

NAME = 40
"""Most characters of a value's name."""
STRIPS = {
    "original": (0.79, 0.36, 0.08),
    "sequences_random": (0.49, 0.51, 0.55),
    "sequences": (0.17, 0.49, 0.75),
}
"""Orders with strips, and their RGB, which suits light and dark mode."""
PREFIX = "mean prefix deviation, tokens"
TILES = {
    TV_OF: "In the mean batch",
    SHARE_OF: "In the worst batch",
    "distinct clusters a sequence": "In a sequence",
    PREFIX: "Up to any point",
}
"""Beginning of a measure's name -> where it is measured."""


class TraitAlong(NamedTuple):
    """A trait along the dataset. names: of J values, the largest first. mixes: by order of `ORDERS`, the values' shares
    in C slices of the dataset, float (C, J) (`cluster_mix`)."""

    trait: str
    names: Sequence[str]
    mixes: Mapping[str, NDArray[np.float32]]


def report(
    manifest: Mapping[str, Any], verdict: Verdict, trained_tokens: int | None, sections: Sequence[Section]
) -> bytes:
    """The page. trained_tokens: None if no input holds conversations."""
    sequence = manifest["sequence"]
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    trained_on = "" if trained_tokens is None else f", {trained_tokens:,} trained on"
    corpus = words.corpus_name(manifest["input"]["files"])
    return page(
        sections,
        title=f"How the {manifest['counts']['records']:,} documents of {corpus} were ordered",
        output_label=words.output_label(manifest),
        facts=f"{manifest['counts']['documents']:,} distinct texts · {manifest['tokens']:,} tokens{trained_on} · "
        f"{manifest['k']:,} clusters · {manifest['packing']['sequences']:,} sequences of {sequence['length']:,} tokens "
        f"· batches of {sequence['batch']:,} sequences",
        head=head(verdict),
        footer=[
            f"The output's curated_meta.json has the key {manifest['key']} and lists every figure and hash.",
            f"Made with {versions}.",
        ],
    )


def head(verdict: Verdict) -> Markup:
    """The sentences and figures at the top of the page."""
    rows = {name: summary_row(name, verdict.metrics[name], verdict.traits) for name in SHOWN}
    tiles = []
    for name, measure in measures([*followed(verdict.traits), PREFIX]).items():
        ours, shuffled, original = (measure.show(rows[order][name]) for order in SHOWN)
        if rows[TRAIN_ON][name] is not None:
            title = next(where for begins, where in TILES.items() if name.startswith(begins))
            tiles.append((title, measure, ours, [f"shuffled {shuffled}", f"original {original}"]))
    other = "shuffling inside stretches" if verdict.stretches > 1 else "shuffling"
    return part("check", verdict.passed, verdict.compared, *verdict.sentences, tiles, other)


def along_training(
    lengths: Mapping[str, NDArray[np.float64]],
    categories: Sequence[TraitAlong],
) -> Section:
    """Document lengths along the dataset, and the places of each value of a trait, a strip a value. lengths: by
    order, five quantiles in slices, float (C, 5)."""
    everywhere = np.concatenate([quantiles.ravel() for quantiles in lengths.values()])
    limits = max(1.0, float(np.nanmin(everywhere))) / 1.3, 1.3 * max(1.0, float(np.nanmax(everywhere)))
    panels, medians = [], []
    for name, quantiles in lengths.items():
        series, at = SERIES[name], (np.arange(len(quantiles)) + 0.5) / len(quantiles)
        bands = [(at, quantiles[:, outer], quantiles[:, 4 - outer], series) for outer in (0, 1)]
        draw = partial(
            charts.along, lines=[(at, quantiles[:, 2], series)], bands=bands, log=True, limits=limits
        )
        panels.append(Panel(series.name, draw, series.colour))
        least, most = (number(float(limit(quantiles[:, 2]))) for limit in (np.nanmin, np.nanmax))
        medians.append(f"{series.name}: the median at a position is from {least} to {most} tokens")
    shown: dict[str, Any] = {
        "lengths": Chart(
            panels,
            f"Lengths of the documents along the dataset, before and after. {'; '.join(medians)}.",
            f"Length in tokens of the document that a token belongs to, logarithmic scale. {ALONG}. Line: median; "
            "dark: the middle half; light: from the 10th to the 90th percentile.",
        )
    }
    for trait in categories:
        heads = [clip(name, NAME) or "(empty)" for name in trait.names]
        shown[f"strips of {trait.trait}"] = _strips(trait, trait.trait, heads)
    lead = "Document lengths at each position, weighted by tokens."
    if categories:
        lead += (
            " Then where the tokens of each value lie, from the first (left) to the last: darker means more."
        )
    return Section("along", "Along training", lead, shown)


def clusters(
    along: TraitAlong, colours: NDArray[np.float64], documents: Sequence[int], k: int, shown: Shown
) -> Section:
    """Names, sizes and places of the clusters. colours: RGB in [0, 1], float (J, 3). documents: of each. shown: by the
    stage `clusters`."""
    from matplotlib.colors import to_hex

    heads = [part("named", to_hex(colours[at]), clip(name, NAME)) for at, name in enumerate(along.names)]
    return Section(
        "clusters",
        "Clusters",
        f"{k:,} clusters, found by k-means on the documents’ vectors, sorted by tokens.",
        {"strips": _strips(along, "cluster", heads, documents), **shown},
    )


def _strips(trait: TraitAlong, what: str, heads: Sequence[str], documents: Sequence[int] = ()) -> Markup:
    """A table of the values: head, documents, share of all tokens, and places in each order, as pictures of one pixel a
    slice that the style sheet stretches. Opacity is the share's cube root, so that small shares show on light and
    dark."""
    rows = []
    share = trait.mixes["original"].mean(axis=0, dtype=np.float64)
    for value, head in enumerate(heads):
        row: dict[str, Any] = {what: head}
        if documents:
            row["documents"] = number(documents[value])
        row["of all tokens"] = f"{points(float(share[value]))} %"
        for order, colour in STRIPS.items():
            shares = trait.mixes[order][:, value]
            pixels = np.empty((1, len(shares), 4))
            pixels[..., :3], pixels[..., 3] = colour, np.cbrt(np.clip(shares, 0.0, 1.0))
            range_ = f"{percent(float(shares.min()))} to {percent(float(shares.max()))} of a slice"
            picture = part("strip", data_uri(pixels_png(pixels)), f"{ORDERS[order]}: {range_}")
            row[ORDERS[order].removeprefix("training ")] = picture
        rows.append(row)
    return table(f"Where the tokens of each {what} lie", rows, strips=True)


def last_run(
    stages: Sequence[Mapping[str, str]],
    settings: Mapping[str, str],
    missing: Mapping[str, tuple[str, str]],
) -> Section:
    """Time and new documents of each stage, the settings, and missing evidence. missing: stage -> (content of its
    section, why there is none)."""
    return Section(
        "run",
        "The last run",
        "The documents that each stage computed and reused, and how long it took, up to this page.",
        {
            "stages": table("Stages", stages),
            "settings": table(
                "Settings that are not at their defaults",
                [{"setting": name, "value": value} for name, value in settings.items()],
            ),
            "missing": part("missing", missing) if missing else Markup(""),
        },
    )
