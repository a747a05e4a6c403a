"""The sections of the report. Letters: C slices of the dataset, J values of a trait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import getitem
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from dagster_divorder.core.measure import ShufflingCheck
from dagster_divorder.core.measure.along import Binned
from dagster_divorder.core.measure.stationarity import Stationarity
from dagster_divorder.units import BATCHES
from dagster_divorder.view import charts, words
from dagster_divorder.view.charts import ASKED, SERIES, SHUFFLES
from dagster_divorder.view.drawing import by_place, data_uri, indexed, png, stacked
from dagster_divorder.view.measures import MEASURES, beside_shuffled, mix_rows, summary_row
from dagster_divorder.view.report.html import Panel, Section, chart, page, part, table
from dagster_divorder.view.verdict import SHOWN, Verdict
from dagster_divorder.view.words import ORDERS, cells, clip, fixed, listed, number, percent, points

BAR_ROWS = 96
"""Height of a bar in pixels."""
NAME, SHORT_NAME = 60, 40
"""Most characters of a value's name, in a table and in a chart."""
STRIPS = {"original": (201, 92, 20), "sequences_random": (125, 130, 140), "sequences": (43, 125, 191)}
"""Orders with strips, and their RGB, which suits light and dark mode."""
STRETCHES = 40
"""Most stretches in the table of their mixes."""
CHARTS_OF_DRIFT = 3
"""Number of features with a chart: the ones whose farthest tenths exceed shuffling most."""

PREFIX = "mean prefix deviation, tokens"
ALONG = "Along the position in the dataset, % of tokens"


@dataclass(frozen=True, eq=False)
class TraitAlong:
    """A trait along the dataset. names: of J values, the largest first. share: of the corpus's tokens, float (J,).
    mixes: by order of `ORDERS`, shares in C slices of the dataset, float (C, J) (`cluster_mix`)."""

    trait: str
    names: Sequence[str]
    share: NDArray[np.float64]
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
        title=f"How the {manifest['counts']['records']:,} documents of {corpus} were ordered",
        output_label=words.output_label(manifest),
        facts=f"{manifest['counts']['documents']:,} distinct texts · {manifest['tokens']:,} tokens{trained_on} · "
        f"{manifest['k']:,} clusters · {manifest['packing']['sequences']:,} sequences of {sequence['length']:,} tokens "
        f"· batches of {sequence['batch']:,} sequences",
        head=head(verdict),
        sections=sections,
        footer=[
            f"The output's curated_meta.json has the key {manifest['key']} and lists every figure and hash.",
            f"Made with {versions}.",
        ],
    )


def head(verdict: Verdict) -> Markup:
    """The sentences and figures at the top of the page."""

    def tile(
        title: str, unit: str, show: Callable[[Any], str], *path: str
    ) -> tuple[str, str, str, list[str]]:
        ours, shuffled, original = (show(reduce(getitem, path, verdict.metrics[name])) for name in SHOWN)
        return title, unit, ours, [f"shuffled {shuffled}", f"original {original}"]

    ours, tiles = verdict.metrics["sequences"], []
    trait, name = verdict.traits[0], clip(verdict.traits[0], SHORT_NAME)
    if ours["batches"] >= BATCHES:
        off = f"percentage points off, for one {name}, wherever a batch starts"
        unit = f"% of its tokens would have to change for the corpus’s mix by {name}"
        tiles += [
            tile("In the worst batch", off, points, "windows", "batch", trait, "worst"),
            tile("In the mean batch", unit, points, "batch_tv", trait, "mean"),
        ]
    tiles.append(tile("In a sequence", "clusters on average", fixed, "distinct", "cluster", "mean"))
    share = percent(ours["prefix"]["mean"] / max(1, ours["tokens"]))
    unit = f"tokens off the mix, on average: {share} of all {ours['tokens']:,}"
    tiles.append(tile("Up to any point", unit, number, "prefix", "mean"))
    other = "shuffling inside stretches" if verdict.stretches > 1 else "shuffling"
    return part("check", verdict.passed, verdict.compared, *verdict.sentences, tiles, other)


