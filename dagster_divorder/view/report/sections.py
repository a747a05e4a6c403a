"""The sections of the report, in reading order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from dagster_divorder.units import duration
from dagster_divorder.view import charts, words
from dagster_divorder.view.charts import ASKED, SERIES, SHUFFLES
from dagster_divorder.view.drawing import data_uri, indexed, png, stacked, svg
from dagster_divorder.view.evidence import order_rows, rate_rows, source_rows
from dagster_divorder.view.measures import MEASURES, beside_shuffled, mix_rows, summary_row
from dagster_divorder.view.report import check
from dagster_divorder.view.report.html import Panel, Section, chart, page, part, table
from dagster_divorder.view.report.numbers import Evidence, Numbers, TraitAlong
from dagster_divorder.view.strategies import conclusions
from dagster_divorder.view.words import ORDERS, clip, count, fixed, listed, number, percent, points

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
POINTS, MAP = 8_000, (880, 560)
"""Documents on the map, and its size in CSS pixels."""
PAIRS, DISAGREEMENTS = 15, 8
"""Most pairs of clusters, and most disagreements of two spaces."""

ALONG = "Along the position in the dataset, % of tokens"


def report(data: Numbers) -> tuple[bytes, list[str]]:
    """The page's bytes, and the titles of its sections."""
    sections = [
        asked(data),
        bars(data),
        windows(data),
        *([mix(data)] if data.settings.repeats else []),
        *([chosen(data)] if data.chosen else []),
        *([stretches(data)] if data.check.stretches > 1 else []),
        drift(data),
        *([worst(data)] if data.worst else []),
        along(data),
        clusters(data),
        *([strategies(data.strategies, data)] if data.strategies else []),
        *([calibration(*data.calibration, data)] if data.calibration else []),
        *([agreement(data)] if data.agreement else []),
        *([diversity(data)] if data.diversity else []),
        *([trained(data.trained)] if data.trained else []),
        *map(other, data.others),
        last_run(data),
    ]
    manifest, sequence = data.manifest, data.manifest["sequence"]
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    trained_on = "" if data.trained_tokens is None else f", {data.trained_tokens:,} trained on"
    corpus = words.corpus_name(manifest["input"]["files"])
    html = page(
        title=f"How the {manifest['counts']['records']:,} documents of {corpus} were ordered",
        output_label=words.output_label(manifest),
        facts=f"{manifest['counts']['documents']:,} distinct texts · {manifest['tokens']:,} tokens{trained_on} · "
        f"{manifest['k']:,} clusters · {manifest['packing']['sequences']:,} sequences of {sequence['length']:,} tokens "
        f"· batches of {sequence['batch']:,} sequences",
        head=check.head(data.check),
        sections=sections,
        footer=[
            f"The output's curated_meta.json has the key {manifest['key']} and lists every figure and hash.",
            f"Made with {versions}.",
        ],
    )
    return html, [section.title for section in sections]


def asked(data: Numbers) -> Section:
    return Section(
        "asked",
        "What was asked",
        "The settings that decide the order, in words.",
        [
            part(
                "asked",
                *(data.settings, data.space, data.manifest["k"], data.manifest["input"]["files"]),
                None
                if data.trained_tokens is None
                else percent(data.trained_tokens / data.manifest["tokens"]),
            )
        ],
    )


