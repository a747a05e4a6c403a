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
from dagster_divorder.view.evidence import order_rows, rate_rows, source_rows
from dagster_divorder.view.measures import MEASURES
from dagster_divorder.view.report import check
from dagster_divorder.view.report.html import Panel, Section, chart, page, part, table
from dagster_divorder.view.report.numbers import Evidence, Numbers, TraitAlong
from dagster_divorder.view.strategies import conclusions
from dagster_divorder.view.words import ORDERS, clip, count, fixed, listed, number, percent, points

BAR_ROWS = 96
"""Pixels of a bar's height."""
NAME, SHORT_NAME = 60, 40
"""Characters of a value's name, in a table and in a chart."""
STRIPS = {"original": (201, 92, 20), "sequences_random": (125, 130, 140), "sequences": (43, 125, 191)}
"""The orders whose strips are shown, and their RGB: between what is used on light and on dark."""
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
        windows(of),
        *([mix(of)] if of.settings.repeats else []),
        *([chosen(of)] if of.chosen else []),
        *([targets(of)] if of.settings.order.targets else []),
        drift(of),
        *([worst(of)] if of.worst else []),
        along(of),
        clusters(of),
        *([strategies(of.strategies, of)] if of.strategies else []),
        *([calibration(*of.calibration, of)] if of.calibration else []),
        *([agreement(of)] if of.agreement else []),
        *([diversity(of)] if of.diversity else []),
        *([copies(*of.copies)] if of.copies else []),
        *([proxies(*of.proxies)] if of.proxies else []),
        *([trained(of.trained)] if of.trained else []),
        *map(other, of.others),
        last_run(of),
    ]
    manifest, sequence = of.manifest, of.manifest["sequence"]
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    corpus = words.corpus_name(manifest["input"]["files"])
    written = page(
        title=f"How the {manifest['counts']['records']:,} documents of {corpus} were ordered",
        output_label=words.output_label(manifest),
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
    """Before and after: the whole dataset as bars of its clusters, and distinct clusters in every sequence."""
    first = of.clusters.mixes["original"]
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
        {"name": ORDERS[name].capitalize(), "picture": picture(mix), "alt": says(ORDERS[name], mix)}
        for name, mix in of.clusters.mixes.items()
    ]
    keeps = "cluster" not in of.settings.order.targets
    return Section(
        "before-and-after",
        "Before and after",
        "The same documents from the first token to the last: where one colour fills a column, training would see one "
        f"topic for a long while. Below, how many of the {of.manifest['k']:,} clusters a sequence of "
        f"{of.settings.sequence.length:,} tokens holds. Documents that fill whole sequences limit it, whatever the "
        "order.",
        [
            part(
                "bars", orders, picture(whole[np.newaxis]), keeps, of.tokens / len(first), of.other_clusters
            ),
            _distinct(of),
        ],
    )


def _distinct(of: Numbers) -> Markup:
    top = max((float(found.high.max()) for found in of.distinct.values() if len(found.at)), default=1.0)
    panels, says = [], []
    for name, found in of.distinct.items():
        title = f"{SERIES[name].name}: {fixed(of.check.metrics[name]['split']['mean'])}"
        draw = partial(charts.distinct, orders={name: found}, clusters=of.manifest["k"], top=top)
        panels.append(Panel(title, draw, SERIES[name].colour))
        if len(found.at):
            says.append(f"{title} on average, from {number(found.low.min())} to {number(found.high.max())}")
    return chart(
        "distinct",
        panels,
        f"Distinct clusters in each training sequence along the dataset. {'; '.join(says)}.",
        f"Distinct clusters in a sequence. {ALONG}. Line: mean of neighbouring sequences; band: from the fewest to the "
        "most. The number is the mean over all, shuffled: of three shuffles, of which one is drawn.",
        across=2,
    )