def asked(settings: Mapping[str, str], counts_trained: bool) -> Section:
    """The settings by name. counts_trained: shares count trained tokens."""
    counted = (
        " Shares and batches below count trained tokens, lengths of documents all." if counts_trained else ""
    )
    return Section(
        "asked",
        "What was asked",
        f"The main settings, and all others that are not at their defaults.{counted}",
        [part("asked", settings)],
    )


def bars(
    clusters: TraitAlong,
    colours: NDArray[np.float64],
    distinct: Mapping[str, Binned],
    metrics: Mapping[str, Any],
    k: int,
) -> Section:
    """Before and after: the whole dataset as bars of its clusters, and distinct clusters in every sequence.

    colours: of the clusters, RGB in [0, 1], float (J, 3). distinct: by order. metrics: of `Verdict`.
    """
    first = clusters.mixes["original"]
    whole, stacking = first.mean(axis=0, dtype=np.float64), by_place(first)

    def picture(mix: NDArray[np.floating]) -> str:
        return data_uri(png(indexed(stacked(mix[:, stacking], BAR_ROWS), colours[stacking])))

    orders = []
    for name, mix in clusters.mixes.items():
        off, largest = np.abs(mix - whole).sum(axis=1) / 2, mix.max(axis=1)
        description = (
            f"{ORDERS[name]}: in a column the largest cluster has {100 * largest.mean():.0f} % of the tokens on "
            f"average and {100 * largest.max():.0f} % at most; {100 * off.mean():.0f} % of a column’s tokens would "
            "have to change to match the corpus."
        )
        orders.append({"name": ORDERS[name].capitalize(), "picture": picture(mix), "alt": description})
    top = max((float(bins.high.max()) for bins in distinct.values() if len(bins.at)), default=1.0)
    panels, descriptions = [], []
    for name, bins in distinct.items():
        title = f"{SERIES[name].name}: {fixed(metrics[name]['distinct']['cluster']['mean'])}"
        draw = partial(charts.distinct, name=name, bins=bins, clusters=k, top=top)
        panels.append(Panel(title, draw, SERIES[name].colour))
        if len(bins.at):
            low, high = number(bins.low.min()), number(bins.high.max())
            descriptions.append(f"{title} on average, from {low} to {high}")
    ours = metrics["sequences"]
    return Section(
        "before-and-after",
        "Before and after",
        "The same documents from the first token to the last. If one colour fills a column, training sees one cluster "
        f"for a long time. Below: how many of the {k:,} clusters a sequence of {ours['sequence_length']:,} tokens "
        "holds. Documents that fill whole sequences limit this number in any order.",
        [
            part("bars", orders, picture(whole[np.newaxis]), ours["tokens"] / len(first)),
            chart(
                "distinct",
                panels,
                f"Distinct clusters in each training sequence along the dataset. {'; '.join(descriptions)}.",
                f"Distinct clusters in a sequence. {ALONG}. Line: mean of neighbouring sequences; band: from the "
                "fewest to the most. The number is the mean over all sequences; shuffled: over three shuffles, one of "
                "which is drawn.",
                across=2,
            ),
        ],
    )


