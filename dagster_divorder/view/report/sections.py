"""The sections of the report, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from dagster_divorder.view import charts, words
from dagster_divorder.view.charts import ACHIEVABLE, ASKED, SERIES, SHUFFLES
from dagster_divorder.view.drawing import data_uri, indexed, png, stacked, svg
from dagster_divorder.view.report import check
from dagster_divorder.view.report.html import Column, Panel, Section, chart, legend, notes, page, part, table
from dagster_divorder.view.report.numbers import Numbers, TraitAlong
from dagster_divorder.view.words import clip, fixed, listed, number, percent, points

BAR_ROWS, SMALL_ROWS, SMALL_GAP = 96, 64, 8
"""Pixels of a bar's height, in the page and in the small picture, and between the bars of that."""
NAME, SHORT_NAME = 60, 40
"""Characters of a value's name, in a table and in a chart."""
ORIGINAL, CURATED = (201, 92, 20), (43, 125, 191)
"""RGB of strips in the original and in the curated order: between what is used on light and on dark."""
DRIFTS_DRAWN = 3
"""Features whose tenths are drawn: those whose farthest tenth is most above shuffling."""
POINTS, MAP = 8_000, (880, 560)
"""Documents on the map, the first ones, and its size in CSS pixels."""
PAIRS, DISAGREEMENTS = 15, 8
"""Pairs of clusters and disagreements of two spaces that are shown."""

ALONG = "Along the position in the dataset, % of tokens"


def report(of: Numbers) -> tuple[bytes, list[str]]:
    """The page's bytes, and the titles of its sections."""
    made = [
        asked(of),
        bars(of),
        distinct(of),
        errors(of),
        *([targets(of)] if of.settings.order.targets else []),
        check.section(of.check),
        drift(of),
        *([worst(of)] if of.sequences else []),
        along(of),
        clusters(of),
        *([strategies(of.strategies, of)] if of.strategies else []),
        *([calibration(*of.calibration, of)] if of.calibration else []),
        *([agreement(of)] if of.agreement else []),
        last_run(of),
    ]
    manifest, sequence = of.manifest, of.manifest["sequence"]
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    written = page(
        title=f"How {manifest['counts']['records']:,} documents were ordered",
        facts=f"{manifest['counts']['documents']:,} distinct texts · {manifest['tokens']:,} tokens · "
        f"{manifest['k']:,} clusters · {manifest['packing']['sequences']:,} sequences of {sequence['length']:,} tokens "
        f"· batches of {sequence['batch']:,} sequences",
        head=check.head(of.check),
        sections=made,
        footer=[
            f"Of the output whose curated_meta.json has the key {manifest['key']}, which lists every figure and hash.",
            f"Made with {versions}.",
        ],
    )
    return written, [section.title for section in made]


def asked(of: Numbers) -> Section:
    return Section(
        "asked",
        "What was asked",
        "The settings that decide the order, in words.",
        [part("asked", of.settings, of.space, of.manifest["k"], of.manifest["input"]["files"])],
    )


def bars(of: Numbers) -> Section:
    """Before and after: the whole dataset as bars of its clusters, in each order."""
    first = next(iter(of.mixes.values()))
    whole = first.mean(axis=0, dtype=np.float64)

    def picture(mix: NDArray[np.floating]) -> str:
        return data_uri(png(indexed(stacked(mix[:, of.stacking], BAR_ROWS), of.colours[of.stacking])))

    def says(name: str, mix: NDArray[np.floating]) -> str:
        off, largest = np.abs(mix - whole).sum(axis=1) / 2, mix.max(axis=1)
        return (
            f"{name}: in a column the largest cluster has {100 * largest.mean():.0f} % of the tokens on average and "
            f"{100 * largest.max():.0f} % at most; {100 * off.mean():.0f} % of a column’s tokens would have to "
            "change to match the corpus."
        )

    orders = [
        {"name": name, "picture": picture(mix), "alt": says(name, mix)} for name, mix in of.mixes.items()
    ]
    keeps = "cluster" not in of.settings.order.targets
    return Section(
        "before-and-after",
        "Before and after",
        "The same documents from the first token to the last: where one colour fills a column, training would see one "
        "topic for a long while.",
        [part("bars", orders, picture(whole[np.newaxis]), keeps, of.tokens / len(first), of.other_clusters)],
    )