def windows(of: Numbers) -> Section:
    """Every window against shuffling: wherever it starts, up to any point, and each trait apart."""
    metrics, traits = of.check.metrics, list(of.settings.order.traits)
    prefixes = {name: metrics[name]["prefix"] for name in SERIES if any(metrics[name]["prefix"]["l2"])}
    curves = [(np.asarray(of["share"]), np.asarray(of["l2"]), SERIES[name]) for name, of in prefixes.items()]
    means = "; ".join(f"{ORDERS[name]} {number(line['mean'])}" for name, line in prefixes.items())
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
    moving = list(of.settings.order.targets)
    but = f" (for {listed(moving)}: what can be had of the targets)" if moving else ""
    ours, shuffled = (metrics[name]["prefix"]["mean"] for name in ("sequences", "sequences_random"))
    return Section(
        "windows",
        "Every window, wherever it starts",
        f"How far windows of training stray from the corpus’s mix{but}, against the mean of three shuffles. Any window "
        "is the difference of what was read up to its end and up to its beginning, so both are drawn below: training "
        f"sequences in order stray {number(ours)} tokens on average, {percent(ours / max(1, of.tokens))} of all "
        f"{of.tokens:,}, shuffled ones {number(shuffled)}: {words.times(ours, shuffled)}. Then each trait apart, as "
        "“Don’t Shuffle, Optimize” reports it.",
        [
            part("legend", [SERIES[name] for name in prefixes]),
            chart(
                "prefix",
                [Panel("all traits, up to any point", partial(charts.along, lines=curves, log=True))],
                f"Prefix deviation of each order along the dataset. Mean deviation in tokens: {means}.",
                caption,
            ),
            *check.windows(of.check),
            part("legend", [SERIES["sequences"], SHUFFLES]),
            chart(
                "errors",
                panels,
                "Errors of each trait along the dataset, ours and three shuffles, up to each step and in each batch.",
                caption,
                across=2,
            ),
            table("Errors in tokens: training sequences in order against three shuffles", rows),
        ],
    )


def mix(of: Numbers) -> Section:
    """How often the records of each value of `mixing.trait` are trained on, planned and realised."""
    trait, values = of.manifest["mixing"]["trait"], of.manifest["mixing"]["values"]
    along = next((of_ for of_ in (of.clusters, *of.categories) if of_.trait == trait), None)
    slices = dict(zip(along.names, along.mixes["sequences"].T, strict=True)) if along else {}
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
    read, there = (sum(row[name] for row in values) for name in ("tokens trained on", "unique tokens"))
    return Section(
        "mix",
        "How often each record is trained on",
        f"An epoch has {number(read)} tokens, made of {number(there)}. A value of {trait} that has fewer tokens than "
        "its share is read again, as far apart as can be; one that has more is read in an even part.",
        [table("The mix, planned and realised", rows)],
    )


def chosen(of: Numbers) -> Section:
    """What was chosen, and what would have been otherwise."""
    return Section(
        "chosen",
        "What was chosen",
        f"The records that are trained on were chosen by {of.settings.selection.method}, beside what else would "
        "choose as much. A Vendi score is how many different things a set holds, as far as vectors tell.",
        [table("Choices; used: the one that is trained on", words.cells(of.chosen["choices"]))],
    )


def diversity(of: Numbers) -> Section:
    """How many different things there are, in all, by part and in batches."""
    groups = of.diversity["groups"]
    named = [
        {
            **row,
            "value": of.manifest["cluster_names"][int(row["value"])]
            if row["of"] == "cluster"
            else clip(row["value"], NAME),
        }
        for row in groups
    ]
    batches = of.diversity.get("batches", ())
    return Section(
        "diversity",
        "How many different things are there?",
        f"{count(groups[0]['documents'], 'document')} of the corpus are as diverse as "
        f"{fixed(groups[0]['vendi'], 1)} that have nothing in common, as far as vectors tell (the Vendi score). A "
        "smaller set holds less, so compare sets of about as many documents. All without it: the corpus without a "
        "source.",
        [
            table("Diversity (Vendi score) of the corpus, its sources and its clusters", words.cells(named)),
            table("Diversity (Vendi score) of batches, by order", words.cells(batches)),
        ],
    )