def windows(verdict: Verdict) -> Section:
    """Windows against shuffling: wherever they start, up to any point, and for each trait."""
    metrics = verdict.metrics
    prefixes = {name: metrics[name]["prefix"] for name in SERIES if any(metrics[name]["prefix"]["l2"])}
    curves = [
        (np.asarray(line["share"]), np.asarray(line["l2"]), SERIES[name]) for name, line in prefixes.items()
    ]
    means = "; ".join(f"{ORDERS[name]} {number(prefix['mean'])}" for name, prefix in prefixes.items())
    caption = f"{ALONG}: L2 distance in tokens, logarithmic scale; lower is better."
    panels = []
    for trait in verdict.traits:
        for scale, title in {"cumulative": "up to each step", "batch": "in each batch"}.items():
            lines = metrics["sequences"]["curves"]["trait_errors"][trait][scale]
            at = np.asarray(lines["at"])
            shown = [*((at, np.asarray(line), SHUFFLES) for line in lines["shuffled"])]
            shown.append((at, np.asarray(lines["ours"]), SERIES["sequences"]))
            panels.append(Panel(f"{trait}, {title}", partial(charts.along, lines=shown, log=True)))
    summary = [summary_row(name, metrics[name], verdict.traits) for name in ("sequences", "sequences_random")]
    measured = [row.shown() | {"meaning": row.measure.meaning} for row in beside_shuffled(*summary)]
    whose = "the mix of their stretch" if verdict.stretches > 1 else "the corpus’s mix"
    ours, shuffled = (metrics[name]["prefix"]["mean"] for name in ("sequences", "sequences_random"))
    tokens = metrics["sequences"]["tokens"]
    return Section(
        "windows",
        "Every window, wherever it starts",
        f"How far windows of training stray from {whose}, against the mean of three shuffles. Any "
        f"window is the difference of two prefixes, so the charts below show prefixes too. Up to any point, training "
        f"sequences in order stray {number(ours)} tokens on average, {percent(ours / max(1, tokens))} of all "
        f"{tokens:,}, shuffled ones {number(shuffled)}: {MEASURES[PREFIX].compared(ours, shuffled)}. Then each trait "
        f"separately, as in “Don’t Shuffle, Optimize”.",
        [
            part("legend", [SERIES[name] for name in prefixes]),
            chart(
                "prefix",
                [Panel("all traits, up to any point", partial(charts.along, lines=curves, log=True))],
                f"Prefix deviation of each order along the dataset. Mean deviation in tokens: {means}.",
                caption,
            ),
            *compared(verdict.sequences, verdict.documents),
            part("legend", [SERIES["sequences"], SHUFFLES]),
            chart(
                "errors",
                panels,
                "Errors of each trait along the dataset, ours and three shuffles, up to each step and in each batch.",
                caption,
                across=2,
            ),
            table("Every measure: training sequences in order against shuffled ones", measured),
        ],
    )


def compared(sequences: ShufflingCheck, documents: ShufflingCheck) -> list[Markup]:
    """Tables of windows of every size and position against shuffling, and what could not be compared."""
    tables = [
        table(f"{ORDERS[order].capitalize()}: largest stray of any value’s share", check.rows())
        for order, check in (("sequences", sequences), ("curated", documents))
    ]
    notes = [f"Not compared: {reason}" for reason in sequences.skipped]
    notes += [
        f"Shuffling is already good enough for any {window}: its worst one strays by at most one percentage point"
        for window in sequences.good_enough
    ]
    return [*tables, part("notes", notes)]