def small_picture(of: Numbers) -> bytes:
    """The first and the last of the bars above each other as a PNG file, for a page that has no room for more."""
    mixes = [mix[:, of.stacking] for mix in of.mixes.values()]
    white = np.full((SMALL_GAP, len(mixes[0])), len(of.colours))
    values = [stacked(mixes[0], SMALL_ROWS), white, stacked(mixes[-1], SMALL_ROWS)]
    return png(indexed(np.concatenate(values), np.concatenate([of.colours[of.stacking], np.ones((1, 3))])))


def distinct(of: Numbers) -> Section:
    """Distinct clusters in every sequence, along the dataset."""
    k = of.manifest["k"]
    top = max((float(found.high.max()) for found in of.distinct.values() if len(found.at)), default=1.0)
    panels, says = [], []
    for name, found in of.distinct.items():
        series, mean = SERIES[name], number(float(found.mean.mean())) if len(found.at) else "–"
        panels.append(
            Panel(
                f"{series.name}: {mean}",
                partial(charts.distinct, orders={name: found}, clusters=k, top=top),
                series.colour,
            )
        )
        if len(found.at):
            low, high = number(float(found.low.min())), number(float(found.high.max()))
            says.append(f"{series.name}: {mean} on average, from {low} to {high}")
    return Section(
        "sequences",
        "Topics in every sequence",
        f"How many of the {k:,} clusters a sequence of {of.settings.sequence.length:,} tokens holds, from the "
        "first sequence to the last. Documents that fill whole sequences limit it, whatever the order.",
        [
            chart(
                "distinct",
                panels,
                f"Distinct clusters in each training sequence along the dataset. {'; '.join(says)}.",
                f"{ALONG}. Line: mean of neighbouring sequences; band: from the fewest to the most. The number is the "
                "mean over all.",
            )
        ],
    )


def errors(of: Numbers) -> Section:
    """How far all that was read strays up to any point, together and for each trait apart, and every batch."""
    metrics, traits = of.check.metrics, list(of.settings.order.traits)
    prefixes = {name: metrics[name]["prefix"] for name in SERIES if any(metrics[name]["prefix"]["l2"])}
    curves = {name: (np.asarray(line["share"]), np.asarray(line["l2"])) for name, line in prefixes.items()}
    means = "; ".join(f"{SERIES[name].name} {number(line['mean'])}" for name, line in prefixes.items())
    caption = f"{ALONG}: L2 distance in tokens, logarithmic scale; lower is better."
    scales = {"cumulative": "up to each step", "batch": "in each batch"}
    lines = metrics["sequences"]["curves"]["trait_errors"]
    panels = [
        Panel(f"{trait}, {title}", partial(charts.errors, curves=lines[trait][scale]))
        for trait in traits
        for scale, title in scales.items()
    ]
    rows = [
        {"trait": trait, "scale": title, **metrics["sequences"]["trait_errors"][trait][scale]}
        for trait in traits
        for scale, title in scales.items()
    ]
    columns = [
        Column("trait", lambda row: row["trait"], text=True),
        Column("error", lambda row: f"{row['scale']}, of {number(row['steps'])}", text=True),
        Column("mean, ours", lambda row: number(row["mean"])),
        Column("mean, best shuffle", lambda row: number(row["shuffled_mean"])),
        Column("worst, ours", lambda row: number(row["worst"])),
        Column("least of any shuffle", lambda row: number(row["shuffled_least"])),
        Column("below all shuffles", lambda row: percent(row["better"])),
        Column("at all times", lambda row: {None: "", True: "yes", False: "no"}[row["always"]], text=True),
    ]
    moving = list(of.settings.order.targets)
    but = f" (for {listed(moving)}: what can be had of the targets)" if moving else ""
    ours, shuffled = (metrics[name]["prefix"]["mean"] for name in ("sequences", "sequences_random"))
    return Section(
        "errors",
        "Up to any point, and in each batch",
        f"The tokens seen so far, held against the corpus’s mix{but} at every point of training: any window is the "
        f"difference of two such prefixes. Curated sequences stray {number(ours)} tokens on average, "
        f"shuffled ones {number(shuffled)}: {words.times(ours, shuffled)}. Below, each trait apart, as “Don’t Shuffle, "
        "Optimize” reports it: of all that was read up to each step, and of every batch.",
        [
            legend(*(SERIES[name] for name in prefixes)),
            chart(
                "prefix",
                [Panel("all traits, up to any point", partial(charts.prefix, orders=curves))],
                f"Prefix deviation of each order along the dataset. Mean deviation in tokens: {means}.",
                caption,
            ),
            legend(SERIES["sequences"], SHUFFLES),
            chart(
                "errors",
                panels,
                "Errors of each trait along the dataset, ours and three shuffles, up to each step and in each batch.",
                caption,
                across=2,
            ),
            table("Errors in tokens, the curated sequences against three shuffles", rows, columns),
        ],
    )