def bars(data: Numbers) -> Section:
    """Before and after: the whole dataset as bars of its clusters, and distinct clusters in every sequence."""
    first = data.clusters.mixes["original"]
    whole = first.mean(axis=0, dtype=np.float64)

    def picture(mix: NDArray[np.floating]) -> str:
        return data_uri(png(indexed(stacked(mix[:, data.stacking], BAR_ROWS), data.colours[data.stacking])))

    def description(name: str, mix: NDArray[np.floating]) -> str:
        off, largest = np.abs(mix - whole).sum(axis=1) / 2, mix.max(axis=1)
        return (
            f"{name}: in a column the largest cluster has {100 * largest.mean():.0f} % of the tokens on average and "
            f"{100 * largest.max():.0f} % at most; {100 * off.mean():.0f} % of a column’s tokens would have to "
            "change to match the corpus."
        )

    orders = [
        {"name": ORDERS[name].capitalize(), "picture": picture(mix), "alt": description(ORDERS[name], mix)}
        for name, mix in data.clusters.mixes.items()
    ]
    corpus = picture(whole[np.newaxis])
    return Section(
        "before-and-after",
        "Before and after",
        "The same documents from the first token to the last. If one colour fills a column, training sees one topic "
        f"for a long time. Below: how many of the {data.manifest['k']:,} clusters a sequence of "
        f"{data.settings.sequence.length:,} tokens holds. Documents that fill whole sequences limit this number in "
        f"any order.",
        [
            part("bars", orders, corpus, True, data.tokens / len(first), data.other_clusters),
            _distinct(data),
        ],
    )


def _distinct(data: Numbers) -> Markup:
    top = max((float(bins.high.max()) for bins in data.distinct.values() if len(bins.at)), default=1.0)
    panels, descriptions = [], []
    for name, bins in data.distinct.items():
        title = f"{SERIES[name].name}: {fixed(data.check.metrics[name]['split']['mean'])}"
        draw = partial(charts.distinct, orders={name: bins}, clusters=data.manifest["k"], top=top)
        panels.append(Panel(title, draw, SERIES[name].colour))
        if len(bins.at):
            low, high = number(bins.low.min()), number(bins.high.max())
            descriptions.append(f"{title} on average, from {low} to {high}")
    return chart(
        "distinct",
        panels,
        f"Distinct clusters in each training sequence along the dataset. {'; '.join(descriptions)}.",
        f"Distinct clusters in a sequence. {ALONG}. Line: mean of neighbouring sequences; band: from the fewest to "
        f"the most. The number is the mean over all sequences; shuffled: over three shuffles, one of which is drawn.",
        across=2,
    )


def windows(data: Numbers) -> Section:
    """Windows against shuffling: wherever they start, up to any point, and for each trait."""
    metrics, traits = data.check.metrics, list(data.settings.order.traits)
    prefixes = {name: metrics[name]["prefix"] for name in SERIES if any(metrics[name]["prefix"]["l2"])}
    curves = [
        (np.asarray(line["share"]), np.asarray(line["l2"]), SERIES[name]) for name, line in prefixes.items()
    ]
    means = "; ".join(f"{ORDERS[name]} {number(prefix['mean'])}" for name, prefix in prefixes.items())
    caption = f"{ALONG}: L2 distance in tokens, logarithmic scale; lower is better."
    panels, rows = [], []
    for trait in traits:
        for scale, title in {"cumulative": "up to each step", "batch": "in each batch"}.items():
            lines = metrics["sequences"]["curves"]["trait_errors"][trait][scale]
            at = np.asarray(lines["at"])
            shown = [*((at, np.asarray(line), SHUFFLES) for line in lines["shuffled"])]
            shown.append((at, np.asarray(lines["ours"]), SERIES["sequences"]))
            panels.append(Panel(f"{trait}, {title}", partial(charts.along, lines=shown, log=True)))
            error = metrics["sequences"]["trait_errors"][trait][scale]
            rows.append(
                {
                    "trait": trait,
                    "error": f"{title}, of {number(error['steps'])}",
                    "mean, ours": number(error["mean"]),
                    "mean, best shuffle": number(error["shuffled_mean"]),
                    "worst, ours": number(error["worst"]),
                    "least of any shuffle": number(error["shuffled_least"]),
                    "below all shuffles": percent(error["better"]),
                }
            )
    summary = [summary_row(name, metrics[name]) for name in ("sequences", "sequences_random")]
    measured = [row.shown() | {"meaning": row.measure.meaning} for row in beside_shuffled(*summary)]
    whose = "the mix of their stretch" if data.check.stretches > 1 else "the corpus’s mix"
    ours, shuffled = (metrics[name]["prefix"]["mean"] for name in ("sequences", "sequences_random"))
    return Section(
        "windows",
        "Every window, wherever it starts",
        f"How far windows of training stray from {whose}, against the mean of three shuffles. Any "
        f"window is the difference of two prefixes, so the charts below show prefixes too. Up to any point, training "
        f"sequences in order stray {number(ours)} tokens on average, {percent(ours / max(1, data.tokens))} of all "
        f"{data.tokens:,}, shuffled ones {number(shuffled)}: {words.times(ours, shuffled)}. Then each trait "
        f"separately, as in “Don’t Shuffle, Optimize”.",
        [
            part("legend", [SERIES[name] for name in prefixes]),
            chart(
                "prefix",
                [Panel("all traits, up to any point", partial(charts.along, lines=curves, log=True))],
                f"Prefix deviation of each order along the dataset. Mean deviation in tokens: {means}.",
                caption,
            ),
            *check.windows(data.check),
            part("legend", [SERIES["sequences"], SHUFFLES]),
            chart(
                "errors",
                panels,
                "Errors of each trait along the dataset, ours and three shuffles, up to each step and in each batch.",
                caption,
                across=2,
            ),
            table("Errors in tokens: training sequences in order against three shuffles", rows),
            table("Every measure: training sequences in order against shuffled ones", measured),
        ],
    )