def stretches(metrics: Mapping[str, Any], score: str | None) -> Section:
    """The mix along training, asked and achieved, of an order of several stretches. metrics: of the order. score: of
    the curriculum, if there is one."""
    mixes, off = metrics["mixes"], metrics.get("off_schedule")
    ends = np.asarray(mixes["ends"])
    asked, achieved = np.asarray(mixes["asked"]), np.asarray(mixes["achieved"])
    top = 108 * max(float(asked.max(initial=0.0)), float(achieved.max(initial=0.0)), 0.01)
    at = (np.arange(len(achieved)) + 0.5) / max(1, len(achieved))
    borders = np.repeat(np.append(0.0, ends), 2)[1:-1]
    panels = []
    for column, value in enumerate(mixes["values"]):
        lines = [
            (at, 100 * achieved[:, column], SERIES["sequences"]),
            (borders, 100 * asked[:, column].repeat(2), ASKED),
        ]
        panels.append(
            Panel(clip(value, SHORT_NAME) or "(empty)", partial(charts.along, lines=lines, top=top))
        )
    followed = (
        f" The mean rank of a batch is {fixed(off['achieved'], 3)} off the schedule of {score}, "
        f"{fixed(off['shuffled'], 3)} shuffled inside its windows."
        if off
        else ""
    )
    return Section(
        "stretches",
        "The mix along training",
        f"This order has {len(ends)} stretches, each with a mix of its own: phases of a mix, windows of a score, or a "
        f"beginning that stays.{followed}",
        [
            part("legend", [ASKED, SERIES["sequences"]]),
            chart(
                "mix-along",
                panels,
                f"Shares of {mixes['trait']} along the dataset, asked and achieved.",
                f"{ALONG}: % of the tokens in slices of training, by {mixes['trait']}.",
            ),
            table(
                f"{mixes['trait']}: asked and achieved shares of each stretch", mix_rows(mixes)[:STRETCHES]
            ),
        ],
    )


def drift(measured: Stationarity) -> Section:
    """Drift along the sequences, of balanced features and of others."""
    # A field with one value has equal tenths.
    with_tenths = [feature for feature in measured.features if any(feature.along)]
    farthest = sorted(with_tenths, key=lambda feature: -feature.measures["tenths"].excess)[:CHARTS_OF_DRIFT]
    descriptions = [
        f"{feature.feature} {number(max(feature.along), 2)}, shuffled {number(feature.shuffled_along[1], 2)}"
        for feature in farthest
    ]
    tenths = chart(
        "drift",
        [Panel(feature.feature, partial(charts.drift, feature=feature), "sequences") for feature in farthest],
        f"Distance of each tenth of training from the whole. Farthest tenth: {listed(descriptions)}.",
        "Distance of each tenth of the sequences from the whole, for the features whose tenths differ most; the band "
        "holds 90 % of the shuffles’ tenths. The distance is total variation for mixes, the Euclidean distance of "
        "means for vectors, standard deviations for numbers, and part of chi² for occurrences.",
    )
    rows = sorted(measured.rows(), key=lambda row: row["drifts"] == "no")
    caption = "Every feature, its worst measure, and the mean of shuffles of the same sequences"
    return Section("drift", "What drifts", measured.claim(), [tenths, table(caption, cells(rows))])


def worst(windows: Sequence[tuple[str, str, Sequence[tuple[str, Any]]]], notes: Sequence[str]) -> Section:
    """The worst windows: title, lead, and documents as (facts, text). A text is unescaped, or a list of its parts, each
    with whether it is trained on."""
    return Section(
        "worst",
        "The worst windows",
        "Where this order strays most from the corpus’s own mix, and the documents that cause it. First "
        "batches, one for each trait, then the sequences that differ most, each with a different document.",
        [part("cards", windows), part("notes", notes)],
    )