def targets(of: Numbers) -> Section:
    """What was asked of each trait that moves, what can be had of it, and what came, along the dataset."""
    metrics = of.check.metrics
    parts = [legend(ASKED, ACHIEVABLE, SERIES["sequences"], SERIES["curated"])]
    for at, trait in enumerate(metrics["sequences"]["targets"]):
        parts += _target(f"target-{at}", trait, metrics)
    return Section(
        "targets",
        "The mix that moves",
        "What order.targets asked for, what can be had of it, and what came. Every token is placed once, so what can "
        "be had is what was asked, scaled at every point and for every value until all of its tokens have a place.",
        [*parts, *notes(of.warnings)],
    )


def _target(name: str, trait: str, metrics: Mapping[str, Any]) -> list[Markup]:
    ours, documents = (metrics[order]["targets"][trait] for order in ("sequences", "curated"))
    curves, others = (metrics[order]["curves"]["targets"][trait] for order in ("sequences", "curated"))
    wanted, possible = np.asarray(curves["asked"]), np.asarray(curves["achievable"])
    # An order of the sequences for each epoch.
    came = [np.asarray(epoch) for epoch in curves["achieved"]]
    lines = [
        (wanted, ASKED),
        *((np.asarray(epoch), SERIES["curated"]) for epoch in others["achieved"]),
        *((epoch, SERIES["sequences"]) for epoch in came),
        (possible, ACHIEVABLE),
    ]
    top = 1.08 * max((float(shares.max(initial=0.0)) for shares, _ in lines), default=1.0)
    panels, says = [], []
    for at, value in enumerate(ours["values"]):
        title = clip(value, SHORT_NAME)
        shown = [(shares[:, at], series) for shares, series in lines]
        panels.append(Panel(title, partial(charts.targets, lines=shown, top=top)))
        if len(wanted) and came:
            ends = [f"{points(of[0, at])} % to {points(of[-1, at])} %" for of in (wanted, possible, came[0])]
            says.append("{}: asked {}, can be had {}, came {}".format(title, *ends))

    def off(order: Mapping[str, Any], against: str, measure: str) -> Any:
        found = order["hundredth"][against]
        return lambda at: points(found and found[measure][at])

    columns = [
        Column("value", lambda at: clip(ours["values"][at], SHORT_NAME) or "(empty)", text=True),
        Column("asked, mean", lambda at: f"{points(ours['unmet'][at]['mean_asked'])} %"),
        Column("of all tokens", lambda at: f"{points(ours['unmet'][at]['mean_achievable'])} %"),
        Column("off what can be had, sequences: mean", off(ours, "off_achievable", "mean")),
        Column("largest", off(ours, "off_achievable", "largest")),
        Column("off what was asked, sequences: mean", off(ours, "off_asked", "mean")),
        Column("largest", off(ours, "off_asked", "largest")),
        Column("off what can be had, documents: mean", off(documents, "off_achievable", "mean"), desk=True),
        Column("largest", off(documents, "off_achievable", "largest"), desk=True),
    ]
    return [
        chart(
            name,
            panels,
            f"Shares of {trait} along the dataset: asked, can be had, came. {'; '.join(says)}.",
            f"{ALONG}: % of the tokens of each hundredth, by {trait}.",
        ),
        table(
            f"{trait}: shares in hundredths of the dataset, differences in percentage points",
            range(len(ours["values"])),
            columns,
        ),
    ]