def mix(data: Numbers) -> Section:
    """How often the records of each value of `mixing.trait` are trained on, planned and actual."""
    trait, values = data.manifest["mixing"]["trait"], data.manifest["mixing"]["values"]
    traits = [known for known in (data.clusters, *data.categories) if known.trait == trait]
    slices = dict(zip(traits[0].names, traits[0].mixes["sequences"].T, strict=True)) if traits else {}
    rows = []
    for row in sorted(values, key=lambda row: -row["tokens trained on"]):
        shares = slices.get(row["value"])
        rows.append(
            {
                trait: clip(row["value"], NAME),
                "tokens there are": number(row["unique tokens"]),
                "of which trained on": number(row["unique tokens trained on"]),
                "epochs": fixed(row["epochs"], 2),
                "planned": f"{points(row['planned share'])} %",
                "trained on": f"{points(row['share'])} %",
                "in a slice, lowest": "–" if shares is None else f"{points(float(shares.min()))} %",
                "highest": "–" if shares is None else f"{points(float(shares.max()))} %",
            }
        )
    tokens, unique = (sum(row[name] for row in values) for name in ("tokens trained on", "unique tokens trained on"))
    return Section(
        "mix",
        "How often each record is trained on",
        f"An epoch has {number(tokens)} tokens, {number(unique)} of them distinct. Values of {trait} with fewer "
        f"tokens than their share are read again, with repeats as far apart as possible; values with more are read "
        f"in part, evenly.",
        [table("The mix, planned and actual", rows)],
    )


def chosen(data: Numbers) -> Section:
    """The selection, and what other methods would choose."""
    return Section(
        "chosen",
        "What was chosen",
        f"{data.settings.selection.method} chose the records to train on; other methods with the same budget are "
        f"beside it. A Vendi score is the number of different things, as far as vectors tell.",
        [table("Choices; used: the one to train on", words.cells(data.chosen["choices"]))],
    )


def diversity(data: Numbers) -> Section:
    """Diversity of the corpus, of its parts and of batches."""
    groups = data.diversity["groups"]
    named = [
        {
            **row,
            "value": data.manifest["cluster_names"][int(row["value"])]
            if row["of"] == "cluster"
            else clip(row["value"], NAME),
        }
        for row in groups
    ]
    batches = data.diversity.get("batches", ())
    return Section(
        "diversity",
        "How diverse is the corpus?",
        f"{count(groups[0]['documents'], 'document')} of the corpus are as diverse as {fixed(groups[0]['vendi'], 1)} "
        f"unrelated ones, as far as vectors tell (the Vendi score). Smaller sets score lower, so compare sets of "
        f"similar size. All without it: the corpus without this source.",
        [
            table("Diversity (Vendi score) of the corpus, its sources and its clusters", words.cells(named)),
            table("Diversity (Vendi score) of batches, by order", words.cells(batches)),
        ],
    )