def along(lengths: Mapping[str, NDArray[np.float64]], categories: Sequence[TraitAlong]) -> Section:
    """Document lengths along the dataset, and the places of each value of a trait, a strip a value. lengths: by order,
    five quantiles in slices, float (C, 5)."""
    everywhere = np.concatenate([quantiles.ravel() for quantiles in lengths.values()])
    low, high = (max(1.0, float(limit(everywhere))) for limit in (np.nanmin, np.nanmax))
    panels, descriptions = [], []
    for name, quantiles in lengths.items():
        draw = partial(charts.lengths, name=name, quantiles=quantiles, low=low, high=high)
        panels.append(Panel(SERIES[name].name, draw, SERIES[name].colour))
        least, most = (number(float(limit(quantiles[:, 2]))) for limit in (np.nanmin, np.nanmax))
        descriptions.append(f"{ORDERS[name]}: the median at a position is from {least} to {most} tokens")
    tables = [
        table(
            f"{trait.trait}: share of the tokens at each position, from the first token (left) to the last (right)",
            [
                {trait.trait: clip(name, NAME) or "(empty)", **_strips(trait, at)}
                for at, name in enumerate(trait.names)
            ],
            strips=True,
        )
        for trait in categories
    ]
    lead = "Document lengths at each position, weighted by tokens."
    if tables:
        lead += (
            " Then the places of every value: darker means more of its tokens. Before, a source is often one block; "
            "after, a balanced source is equally strong everywhere."
        )
    return Section(
        "along",
        "Lengths and sources along the dataset" if tables else "Lengths along the dataset",
        lead,
        [
            chart(
                "lengths",
                panels,
                f"Lengths of the documents along the dataset, before and after. {'; '.join(descriptions)}.",
                f"{ALONG}: length in tokens of the document that a token belongs to, logarithmic scale. Line: median; "
                "dark: the middle half; light: from the 10th to the 90th percentile.",
                across=2,
            ),
            *tables,
        ],
    )


def clusters(shown: TraitAlong, colours: NDArray[np.float64], documents: Sequence[int], k: int) -> Section:
    """Names, sizes and places of the clusters. colours: see `bars`. documents: of each."""
    rows = [
        {
            "cluster": part(
                "named",
                "#" + "".join(f"{round(255 * float(channel)):02x}" for channel in colours[at]),
                clip(name, NAME),
            ),
            "documents": number(documents[at]),
            **_strips(shown, at),
        }
        for at, name in enumerate(shown.names)
    ]
    return Section(
        "clusters",
        "The clusters",
        f"{k:,} clusters, found by k-means on the documents’ vectors, sorted by tokens.",
        [table("Clusters by tokens, and their places", rows, strips=True)],
    )


def _strips(trait: TraitAlong, at: int) -> dict[str, Any]:
    """Cells of a value's row: its share of all tokens, and its places in each order."""
    row: dict[str, Any] = {"of all tokens": f"{points(float(trait.share[at]))} %"}
    for order, colour in STRIPS.items():
        shares = trait.mixes[order][:, at]
        low, high = percent(float(shares.min())), percent(float(shares.max()))
        slices = f"{np.count_nonzero(shares)} of {len(shares)} slices"
        description = f"{ORDERS[order]}: from {low} to {high} of a slice, in {slices}"
        strip = part("strip", strip_uri(shares, colour), description)
        row[ORDERS[order].removeprefix("training ")] = strip
    return row


def strip_uri(shares: NDArray[np.floating], colour: tuple[int, int, int]) -> str:
    """A PNG of one pixel a slice, for shares in [0, 1], (C,). Opacity is the share's cube root, so that small shares
    show on light and dark. The style sheet stretches the PNG."""
    import PIL.Image

    pixels = np.empty((1, len(shares), 4), np.uint8)
    pixels[..., :3] = colour
    pixels[..., 3] = np.rint(255 * np.cbrt(np.clip(shares, 0.0, 1.0)))
    return data_uri(png(PIL.Image.fromarray(pixels)))


def last_run(
    stages: Sequence[Mapping[str, str]], delta: Mapping[str, int], missing: Mapping[str, tuple[str, str]]
) -> Section:
    """Time and new documents of each stage, and missing evidence. delta: of the manifest. missing: stage -> (content of
    its section, why there is none)."""
    new, kept, gone = (delta[f"{name}_documents"] for name in ("new", "reused", "dropped"))
    before = (
        f"Compared with the previous output, {number(new)} documents are new, {number(kept)} are kept, "
        f"{number(gone)} are gone."
        if kept or gone
        else "It is the first output in its folder."
    )
    return Section(
        "run",
        "The last run, and what is missing here" if missing else "The last run",
        f"The documents that each stage computed and reused, and how long it took, up to this page. {before}",
        [table("Last run", stages), *([part("missing", missing)] if missing else [])],
    )