def drift(of: Numbers) -> Section:
    """Whether anything drifts along the sequences: what the order balanced, and what it never saw."""
    found = of.drift
    with_tenths = sorted(
        (feature for feature in found.features if feature.along),
        key=lambda feature: -feature.measures["tenths"].excess,
    )
    drawn = with_tenths[:DRIFTS_DRAWN]

    def measure(name: str) -> Any:
        def cell(feature: Any) -> str:
            if name not in feature.measures:
                return "–"
            return f"{number(feature.measures[name].value, 2)} ({number(feature.measures[name].shuffled, 2)})"

        return cell

    heads = {
        "rank": "rank correlation",
        "tenths": "farthest tenth",
        "batch": "mean batch",
        "neighbours": "alike",
    }
    columns = [
        Column("feature", lambda feature: feature.feature, text=True),
        Column("balanced", lambda feature: "yes" if feature.seen else "no", text=True),
        *(
            Column(f"{head} (shuffled)", measure(name), desk=name == "neighbours")
            for name, head in heads.items()
        ),
        Column("check", lambda feature: "drifts" if feature.drifts else "still", text=True),
    ]
    farthest = [
        f"{feature.feature} {number(max(feature.along), 2)}, shuffled {number(feature.shuffled_along[1], 2)}"
        for feature in drawn
    ]
    parts = [
        table(
            "Every feature, and in brackets the mean of shuffles of the same sequences",
            sorted(found.by_excess, key=lambda feature: not feature.drifts),
            columns,
        )
    ]
    if drawn:
        tenths = chart(
            "drift",
            [Panel(feature.feature, partial(charts.drift, of=feature), "sequences") for feature in drawn],
            f"Distance of each tenth of training from the whole. Farthest tenth: {listed(farthest)}.",
            "Distance of each tenth of the sequences from the whole, for the features whose tenths differ most; "
            "the band holds nine in ten of the shuffles’ tenths. Of mixes it is total variation, of vectors the "
            "Euclidean distance of their means, of numbers it is in standard deviations, of occurrences part of chi².",
        )
        parts.insert(0, tenths)
    return Section("drift", "What drifts", found.claim(), parts)


def worst(of: Numbers) -> Section:
    """The worst windows, with the documents that are in them."""
    sequences, moving = of.manifest["packing"]["sequences"], list(of.settings.order.targets)
    columns = [
        Column("sequence", lambda one: f"{number(one.place + 1)} of {number(sequences)}", text=True),
        Column("TV", lambda one: percent(one.variation)),
        Column("clusters", lambda one: number(one.clusters)),
        Column("documents", lambda one: number(one.documents)),
        Column("the largest of them", lambda one: part("sample", one.largest), text=True),
    ]
    caption = (
        "The sequences whose clusters differ most from the corpus’s, each with another document. TV: the share "
        "of the tokens that would have to change to match the corpus"
    )
    alone = (
        f"{number(of.alone)} of {number(sequences)} sequences hold tokens of one document only, which no order of "
        "whole documents can mix; packing.piece_tokens cuts long documents into pieces, at the price of long context"
        if of.alone
        else "Every sequence holds more than one document"
    )
    but = f"; {listed(moving)}, whose mix is to move, has no worst batch here" if moving else ""
    return Section(
        "worst",
        "The worst windows",
        f"Where this order strays most from the corpus’s own mix, and the documents that make it so{but}.",
        [
            *(part("window", batch) for batch in of.batches),
            table(caption, of.sequences, columns),
            *notes([alone]),
        ],
    )


def along(of: Numbers) -> Section:
    """Lengths of the documents along the dataset, and where each value of a trait lies: a strip a value."""
    every = np.concatenate([found.ravel() for found in of.lengths.values()])
    low, high = (max(1.0, float(limit(every))) for limit in (np.nanmin, np.nanmax))
    panels, says = [], []
    for name, found in of.lengths.items():
        series = SERIES[name]
        panels.append(
            Panel(
                series.name,
                partial(charts.lengths, name=name, quantiles=found, low=low, high=high),
                series.colour,
            )
        )
        least, most = (number(float(limit(found[:, 2]))) for limit in (np.nanmin, np.nanmax))
        says.append(f"{series.name}: the median at a position is from {least} to {most} tokens")
    tables = [_strips(trait) for trait in of.categories]
    moving = [trait.trait for trait in of.categories if trait.trait in of.settings.order.targets]
    but = f", but for {listed(moving)}, whose mix is to move" if moving else ""
    lead = "How long the documents are at each position, counted by their tokens."
    if tables:
        lead += (
            " Then where every value lies: the darker, the more of the tokens there. Before, a source is often one "
            f"block; after, one that is balanced is everywhere in the same strength{but}."
        )
    return Section(
        "along",
        "Lengths and sources along the dataset" if tables else "Lengths along the dataset",
        lead,
        [
            chart(
                "lengths",
                panels,
                f"Lengths of the documents along the dataset, before and after. {'; '.join(says)}.",
                f"{ALONG}: length in tokens of the document that a token belongs to, logarithmic scale. Line: median; "
                "dark: the middle half; light: from the 10th to the 90th percentile.",
            ),
            *tables,
        ],
    )