def copies(figures: Mapping[str, Any], tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Section:
    """Which texts are near copies of others."""
    captions = {"sources": "Near copies by source", "groups": "The largest groups, with how they begin"}
    lead = (
        f"{count(figures['near_copies'], 'text')} of {number(figures['documents'])} are near copies of one before "
        f"them, {count(figures['near_copy_tokens'], 'token')} in all; the largest of "
        f"{count(figures['groups'], 'group')} has {number(figures['largest_group'])}."
        if figures["near_copies"]
        else f"None of {count(figures['documents'], 'text')} is a near copy of another."
    )
    return Section(
        "copies",
        "Which texts are near copies?",
        lead,
        [table(captions[name], _cells(rows)) for name, rows in tables.items() if rows],
    )


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Rows of plain values as text, the texts of documents clipped."""
    return [{name: clip(cell) for name, cell in row.items()} for row in words.cells(rows)]


def other(evidence: Evidence) -> Section:
    """What a stage without a section of its own shows."""
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
            table("Figures", _cells(figures)),
            *(
                table(name.replace("_", " ").capitalize(), _cells(rows))
                for name, rows in evidence.tables.items()
            ),
        ],
    )


def proxies(figures: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Section:
    """Whether gradients of the last blocks agree with those of all parameters; rows: of
    `stages.evidence.gradient_proxy`."""
    return Section(
        "proxies",
        "Do the last blocks stand for the whole model?",
        f"Gradients of the last blocks, whole or projected to so many dims, against those of all "
        f"{count(figures['parameters'], 'parameter')}, of {count(figures['documents_measured'], 'document')}. "
        "Spearman: the mean rank correlation of a document’s cosines with the other ones. Chosen alike: the share of "
        "what whole gradients choose that the proxy chooses too; by chance it would be the share that is chosen."
        if rows
        else f"It could not be measured: {figures['note']}.",
        [
            table(
                "Proxies; the one that the settings name is marked",
                words.cells([{name: of for name, of in row.items() if name != "used"} for row in rows]),
                [at for at, row in enumerate(rows) if row["used"]],
            )
        ],
    )


def targets(of: Numbers) -> Section:
    """What was asked of each trait that moves, what can be had of it, and what came, along the dataset."""
    metrics = of.check.metrics
    parts = [part("legend", [ASKED, ACHIEVABLE, SERIES["sequences"], SERIES["curated"]])]
    for at, trait in enumerate(metrics["sequences"]["targets"]):
        parts += _target(f"target-{at}", trait, metrics)
    return Section(
        "targets",
        "The mix that moves",
        "What order.targets asked for, what can be had of it, and what came. Every token is placed once, so what can "
        "be had is what was asked, scaled at every point and for every value until all of its tokens have a place.",
        [*parts, part("notes", of.warnings)],
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
    top = max(1.0, 108 * max((float(shares.max(initial=0.0)) for shares, _ in lines), default=1.0))
    panels, says, rows = [], [], []
    for at, value in enumerate(ours["values"]):
        title = clip(value, SHORT_NAME)
        shown = [
            ((np.arange(len(of)) + 0.5) / max(1, len(of)), 100 * of[:, at], series)
            for of, series in lines
            if len(of)
        ]
        panels.append(Panel(title, partial(charts.along, lines=shown, top=top)))
        if len(wanted) and came:
            ends = [f"{points(of[0, at])} % to {points(of[-1, at])} %" for of in (wanted, possible, came[0])]
            says.append("{}: asked {}, can be had {}, came {}".format(title, *ends))
        off = {
            f"off what {whose}, {what}: {measure}": points(found and found[measure][at])
            for order, what in ((ours, "sequences"), (documents, "documents"))
            for against, whose in (("off_achievable", "can be had"), ("off_asked", "was asked"))
            for measure in ("mean", "largest")
            for found in [order["hundredth"][against]]
        }
        unmet = ours["unmet"][at]
        rows.append(
            {
                "value": title or "(empty)",
                "asked, mean": f"{points(unmet['mean_asked'])} %",
                "of all tokens": f"{points(unmet['mean_achievable'])} %",
                **off,
            }
        )
    return [
        chart(
            name,
            panels,
            f"Shares of {trait} along the dataset: asked, can be had, came. {'; '.join(says)}.",
            f"{ALONG}: % of the tokens of each hundredth, by {trait}.",
        ),
        table(f"{trait}: shares in hundredths of the dataset, differences in percentage points", rows),
    ]


def drift(of: Numbers) -> Section:
    """Whether anything drifts along the sequences: what the order balanced, and what it never saw."""
    found = of.drift
    # Of a field of one value all tenths are alike.
    with_tenths = [feature for feature in found.features if any(feature.along)]
    drawn = sorted(with_tenths, key=lambda of: -of.measures["tenths"].excess)[:DRIFTS_DRAWN]
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
        for feature in sorted(found.by_excess, key=lambda feature: not feature.drifts)
    ]
    farthest = [
        f"{feature.feature} {number(max(feature.along), 2)}, shuffled {number(feature.shuffled_along[1], 2)}"
        for feature in drawn
    ]
    tenths = chart(
        "drift",
        [Panel(feature.feature, partial(charts.drift, of=feature), "sequences") for feature in drawn],
        f"Distance of each tenth of training from the whole. Farthest tenth: {listed(farthest)}.",
        "Distance of each tenth of the sequences from the whole, for the features whose tenths differ most; "
        "the band holds nine in ten of the shuffles’ tenths. Of mixes it is total variation, of vectors the "
        "Euclidean distance of their means, of numbers it is in standard deviations, of occurrences part of chi².",
    )
    caption = "Every feature, and in brackets the mean of shuffles of the same sequences"
    return Section("drift", "What drifts", found.claim(), [tenths, table(caption, rows)])


def worst(of: Numbers) -> Section:
    """The worst windows, with the documents that are in them."""
    sequences, moving = of.manifest["packing"]["sequences"], list(of.settings.order.targets)
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
        f"Where this order strays most from the corpus’s own mix, and the documents that make it so{but}. First "
        "batches, one for each trait, then the sequences that differ most, each with another document.",
        [part("cards", of.worst), part("notes", [alone])],
    )


def along(of: Numbers) -> Section:
    """Lengths of the documents along the dataset, and where each value of a trait lies: a strip a value."""
    every = np.concatenate([found.ravel() for found in of.lengths.values()])
    low, high = (max(1.0, float(limit(every))) for limit in (np.nanmin, np.nanmax))
    panels, says = [], []
    for name, found in of.lengths.items():
        draw = partial(charts.lengths, name=name, quantiles=found, low=low, high=high)
        panels.append(Panel(SERIES[name].name, draw, SERIES[name].colour))
        least, most = (number(float(limit(found[:, 2]))) for limit in (np.nanmin, np.nanmax))
        says.append(f"{ORDERS[name]}: the median at a position is from {least} to {most} tokens")
    tables = [
        table(
            f"{trait.trait}: share of the tokens at each position, from the first token (left) to the last (right)",
            [
                {trait.trait: clip(name, NAME) or "(empty)", **_strips(trait, at)}
                for at, name in enumerate(trait.names)
            ],
            strips=True,
        )
        for trait in of.categories
    ]
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
                across=2,
            ),
            *tables,
        ],
    )


def clusters(of: Numbers) -> Section:
    """Names and sizes of the clusters, where each lies, and the map of the documents if there is one."""
    rows = [
        {
            "cluster": part(
                "named",
                "#" + "".join(f"{round(255 * float(part)):02x}" for part in of.colours[at]),
                clip(name, NAME),
            ),
            "documents": number(of.cluster_documents[at]),
            **_strips(of.clusters, at),
        }
        for at, name in enumerate(of.clusters.names)
    ]
    return Section(
        "clusters",
        "The clusters",
        f"{of.manifest['k']:,} topics, found by k-means on the documents’ vectors, by falling tokens.",
        [
            table("Clusters by their tokens, and where they lie", rows, strips=True),
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


def _strips(of: TraitAlong, at: int) -> dict[str, Any]:
    """Cells of a row that is a value: its share of all tokens, and its place in each order."""
    cells: dict[str, Any] = {"of all tokens": f"{points(float(of.share[at]))} %"}
    for order, colour in STRIPS.items():
        shares = of.mixes[order][:, at]
        low, high = percent(float(shares.min())), percent(float(shares.max()))
        slices = f"{np.count_nonzero(shares)} of {len(shares)} slices"
        says = f"{ORDERS[order]}: from {low} to {high} of a slice, in {slices}"
        cells[ORDERS[order].removeprefix("training ")] = part("strip", strip_uri(shares, colour), says)
    return cells


def strip_uri(shares: NDArray[np.floating], colour: tuple[int, int, int]) -> str:
    """A PNG of one pixel a slice, (C,) shares in [0, 1], that lets light and dark through: as opaque as the cube root
    of the share, so that small shares show. The style sheet stretches it."""
    import PIL.Image

    pixels = np.empty((1, len(shares), 4), np.uint8)
    pixels[..., :3] = colour
    pixels[..., 3] = np.rint(255 * np.cbrt(np.clip(shares, 0.0, 1.0)))
    return data_uri(png(PIL.Image.fromarray(pixels)))


def strategies(rows: Sequence[Mapping[str, Any]], of: Numbers) -> Section:
    """Strategies side by side on this corpus; rows: as `stages.evidence.strategy_comparison.row` makes them."""
    ours = (of.settings.order.strategy, of.settings.sequence.strategy)
    shown = [
        {
            "documents": row["documents"],
            "sequences": row["sequences"],
            **{measure.label: measure.show(row[name]) for name, measure in MEASURES.items() if name in row},
            "time": words.seconds(row["seconds, documents"] + row["seconds, sequences"]),
        }
        for row in rows
    ]
    drawing = chart(
        "trade-off",
        [Panel("batch TV, mean, %, by clusters in a sequence", partial(charts.trade_off, rows=rows))]
        if all(row["batch TV, clusters"] for row in rows)
        else [],
        " ".join(conclusions(rows)),
        "Each dot is a pair of strategies; up is further from the mix, right is more topics in a sequence",
    )
    marked = [at for at, row in enumerate(rows) if (row["documents"], row["sequences"]) == ours]
    return Section(
        "strategies",
        "Strategies on this corpus",
        f"{' '.join(conclusions(rows))} "
        "Every pair of a document and a sequence strategy, held against the corpus's own mix. More clusters "
        "in a sequence are better, less of all else. Flush: where a document that does not fit starts a "
        "sequence instead of being cut. TV: the share of a batch’s tokens that would have to "
        "change to match the corpus. Features that drift are farther from the whole along the order than in "
        "any shuffle; the largest rank correlation of a feature with position, the farthest tenth, and the mean "
        "batch over all features.",
        [drawing, table("Strategies compared; this output’s pair is marked", shown, marked)],
    )


def trained(summary: Mapping[str, Any]) -> Section:
    """What orders did to small models; summary: of `stages.evidence.training_evidence`."""
    orders, seams = summary["orders"], summary["epochs"] > 1
    rows = order_rows(summary)
    said = [f"{row['order']} {row['less shuffled']}" for row in rows]
    panels = [
        Panel("training loss", partial(charts.training_losses, orders=orders, epochs=summary["epochs"]))
    ]
    if seams:
        panels += [
            Panel(f"{title} around the seam", partial(charts.around_seam, orders=orders, what=what))
            for title, what in (("loss", "around the seam"), ("gradient norm", "norms around the seam"))
        ]
    panels.append(Panel("stable rank less shuffled", partial(charts.stable_ranks, layers=summary["layers"])))
    parts = [
        chart(
            "trained",
            panels,
            f"Training in several orders. {' '.join(summary['verdict'])}",
            "Mean over seeds. The stable rank, of the gradient of each weight matrix at the end, says in how many "
            "directions a batch pulls.",
            across=2,
        ),
        chart(
            "heldout",
            [
                Panel(
                    "held-out loss less that of shuffled sequences",
                    partial(charts.heldout_differences, rows=orders, sources=summary["sources"]),
                )
            ],
            f"Held-out loss less that of shuffled sequences: {'; '.join(said)}.",
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


def calibration(rows: Sequence[Mapping[str, Any]], said: Sequence[str], of: Numbers) -> Section:
    """How many clusters; rows: the table of `stages.topics.k_calibration`, by rising k."""
    chosen = next((f"{number(row['k'])} clusters" for row in rows if row["recommended"]), None)
    shown = [
        {
            "k": number(row["k"]),
            "silhouette": fixed(row["silhouette"], 3),
            "± over the fits": fixed(row["spread"], 3),
            **{f"{name} cluster": number(row[name]) for name in ("smallest", "median", "largest")},
            **{
                f"{MEASURES[name].label}{whose}": MEASURES[name].show(row[f"{name}{whose}"])
                for name in ("distinct clusters a sequence", "worst share, batch anywhere")
                for whose in ("", ", shuffled")
            },
        }
        for row in rows
    ]
    drawing = chart(
        "calibration",
        [
            Panel("Silhouette, mean", partial(charts.silhouette, rows=rows)),
            Panel("Clusters in a sequence, mean", partial(charts.distinct_by_k, rows=rows)),
        ],
        f"Silhouette and distinct clusters a sequence for {number(rows[0]['k'])} to {number(rows[-1]['k'])} clusters. "
        f"The best silhouette is {fixed(max(row['silhouette'] for row in rows), 3)}; "
        f"{chosen or 'no clear number'} recommended.",
        "Against the number of clusters. Second chart: in order, and dashed the same after shuffling. Grey: as good as "
        "the best. Bars: standard deviation over the fits. Upright line, where a number is clear: the highest whose "
        "silhouette is.",
    )
    return Section(
        "calibration",
        "How many clusters?",
        f"Calibration {f'recommends {chosen}' if chosen else 'finds no clear number of clusters'}; this output has "
        f"{number(of.manifest['k'])}. Each number was tried with an order by clusters and lengths alone, so what a "
        "sequence holds there is not what this output’s hold.",
        [
            drawing,
            table(
                "Numbers of clusters tried; the recommended one is marked",
                shown,
                [at for at, row in enumerate(rows) if row["recommended"]],
            ),
            part("notes", said),
        ],
    )


def agreement(of: Numbers) -> Section:
    """Two kinds of vectors: do both see the same topics?"""
    assert of.agreement
    found, (heatmap, maps) = of.agreement.report, of.agreement.pictures
    first, second = found["spaces"]
    matched = percent(found["matched_documents"])
    figures = {
        "Adjusted Rand index (ARI)": fixed(found["ari"], 3),
        "Adjusted mutual information (AMI)": fixed(found["ami"], 3),
        "Normalised mutual information (NMI)": fixed(found["nmi"], 3),
        "Overlap of their structure": found["overlap"],
        "Documents in matched clusters": matched,
    }
    if cosine := found["document_cosine"]:
        mean, low, high = (fixed(cosine[name], 3) for name in ("mean", "min", "max"))
        figures["Cosine of a document’s two vectors, mean and range"] = f"{mean}, {low} to {high}"
    for what, by_kind in {
        "Silhouette": found["silhouettes"],
        "Bits a word that the clusters tell": found["word_bits"],
    }.items():
        figures |= {f"{what}, {kind}": fixed(value, 3) for kind, value in by_kind.items()}
    pairs = [
        {
            f"{first} cluster": clip(row[first], NAME),
            f"{second} cluster": clip(row[second], NAME),
            "documents in both": number(row["documents"]),
            **{f"of the {kind} one": f"{points(row[f'of the {kind} one'])} %" for kind in (first, second)},
        }
        for row in of.agreement.pairs[:PAIRS]
    ]
    cards = [
        (
            f"{first}: {clip(row[first], NAME)} / {second}: {clip(row[second], NAME)}",
            f"{words.count(row['documents'], 'document')}, such as:",
            [("", text) for text in row["examples"]],
        )
        for row in of.agreement.disagreements[:DISAGREEMENTS]
    ]
    pictures = [
        (
            heatmap,
            f"Matched clusters lie on the diagonal, which holds {matched} of the documents.",
            f"Share of each {first} cluster’s documents in each {second} cluster.",
        ),
        (
            maps,
            "Two clouds of the same documents, beside each other; clusters that are matched have the same colour.",
            "Both spaces as maps of the same documents.",
        ),
    ]
    parts = [
        table(
            "Agreement of the two clusterings",
            [{"measure": what, "value": value} for what, value in figures.items()],
        ),
        table("Clusters that match, those with most common documents first", pairs),
        *(part("picture", data_uri(png), *about) for png, *about in pictures if png),
    ]
    if cards:
        parts.append(
            part("folded", "Where they disagree most: clusters that share documents but do not match", cards)
        )
    return Section(
        "agreement",
        f"Do {first} and {second} vectors agree?",
        f"{found['conclusion']} Measured on {words.count(found['measured_documents'], 'document')} with "
        f"{number(found['k'])} clusters in either space.",
        parts,
    )


def last_run(of: Numbers) -> Section:
    """Time of each stage, what was new, and evidence that has not been made."""

    def row(stage: Any, what: str, seconds: float, made: str = "") -> dict[str, Any]:
        return {"stage": stage, "in the last run": what, "time": words.seconds(seconds), "made": made}

    rows = [
        row(
            part("stage", run.stage, run.part),
            "kept" if not run.computed
            else "all computed" if run.computed == run.documents
            else f"{number(run.computed)} of {number(run.documents)} computed",
            run.seconds,
            run.made,
        )
        for run in of.runs
    ]  # fmt: skip
    computed = sum(run.computed > 0 for run in of.runs)
    total = row(
        "all stages", f"{computed} computed, {len(rows) - computed} kept", sum(run.seconds for run in of.runs)
    )
    new, kept, gone = (of.manifest["delta"][f"{name}_documents"] for name in ("new", "reused", "dropped"))
    before = (
        f"Against the output before it, {number(new)} documents are new, {number(kept)} were there, "
        f"{number(gone)} are gone."
        if kept or gone
        else "It is the first output in its folder."
    )
    return Section(
        "run",
        "The last run, and what is missing here" if of.missing else "The last run",
        f"What each stage did and the time that took, up to this page; what it kept was made earlier. {before}",
        [
            table("Last run", [*rows, total], [len(rows)]),
            *([part("missing", of.missing)] if of.missing else []),
        ],
    )