def other(evidence: Evidence) -> Section:
    """The section of a stage without its own section."""
    figures = [
        {"figure": name.replace("_", " "), "value": value}
        for name, value in evidence.figures.items()
        if isinstance(value, (str, float, int))
    ]
    return Section(
        evidence.stage.replace("_", "-"),
        evidence.title[0].upper() + evidence.title[1:],
        evidence.description,
        [
            *(part("picture", data_uri(png), shows, shows) for shows, png in evidence.pictures.items()),
            table("Figures", words.cells(figures)),
            *(
                table(name.replace("_", " ").capitalize(), words.cells(rows))
                for name, rows in evidence.tables.items()
            ),
        ],
    )


def stretches(data: Numbers) -> Section:
    """The mix along training, asked and achieved, of an order of several stretches."""
    metrics = data.check.metrics["sequences"]
    mixes, off = metrics["mixes"], metrics.get("off_schedule")
    ends = np.asarray(mixes["ends"])
    asked, achieved = np.asarray(mixes["asked"]), np.asarray(mixes["achieved"])
    top = 108 * max(float(asked.max(initial=0.0)), float(achieved.max(initial=0.0)), 0.01)
    at = (np.arange(len(achieved)) + 0.5) / max(1, len(achieved))
    borders = np.repeat(np.append(0.0, ends), 2)[1:-1]
    panels = [
        Panel(
            clip(value, SHORT_NAME) or "(empty)",
            partial(
                charts.along,
                lines=[
                    (at, 100 * achieved[:, number], SERIES["sequences"]),
                    (borders, 100 * asked[:, number].repeat(2), ASKED),
                ],
                top=top,
            ),
        )
        for number, value in enumerate(mixes["values"])
    ]
    followed = (
        f" The mean rank of a batch is {fixed(off['achieved'], 3)} off the schedule of "
        f"{data.settings.curriculum.score}, {fixed(off['shuffled'], 3)} shuffled inside its windows."
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


def drift(data: Numbers) -> Section:
    """Drift along the sequences, of balanced features and of others."""
    # A field with one value has equal tenths.
    with_tenths = [feature for feature in data.drift.features if any(feature.along)]
    farthest = sorted(with_tenths, key=lambda feature: -feature.measures["tenths"].excess)[:CHARTS_OF_DRIFT]
    heads = {
        "rank": "rank correlation",
        "tenths": "farthest tenth",
        "batch": "mean batch",
        "neighbours": "alike",
    }
    rows = [
        {
            "feature": feature.feature,
            "balanced": "yes" if feature.seen else "no",
            **{
                f"{head} (shuffled)": f"{number(measure.value, 2)} ({number(measure.shuffled, 2)})"
                if measure
                else "–"
                for name, head in heads.items()
                for measure in [feature.measures.get(name)]
            },
            "check": "drifts" if feature.drifts else "still",
        }
        for feature in sorted(data.drift.by_excess, key=lambda feature: not feature.drifts)
    ]
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
    caption = "Every feature, and in brackets the mean of shuffles of the same sequences"
    return Section("drift", "What drifts", data.drift.claim(), [tenths, table(caption, rows)])


PIECES = "; packing.piece_tokens cuts long documents into pieces, at the cost of long context"


def worst(data: Numbers) -> Section:
    """The worst windows, with their documents."""
    sequences = data.manifest["packing"]["sequences"]
    alone = (
        f"{number(data.alone)} of {number(sequences)} sequences hold tokens of only one document, which no order of "
        f"whole documents can mix{'' if data.settings.packing.method == 'none' else PIECES}"
        if data.alone
        else "Every sequence holds more than one document"
    )
    marked = ["Bold: trained on"] if data.trained_tokens is not None else []
    return Section(
        "worst",
        "The worst windows",
        "Where this order strays most from the corpus’s own mix, and the documents that cause it. First "
        "batches, one for each trait, then the sequences that differ most, each with a different document.",
        [part("cards", data.worst), part("notes", [alone, *marked])],
    )


def along(data: Numbers) -> Section:
    """Document lengths along the dataset, and the places of each value of a trait, a strip a value."""
    lengths = np.concatenate([quantiles.ravel() for quantiles in data.lengths.values()])
    low, high = (max(1.0, float(limit(lengths))) for limit in (np.nanmin, np.nanmax))
    panels, descriptions = [], []
    for name, quantiles in data.lengths.items():
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
        for trait in data.categories
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


def clusters(data: Numbers) -> Section:
    """Names, sizes and places of the clusters, and the map of documents if it exists."""
    rows = [
        {
            "cluster": part(
                "named",
                "#" + "".join(f"{round(255 * float(channel)):02x}" for channel in data.colours[at]),
                clip(name, NAME),
            ),
            "documents": number(data.cluster_documents[at]),
            **_strips(data.clusters, at),
        }
        for at, name in enumerate(data.clusters.names)
    ]
    return Section(
        "clusters",
        "The clusters",
        f"{data.manifest['k']:,} topics, found by k-means on the documents’ vectors, sorted by tokens.",
        [
            table("Clusters by tokens, and their places", rows, strips=True),
            *([_map(data)] if data.map else []),
        ],
    )


def _map(data: Numbers) -> Markup:
    assert data.map
    xy, rows, names = data.map.xy[:POINTS], data.map.rows[:POINTS], data.clusters.names
    counts = np.bincount(rows, minlength=len(names))
    largest = [clip(names[at], SHORT_NAME) for at in np.argsort(-counts, kind="stable")[:8] if counts[at]]

    def draw(figure: Any) -> None:
        charts.documents_map(figure.add_axes((0, 0, 1, 1)), xy, rows, names, data.colours, outlined=False)

    return part(
        "map",
        svg("map", *MAP, draw),
        f"A map of {number(len(xy))} documents as points in the colours of their clusters; the largest are "
        f"{', '.join(largest)}.",
        f"UMAP of {number(len(xy))} of {number(data.map.documents)} documents: similar documents are near each "
        f"other; distances between groups mean little. Colours are as in the table.",
    )


def _strips(trait: TraitAlong, at: int) -> dict[str, Any]:
    """Cells of a value's row: its share of all tokens, and its places in each order."""
    cells: dict[str, Any] = {"of all tokens": f"{points(float(trait.share[at]))} %"}
    for order, colour in STRIPS.items():
        shares = trait.mixes[order][:, at]
        low, high = percent(float(shares.min())), percent(float(shares.max()))
        slices = f"{np.count_nonzero(shares)} of {len(shares)} slices"
        description = f"{ORDERS[order]}: from {low} to {high} of a slice, in {slices}"
        strip = part("strip", strip_uri(shares, colour), description)
        cells[ORDERS[order].removeprefix("training ")] = strip
    return cells


def strip_uri(shares: NDArray[np.floating], colour: tuple[int, int, int]) -> str:
    """A PNG of one pixel a slice, for shares in [0, 1], (C,). Opacity is the share's cube root, so that small shares
    show on light and dark. The style sheet stretches the PNG."""
    import PIL.Image

    pixels = np.empty((1, len(shares), 4), np.uint8)
    pixels[..., :3] = colour
    pixels[..., 3] = np.rint(255 * np.cbrt(np.clip(shares, 0.0, 1.0)))
    return data_uri(png(PIL.Image.fromarray(pixels)))


def strategies(rows: Sequence[Mapping[str, Any]], data: Numbers) -> Section:
    """Strategies compared on this corpus. rows: of `stages.evidence.strategy_comparison.row`."""
    ours = (data.settings.order.strategy, data.settings.sequence.strategy)
    shown = [
        {
            "documents": row["documents"],
            "sequences": row["sequences"],
            **{measure.label: measure.show(row[name]) for name, measure in MEASURES.items() if name in row},
            "time": duration(row["seconds, documents"] + row["seconds, sequences"]),
        }
        for row in rows
    ]
    drawing = chart(
        "trade-off",
        [Panel("batch TV, mean, %, by clusters in a sequence", partial(charts.trade_off, rows=rows))]
        if all(row["batch TV, clusters"] for row in rows)
        else [],
        " ".join(conclusions(rows)),
        "Each dot is a pair of strategies; up is farther from the mix, right is more topics in a sequence",
    )
    marked = [at for at, row in enumerate(rows) if (row["documents"], row["sequences"]) == ours]
    return Section(
        "strategies",
        "Strategies on this corpus",
        f"{' '.join(conclusions(rows))} "
        "Every pair of a document and a sequence strategy, compared with the corpus's own mix. More is better for "
        "clusters in a sequence, less for everything else. Flush: a document that does not fit starts a sequence "
        "instead of being cut. TV: the share of a batch’s tokens that would have to change to match the corpus. "
        "Features that drift are farther from the whole along the order than in any shuffle; their columns are the "
        "largest rank correlation of a feature with position, the farthest tenth, and the mean batch over all "
        "features.",
        [drawing, table("Strategies compared; this output’s pair is marked", shown, marked)],
    )


def trained(summary: Mapping[str, Any]) -> Section:
    """Effects of orders on small models. summary: of `stages.evidence.training_evidence`."""
    orders, seams = summary["orders"], summary["epochs"] > 1
    rows = order_rows(summary)
    descriptions = [f"{row['order']} {row['less shuffled']}" for row in rows]
    panels = [
        Panel("training loss", partial(charts.training_losses, orders=orders, epochs=summary["epochs"]))
    ]
    if seams:
        panels += [
            Panel(f"{title} around the seam", partial(charts.around_seam, orders=orders, figure=figure))
            for title, figure in (("loss", "around the seam"), ("gradient norm", "norms around the seam"))
        ]
    panels.append(Panel("stable rank less shuffled", partial(charts.stable_ranks, layers=summary["layers"])))
    parts = [
        chart(
            "trained",
            panels,
            f"Training in several orders. {' '.join(summary['verdict'])}",
            "Mean over seeds. The stable rank of each weight matrix’s gradient at the end is the number of "
            "directions in which a batch pulls.",
            across=2,
        ),
        chart(
            "heldout",
            [
                Panel(
                    "held-out loss less shuffled sequences’ loss",
                    partial(charts.heldout_differences, rows=orders, sources=summary["sources"]),
                )
            ],
            f"Held-out loss less shuffled sequences’ loss: {'; '.join(descriptions)}.",
            "Bars: intervals of 95 % over seeds. “all”: the mean over sources.",
        ),
        table("Orders", rows),
        table(
            "Held-out loss by source; * differs from shuffled sequences beyond noise", source_rows(summary)
        ),
    ]
    if rates := rate_rows(summary):
        parts.append(table("Held-out loss by learning rate", rates))
    return Section(
        "trained",
        "Does the order help?",
        f"{summary['model']} models of {number(summary['weights'])} weights, trained on the same tokens from the same "
        f"{count(summary['seeds'], 'start')}, {count(summary['epochs'], 'epoch')} of {number(summary['steps'])} steps. "
        f"{' '.join(summary['verdict'])}",
        [*parts, *([part("notes", summary["notes"])] if summary["notes"] else [])],
    )


def calibration(rows: Sequence[Mapping[str, Any]], notes: Sequence[str], data: Numbers) -> Section:
    """The choice of the number of clusters. rows: the table of `stages.topics.k_calibration`, by rising k."""
    (marked,) = (at for at, row in enumerate(rows) if row["recommended"])
    chosen = f"{number(rows[marked]['k'])} clusters"
    shown = [
        {
            "k": number(row["k"]),
            "silhouette": fixed(row["silhouette"], 3),
            **{f"{name} cluster": number(row[name]) for name in ("smallest", "median", "largest")},
        }
        for row in rows
    ]
    drawing = chart(
        "calibration",
        [Panel("Silhouette, mean", partial(charts.silhouette, rows=rows))],
        f"Silhouette for {number(rows[0]['k'])} to {number(rows[-1]['k'])} clusters. The best is "
        f"{fixed(max(row['silhouette'] for row in rows), 3)}; {chosen} recommended.",
        "Against the number of clusters. Grey: close to the best. Upright line: the highest number in the grey band.",
    )
    return Section(
        "calibration",
        "How many clusters?",
        f"Calibration recommends {chosen}; this output has {number(data.manifest['k'])}.",
        [
            drawing,
            table("Numbers of clusters tried; the recommended one is marked", shown, [marked]),
            part("notes", notes),
        ],
    )


def agreement(data: Numbers) -> Section:
    """Whether two kinds of vectors find the same clusters."""
    assert data.agreement
    report, heatmap = data.agreement.report, data.agreement.heatmap
    first, second = report["spaces"]
    matched = percent(report["matched_documents"])
    figures = {
        "Adjusted Rand index (ARI)": fixed(report["ari"], 3),
        "Normalised mutual information (NMI)": fixed(report["nmi"], 3),
        "Overlap of their structure": report["overlap"],
        "Documents in matched clusters": matched,
    }
    if cosine := report["document_cosine"]:
        mean, low, high = (fixed(cosine[name], 3) for name in ("mean", "min", "max"))
        figures["Cosine of a document’s two vectors, mean and range"] = f"{mean}, {low} to {high}"
    for kind, value in report["told_by_words"].items():
        figures[f"How well words tell the clusters, {kind}"] = fixed(value, 3)
    pairs = [
        {
            f"{first} cluster": clip(row[first], NAME),
            f"{second} cluster": clip(row[second], NAME),
            "documents in both": number(row["documents"]),
            **{f"of the {kind} one": f"{points(row[f'of the {kind} one'])} %" for kind in (first, second)},
        }
        for row in data.agreement.pairs[:PAIRS]
    ]
    cards = [
        (
            f"{first}: {clip(row[first], NAME)} / {second}: {clip(row[second], NAME)}",
            f"{count(row['documents'], 'document')}, such as:",
            [("", text) for text in row["examples"]],
        )
        for row in data.agreement.disagreements[:DISAGREEMENTS]
    ]
    parts = [
        table(
            "Agreement of the two clusterings",
            [{"measure": title, "value": value} for title, value in figures.items()],
        ),
        table("Matched clusters, most common documents first", pairs),
    ]
    if heatmap:
        on_diagonal = f"Matched clusters are on the diagonal, which holds {matched} of the documents."
        shares = f"Share of each {first} cluster’s documents in each {second} cluster."
        parts.append(part("picture", data_uri(heatmap), on_diagonal, shares))
    if report["note"]:
        parts.append(part("notes", [report["note"]]))
    if cards:
        parts.append(
            part("folded", "Where they disagree most: clusters that share documents but do not match", cards)
        )
    return Section(
        "agreement",
        f"Do {first} and {second} vectors agree?",
        f"{report['conclusion']} Measured on {count(report['measured_documents'], 'document')} with "
        f"{number(report['k'])} clusters in either space.",
        parts,
    )


def last_run(data: Numbers) -> Section:
    """Time and new documents of each stage, and missing evidence."""

    def row(stage: Any, computed: str, seconds: float, date: str = "") -> dict[str, Any]:
        return {"stage": stage, "in the last run": computed, "time": duration(seconds), "made": date}

    rows = [
        row(
            part("stage", run.stage, run.part),
            "kept" if not run.computed
            else "all computed" if run.computed == run.documents
            else f"{number(run.computed)} of {number(run.documents)} computed",
            run.seconds,
            run.date,
        )
        for run in data.runs
    ]  # fmt: skip
    computed = sum(run.computed > 0 for run in data.runs)
    total = row(
        "all stages",
        f"{computed} computed, {len(rows) - computed} kept",
        sum(run.seconds for run in data.runs),
    )
    new, kept, gone = (data.manifest["delta"][f"{name}_documents"] for name in ("new", "reused", "dropped"))
    before = (
        f"Compared with the previous output, {number(new)} documents are new, {number(kept)} are kept, "
        f"{number(gone)} are gone."
        if kept or gone
        else "It is the first output in its folder."
    )
    return Section(
        "run",
        "The last run, and what is missing here" if data.missing else "The last run",
        f"What each stage did and how long it took, up to this page; kept results are older. {before}",
        [
            table("Last run", [*rows, total], [len(rows)]),
            *([part("missing", data.missing)] if data.missing else []),
        ],
    )