def _strips(of: TraitAlong) -> Markup:
    return table(
        f"{of.trait}: share of the tokens at each position, from the first token (left) to the last (right)",
        range(len(of.names)),
        [Column(of.trait, lambda at: clip(of.names[at], NAME) or "(empty)", text=True), *_strip_columns(of)],
    )


def clusters(of: Numbers) -> Section:
    """Names and sizes of the clusters, where each lies, and the map of the documents if there is one."""
    trait = of.clusters

    def named(at: int) -> Markup:
        colour = "#" + "".join(f"{round(255 * float(channel)):02x}" for channel in of.colours[at])
        return part("named", colour, clip(trait.names[at], NAME))

    columns = [
        Column("cluster", named, text=True),
        Column("documents", lambda at: number(of.cluster_documents[at]), desk=True),
        *_strip_columns(trait),
    ]
    return Section(
        "clusters",
        "The clusters",
        f"{of.manifest['k']:,} topics, found by k-means on the documents’ vectors, by falling tokens.",
        [
            table("Clusters by their tokens, and where they lie", range(len(trait.names)), columns),
            *([_map(of)] if of.map else []),
        ],
    )


def _map(of: Numbers) -> Markup:
    assert of.map
    xy, rows, names = of.map.xy[:POINTS], of.map.rows[:POINTS], of.clusters.names
    counts = np.bincount(rows, minlength=len(names))
    largest = [clip(names[at], SHORT_NAME) for at in np.argsort(-counts, kind="stable")[:8] if counts[at]]

    def draw(figure: Any) -> None:
        charts.documents_map(figure.add_axes((0, 0, 1, 1)), xy, rows, names, of.colours, outlined=False)

    return part(
        "map",
        svg("map", *MAP, draw),
        f"A map of {number(len(xy))} documents as points in the colours of their clusters; the largest are "
        f"{', '.join(largest)}.",
        f"UMAP of {number(len(xy))} of {number(of.map.documents)} documents: similar ones are near each other; the "
        "distances between groups mean little. Colours are those of the table.",
    )


def _strip_columns(of: TraitAlong) -> list[Column]:
    """Columns of rows that are values: the share of all tokens, and the value's place in either order."""

    def strip(order: str, mix: NDArray[np.floating], colour: tuple[int, int, int]) -> Any:
        def cell(at: int) -> Markup:
            shares = mix[:, at]
            low, high = percent(float(shares.min())), percent(float(shares.max()))
            slices = f"{np.count_nonzero(shares)} of {len(shares)} slices"
            return part(
                "strip",
                strip_uri(shares, colour),
                f"{order} order: from {low} to {high} of a slice, in {slices}",
            )

        return cell

    return [
        Column("of all tokens", lambda at: f"{points(float(of.share[at]))} %"),
        Column("original order", strip("original", of.original, ORIGINAL), text=True),
        Column("curated order", strip("curated", of.curated, CURATED), text=True),
    ]


def strip_uri(shares: NDArray[np.floating], colour: tuple[int, int, int]) -> str:
    """A PNG of one pixel a slice, (C,) shares in [0, 1], that lets light and dark through: as opaque as the cube root
    of the share, so that small shares show. The style sheet stretches it."""
    import PIL.Image

    pixels = np.empty((1, len(shares), 4), np.uint8)
    pixels[..., :3] = colour
    pixels[..., 3] = np.rint(255 * np.cbrt(np.clip(shares, 0.0, 1.0)))
    return data_uri(png(PIL.Image.fromarray(pixels)))


def strategies(rows: Sequence[Mapping[str, Any]], of: Numbers) -> Section:
    """Strategies side by side on this corpus; rows: as `pipeline.strategy_comparison.row` makes them."""
    ours = (of.settings.order.strategy, of.settings.sequence.strategy)
    columns = [
        Column("documents", lambda row: row["documents"], text=True),
        Column("sequences", lambda row: row["sequences"], text=True),
        Column("clusters in a sequence", lambda row: fixed(row["distinct clusters a sequence"])),
        Column("fewest", lambda row: number(row["fewest"])),
        Column("clusters, flush", lambda row: fixed(row["distinct clusters, flush"])),
        Column("batch TV, %", lambda row: points(row["batch TV, clusters"])),
        Column("worst batch TV, %", lambda row: points(row["worst batch TV, clusters"])),
        Column("worst batch anywhere, points off", lambda row: points(row["worst share, batch anywhere"])),
        Column("prefix deviation, tokens", lambda row: number(row["mean prefix deviation, tokens"])),
        Column("features that drift", lambda row: number(row["features that drift"])),
        Column("rank correlation", lambda row: fixed(row["rank correlation, largest"])),
        Column("farthest tenth, times shuffled", lambda row: fixed(row["farthest tenth, times shuffled"])),
        Column("mean batch, times shuffled", lambda row: fixed(row["mean batch, times shuffled"])),
        Column("time", lambda row: words.seconds(row["seconds, documents"] + row["seconds, sequences"])),
        Column("peak memory, MB", lambda row: fixed(row["peak memory, MB"], 1)),
    ]
    return Section(
        "strategies",
        "Strategies on this corpus",
        "Every pair of a document and a sequence strategy, held against the corpus’s own mix. More clusters "
        "in a sequence are better, less of all else. Flush: where a document that does not fit starts a "
        "sequence instead of being cut. TV: the share of a batch’s tokens that would have to "
        "change to match the corpus. Features that drift are farther from the whole along the order than in "
        "any shuffle; the largest rank correlation of a feature with position, the farthest tenth, and the mean "
        "batch over all features.",
        [
            table(
                "Strategies compared; this output’s pair is marked",
                rows,
                columns,
                lambda row: (row["documents"], row["sequences"]) == ours,
            )
        ],
    )


def calibration(rows: Sequence[Mapping[str, Any]], said: Sequence[str], of: Numbers) -> Section:
    """How many clusters; rows: the table of `pipeline.k_calibration`, by rising k."""
    chosen = number(next(row["k"] for row in rows if row["recommended"]))
    distinct, batch = "distinct clusters a sequence", "worst share, batch anywhere"
    columns = [
        Column("k", lambda row: number(row["k"]), text=True),
        Column("silhouette", lambda row: fixed(row["silhouette"], 3)),
        Column("smallest cluster", lambda row: number(row["smallest"])),
        Column("median", lambda row: number(row["median"])),
        Column("largest", lambda row: number(row["largest"])),
        Column("clusters in a sequence", lambda row: fixed(row[distinct])),
        Column("shuffled", lambda row: fixed(row[f"{distinct}, shuffled"])),
        Column("worst batch, points off", lambda row: points(row[batch])),
        Column("shuffled", lambda row: points(row[f"{batch}, shuffled"])),
    ]
    drawing = chart(
        "calibration",
        [
            Panel("Silhouette, mean", partial(charts.silhouette, rows=rows)),
            Panel("Clusters in a sequence, mean", partial(charts.distinct_by_k, rows=rows)),
        ],
        f"Silhouette and distinct clusters a sequence for {number(rows[0]['k'])} to {number(rows[-1]['k'])} clusters. "
        f"The best silhouette is {number(max(row['silhouette'] for row in rows))}; {chosen} clusters are recommended.",
        "Against the number of clusters. Second chart: curated, and dashed the same after shuffling. Grey: as good as "
        f"the best. Upright line: {chosen}, the highest number whose silhouette is.",
    )
    caption = "Numbers of clusters tried; the recommended one is marked"
    return Section(
        "calibration",
        "How many clusters?",
        f"Calibration recommends {chosen} clusters; this output has {number(of.manifest['k'])}.",
        [drawing, table(caption, rows, columns, lambda row: row["recommended"]), *notes(said)],
    )


def agreement(of: Numbers) -> Section:
    """Two kinds of vectors: do both see the same topics?"""
    assert of.agreement
    found = of.agreement.report
    first, second = found["spaces"]
    matched = percent(found["matched_documents"])
    figures = [
        ("Adjusted Rand index (ARI)", fixed(found["ari"], 3)),
        ("Adjusted mutual information (AMI)", fixed(found["ami"], 3)),
        ("Normalised mutual information (NMI)", fixed(found["nmi"], 3)),
        ("Overlap of their structure", found["overlap"]),
        ("Documents in matched clusters", matched),
    ]
    if cosine := found["document_cosine"]:
        mean, low, high = (fixed(cosine[name], 3) for name in ("mean", "min", "max"))
        figures.append(("Cosine of a document’s two vectors, mean and range", f"{mean}, {low} to {high}"))
    figures += [(f"Silhouette, {kind}", fixed(value, 3)) for kind, value in found["silhouettes"].items()]
    figures += [
        (f"Bits a word that the clusters tell, {kind}", fixed(bits, 3))
        for kind, bits in found["word_bits"].items()
    ]
    names = [
        Column(f"{first} cluster", lambda row: clip(row[first], NAME), text=True),
        Column(f"{second} cluster", lambda row: clip(row[second], NAME), text=True),
    ]
    parts = [
        table(
            "Agreement of the two clusterings",
            figures,
            [Column("measure", lambda row: row[0], text=True), Column("value", lambda row: row[1])],
        ),
        table(
            "Clusters that match, those with most common documents first",
            of.agreement.pairs[:PAIRS],
            [
                *names,
                Column("documents in both", lambda row: number(row["documents"])),
                Column(f"of the {first} one", lambda row: f"{points(row[f'of the {first} one'])} %"),
                Column(f"of the {second} one", lambda row: f"{points(row[f'of the {second} one'])} %"),
            ],
        ),
    ]
    if of.agreement.heatmap:
        alt = f"Matched clusters lie on the diagonal, which holds {matched} of the documents."
        caption = f"Share of each {first} cluster’s documents in each {second} cluster."
        parts.append(part("picture", data_uri(of.agreement.heatmap), alt, caption))
    if of.agreement.disagreements:
        examples = Column("for example", lambda row: part("samples", row["examples"]), text=True)
        parts.append(
            table(
                "Where they disagree most: clusters that share documents but do not match",
                of.agreement.disagreements[:DISAGREEMENTS],
                [*names, Column("documents", lambda row: number(row["documents"])), examples],
            )
        )
    if of.agreement.maps:
        alt = "Two clouds of the same documents, beside each other; clusters that are matched have the same colour."
        parts.append(
            part("picture", data_uri(of.agreement.maps), alt, "Both spaces as maps of the same documents.")
        )
    return Section(
        "agreement",
        f"Do {first} and {second} vectors agree?",
        f"{found['verdict']} Measured on {words.count(found['measured_documents'], 'document')} with "
        f"{number(found['k'])} clusters in either space.",
        parts,
    )


def last_run(of: Numbers) -> Section:
    """Time of each stage, what was new, and evidence that has not been made."""
    total = {"stage": "all stages", "seconds": sum(found["seconds"] for found in of.reports.values())}
    rows = [*({"stage": stage, **found} for stage, found in of.reports.items()), total]
    columns = [
        Column("stage", lambda row: row["stage"], text=True),
        Column("documents", lambda row: number(row["documents"]) if "documents" in row else ""),
        Column("new", lambda row: number(row["new_documents"]) if "documents" in row else ""),
        Column("reused", lambda row: number(row["reused_documents"]) if "documents" in row else ""),
        Column("time", lambda row: words.seconds(row["seconds"])),
    ]
    new, kept, gone = (of.manifest["delta"][f"{name}_documents"] for name in ("new", "reused", "dropped"))
    before = (
        f"Against the output before it, {number(new)} documents are new, {number(kept)} were there, "
        f"{number(gone)} are gone."
        if kept or gone
        else "It is the first output in its folder."
    )
    return Section(
        "run",
        "The run, and what is missing here" if of.missing else "The run, and what was new",
        f"Time of every stage in its last run. {before}",
        [
            table("Stages of the last run", rows, columns, lambda row: row is total),
            *([part("missing", of.missing)] if of.missing else []),
        ],
    )
