"""Charts: one function draws each on given axes, for PNG files and the report alike. The caller places and titles the
axes; `view.drawing` has the style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.evidence.training_evidence import HELD_OUT, by_source
from dagster_divorder.core.measure.along import Binned
from dagster_divorder.core.measure.stationarity import TENTHS, Stationarity
from dagster_divorder.core.topics.k_calibration import as_good_as
from dagster_divorder.settings.sections import SHUFFLED
from dagster_divorder.view.drawing import COLOURS, cluster_colours, drawable, line_of, stacked
from dagster_divorder.view.measures import MEASURES, TRAIT, TV_OF
from dagster_divorder.view.shown import Chart, Panel, Series
from dagster_divorder.view.verdict import Verdict
from dagster_divorder.view.words import NAME, ORDERS, TRAIN_ON, clip, fixed, listed, number, points, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE = 300
"""Most points of a curve."""
WHOLE_FROM = 3
"""Scales that end above this have whole numbers."""
PALE = 0.2
"""Opacity of bands, so that they hide neither lines nor grid."""
BAR_ROWS = 200
"""Pixels of a bar, from top to bottom."""
DRIFTS = 3
"""Most features whose drift is drawn."""
TICKS = 12
"""Most labels of an axis of numbers of clusters."""

SERIES = {
    order: Series(name, order if order in COLOURS else "shuffled", dashed=order == "sequences_random")
    for order, name in ORDERS.items()
}
"""The measured orders, by the names of `diversity_metrics`."""
ASKED = Series("asked", "muted", dashed=True)
ALONG = "Position in the dataset, % of tokens"
BAND = Series("from the lowest to the highest of three shuffles", "shuffled")
Line = tuple[NDArray[np.float64], NDArray[np.float64], Series]
"""Positions as shares of the dataset, (P,), values there, (P,), and their series."""
Band = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], Series]
"""The same with lowest and highest values."""


def bars(
    axes: Axes, mix: NDArray[np.floating], colours: NDArray[np.float64], ranked: NDArray[np.integer]
) -> None:
    """The mix along an order, (C, J), as columns in the values' colours, RGB (J, 3), and behind a gap the whole's.
    ranked: the values from top to bottom, int (J,)."""
    columns = colours[ranked][stacked(mix[:, ranked], BAR_ROWS)]
    whole = colours[ranked][stacked(mix.mean(axis=0, keepdims=True)[:, ranked], BAR_ROWS)]
    gap = max(1, len(mix) // 100)
    picture = np.zeros((BAR_ROWS, len(mix) + 4 * gap, 4))  # the gap is transparent
    for shown, part in ((columns, np.s_[:, : len(mix)]), (whole, np.s_[:, len(mix) + gap :])):
        picture[part] = np.insert(shown, 3, 1.0, axis=2)
    end = 100 * picture.shape[1] / len(mix)
    axes.imshow(picture, aspect="auto", extent=(0, end, 1, 0), interpolation="none")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set(xticks=range(0, 101, 25), yticks=[])


def along(
    axes: Axes,
    lines: Sequence[Line],
    bands: Sequence[Band] = (),
    *,
    log: bool = False,
    limits: tuple[float, float] | None = None,
) -> None:
    """Lines along the dataset over pale bands, lines thinned to CURVE points. A logarithmic scale omits zeros. limits:
    of the vertical scale."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    for at, low, high, series in bands:
        low, high = (np.where(edge > 0, edge, np.nan) if log else edge for edge in (low, high))
        axes.fill_between(100 * at, low, high, color=COLOURS[series.colour], alpha=PALE, linewidth=0)
    for at, values, series in lines:
        points = np.flatnonzero(values > 0) if log else np.arange(len(values))
        points = points[:: -(-len(points) // CURVE) or 1]
        axes.plot(100 * at[points], values[points], **line_of(series))
    if log and any((values > 0).any() for _, values, _ in lines):
        axes.set_yscale("log")
        bottom, top = axes.get_ylim()
        # matplotlib replaces fewer than two ticks with many that touch.
        subs = (1.0, 3.0) if top >= 10 * bottom else (1.0, 2.0, 5.0)
        axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: short(value))
    if limits is not None:
        axes.set_ylim(*limits)
        if not log and limits[1] > WHOLE_FROM:
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 101, 25))


def before_and_after(
    metrics: Mapping[str, Any],
    mixes: Mapping[str, NDArray[np.floating]],
    sequences: Mapping[str, Binned],
    names: Sequence[str],
) -> dict[str, Chart]:
    """The dataset as bars of its clusters, and distinct clusters in every sequence; a panel an order, all on one scale.

    metrics: as in `core.measure.order.Measures`. mixes: shares of the K clusters in slices of the dataset, float
    (C, K). sequences: distinct clusters in neighbouring sequences. names: of the clusters.
    """
    first, of = mixes["original"], metrics[TRAIN_ON]
    # Clusters at nearby places become neighbours.
    sizes = first.sum(axis=0, dtype=np.float64)
    place = (np.arange(len(first))[:, None] * first).sum(axis=0, dtype=np.float64)
    ranked = np.argsort(place / np.maximum(sizes, 1e-9), kind="stable")
    colours, measure = cluster_colours(len(names)), MEASURES[TV_OF + TRAIT].of_trait("cluster")
    top = 1.08 * max((float(bins.high.max(initial=1.0)) for bins in sequences.values()), default=1.0)
    bar_panels, panels = [], []
    for name, mix in mixes.items():
        series, off, bins = SERIES[name], measure.figure(metrics[name]), sequences[name]
        title = series.name if off is None else f"{series.name} · {measure.name} {measure.show(off)} %"
        draw = partial(bars, mix=mix, colours=colours, ranked=ranked)
        bar_panels.append(Panel(title, draw, series.colour))
        lines, bands = [(bins.at, bins.mean, series)], [(bins.at, bins.low, bins.high, series)]
        draw = partial(along, lines=lines, bands=bands, limits=(0, top))
        mean = fixed(metrics[name]["distinct"]["cluster"]["mean"])
        panels.append(Panel(f"{series.name}: {mean}", draw, series.colour))
    return {
        "bars": Chart(
            bar_panels,
            f"The dataset as bars of its clusters. {'; '.join(panel.title for panel in bar_panels)}.",
            f"Each column shows the clusters’ shares of {of['tokens'] / max(1, len(first)):,.0f} neighbouring tokens; "
            f"the last bar, behind a gap, is the whole corpus. {ALONG}.",
            across=1,
            height=120,
            values=(drawable(names), sizes),
        ),
        "distinct": Chart(
            panels,
            f"Distinct clusters in a sequence, on average: {'; '.join(panel.title for panel in panels)}.",
            "Distinct clusters in a sequence; their mean is in the title. Line: mean of neighbouring sequences; band: "
            f"fewest to most. {ALONG}.",
            height=185,
        ),
    }


def windows(verdict: Verdict) -> dict[str, Chart]:
    """How far an order's windows are from the mix, beside three shuffles: up to any point, by trait, and the mix along
    an order of several stretches."""
    metrics, panels = verdict.metrics, []
    for trait in verdict.traits:
        for scale, title in {"cumulative": "up to each step", "batch": "in each batch"}.items():
            curves = metrics[TRAIN_ON]["curves"]["trait_errors"][trait][scale]
            at, shuffled = np.asarray(curves["at"]), np.asarray(curves["shuffled"])
            # Orders that are packed separately may differ by a step.
            points = min(len(at), shuffled.shape[-1])
            edges = (edge(shuffled[..., :points], axis=0) for edge in (np.min, np.max))
            bands = [(at[:points], *edges, BAND)] if points else []
            lines = [(at, np.asarray(curves["ours"]), SERIES[TRAIN_ON])]
            draw = partial(along, lines=lines, bands=bands, log=True)
            panels.append(Panel(f"{clip(trait, NAME)}, {title}", draw))
    means = "; ".join(
        f"{ORDERS[name]} {number(figures['prefix']['mean'])}" for name, figures in metrics.items()
    )
    whose = "the mix of their stretch" if verdict.stretches > 1 else "the corpus’s mix"
    caption = f"Distance from {whose} in tokens, logarithmic scale; lower is better. {ALONG}."
    shown = {
        "prefix": prefixes(metrics, "all traits, up to any point")._replace(
            what=f"Distance from the mix of everything read so far. On average, in tokens: {means}.",
            caption=caption,
        ),
        "errors": Chart(
            panels,
            "Distance of each trait from the mix along the dataset, ours and shuffled, up to each step and in each "
            "batch.",
            caption,
            across=2,
            legend=[SERIES[TRAIN_ON], BAND],
        ),
    }
    if mixes := metrics[TRAIN_ON].get("mixes"):
        shown["mix"] = stretches(mixes)
    return shown


def prefixes(metrics: Mapping[str, Any], title: str) -> Chart:
    """Prefix deviation along every order of `metrics`, as in `core.measure.order.Measures`, on a logarithmic scale."""
    curves = {name: figures["prefix"] for name, figures in metrics.items() if any(figures["prefix"]["l2"])}
    lines = [
        (np.array(curve["share"]), np.array(curve["l2"]), SERIES[name]) for name, curve in curves.items()
    ]
    panel = Panel(title, partial(along, lines=lines, log=True))
    return Chart([panel], across=1, legend=[SERIES[name] for name in curves])


def stretches(mixes: Mapping[str, Any]) -> Chart:
    """The asked and achieved share of each value along an order of several stretches. mixes: as
    `stages.measure.diversity_metrics` stores them."""
    ends, asked, achieved = (np.asarray(mixes[name]) for name in ("ends", "asked", "achieved"))
    top = 108 * max(float(asked.max(initial=0.0)), float(achieved.max(initial=0.0)), 0.01)
    slices = (np.arange(len(achieved)) + 0.5) / max(1, len(achieved))
    borders, panels = np.repeat(np.append(0.0, ends), 2)[1:-1], []
    for column, value in enumerate(mixes["values"]):
        lines = [
            (slices, 100 * achieved[:, column], SERIES[TRAIN_ON]),
            (borders, 100 * asked[:, column].repeat(2), ASKED),
        ]
        panels.append(Panel(clip(value, NAME) or "(empty)", partial(along, lines=lines, limits=(0, top))))
    stretch = np.minimum(np.searchsorted(ends, slices), len(asked) - 1)
    off = points(float(np.abs(achieved - asked[stretch]).max(initial=0.0)))
    what = f"Shares of {mixes['trait']} along the dataset, asked and achieved: at most {off} percentage points apart."
    caption = f"% of the tokens in slices of training, by {mixes['trait']}. {ALONG}."
    return Chart(panels, what, caption, legend=[ASKED, SERIES[TRAIN_ON]])


def drift(measured: Stationarity) -> Chart:
    """Distance of each tenth of training from the whole, over a band of shuffles, for the features whose farthest
    tenths exceed shuffling most."""
    # A field with one value has equal tenths.
    with_tenths = [feature for feature in measured.features if any(feature.along)]
    farthest = sorted(with_tenths, key=lambda feature: -feature.measures["tenths"].excess)[:DRIFTS]
    middles, edges, panels, said = (np.arange(TENTHS) + 0.5) / TENTHS, np.array([0.0, 1.0]), [], []
    for feature in farthest:
        low, high = feature.shuffled_along
        lines = [(middles, np.array(feature.along), SERIES[TRAIN_ON])]
        bands = [(edges, np.full(2, low), np.full(2, high), SERIES["random"])]
        limits = (0.0, 1.1 * max(*feature.along, high, 1e-9))
        panels.append(Panel(feature.feature, partial(along, lines=lines, bands=bands, limits=limits)))
        said.append(f"{feature.feature} {number(max(feature.along), 2)}, shuffled {number(high, 2)}")
    return Chart(
        panels,
        f"Distance of each tenth of training from the whole. Farthest tenth: {listed(said)}." if said else "",
        "Distance of each tenth of training from the whole, for the features whose tenths differ most. The band holds "
        "90 % of the shuffles’ tenths. Position in the dataset, %.",
    )


def calibration(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """Silhouettes by number of clusters, evenly spaced, with a mark at the recommended one, over a band of values close
    to the best. rows: the table of k_calibration, by rising `k`."""
    values = [row["silhouette"] for row in rows]
    (recommended,) = (at for at, row in enumerate(rows) if row["recommended"])
    said = ", ".join(f"{row['k']:,}: {number(row['silhouette'])}" for row in rows)

    def draw(axes: Axes) -> None:
        axes.axhspan(as_good_as(max(values)), max(values), color=COLOURS["rule"], alpha=0.6, linewidth=0)
        axes.plot(values, "o-", color=COLOURS["curated"], markersize=5)
        axes.margins(y=0.15)
        ticks = range(0, len(rows), -(-len(rows) // TICKS))
        axes.set_xticks(ticks, [f"{rows[tick]['k']:,}" for tick in ticks])
        axes.axvline(recommended, color=COLOURS["ink"], linewidth=1, linestyle=(0, (4, 4)), zorder=1)

    return Chart(
        [Panel(f"{rows[recommended]['k']:,} clusters recommended", draw)],
        f"Mean silhouette by number of clusters: {said}.",
        "Mean silhouette over the documents, cosine, by number of clusters. The dashed line marks the highest number "
        "with a silhouette close to the best (grey).",
    )


TRAINED = {
    "original": Series("original", "original"),
    "random_documents": Series("random documents", "shuffled", dashed=True),
    "random_sequences": Series("random sequences", "shuffled"),
    "curated": Series("curated", "sequences"),
}


def trainings(summary: Mapping[str, Any]) -> Chart:
    """Effects of orders on small models: loss curves, the seam between epochs enlarged, held-out differences with
    their intervals, and stable ranks of the gradients by matrix. summary: of `stages.evidence.training_evidence`."""
    orders, sources, layers, epochs = (summary[key] for key in ("orders", "sources", "layers", "epochs"))
    others, lines = iter(cluster_colours(len(orders))), dict[str, dict[str, Any]]()
    for name in (order["order"] for order in orders):
        of_name = {"label": name.replace("_", " ")}
        lines[name] = line_of(TRAINED[name]) if name in TRAINED else {**of_name, "color": next(others)}

    def losses(axes: Axes) -> None:
        curves = [np.asarray(order["losses"], np.float64) for order in orders]
        for line, curve in zip(lines.values(), curves, strict=True):
            axes.plot(epochs * (np.arange(len(curve)) + 0.5) / len(curve), curve, **line)
        axes.legend(ncols=2, fontsize=11)
        # The first steps' high losses would leave no room for the rest.
        every = np.concatenate(curves)
        axes.set_ylim(0.98 * np.nanmin(every), np.nanquantile(every, 0.96))
        axes.set_xlabel("epochs")

    def around_seam(axes: Axes) -> None:
        """The last tenth of the first epoch and the first tenth of the second."""
        for line, order in zip(lines.values(), orders, strict=True):
            values = np.asarray(order["norms around the seam"], np.float64)
            if len(values):
                width = max(1, len(values) // 60)
                kept = values[: len(values) // width * width].reshape(-1, width).mean(1)
                axes.plot(-10 + 20 * (np.arange(len(kept)) + 0.5) / len(kept), kept, **line)
        axes.axvline(0, color=COLOURS["muted"], linewidth=0.9, linestyle=(0, (4, 4)))
        axes.set_xlabel("% of an epoch from the seam")

    def heldout(axes: Axes) -> None:
        """The mean over sources first, then each source, a mark an order. The scale is linear around 0 and logarithmic
        beyond the median."""
        groups, sizes = ["all", *sources], []
        compared = [order for order in orders if order["order"] != SHUFFLED]
        for at, order in enumerate(compared):
            line, figures = lines[order["order"]], order["figures"]
            less = [figures[figure]["less shuffled"] for figure in (HELD_OUT, *map(by_source, sources))]
            middle, low, high = np.array(
                [[row[key] for key in ("mean", "low", "high")] for row in less], np.float64
            ).T
            place = np.arange(len(groups)) + 0.7 * ((at + 0.5) / len(compared) - 0.5)
            axes.plot(middle, place, "o", markersize=4, color=line["color"], label=line["label"])
            axes.hlines(place, low, high, color=line["color"], linewidth=1.2)
            sizes.append(np.abs(middle))
        axes.axvline(0, color=COLOURS["muted"], linewidth=0.9)
        axes.set_xscale("symlog", linthresh=float(np.nanmedian(sizes)) or 1.0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_yticks(range(len(groups)), [clip(group, NAME) for group in groups])
        axes.invert_yaxis()
        axes.set_xlabel("nats a token; left of 0 is better")

    def stable_ranks(axes: Axes) -> None:
        for name, ranks in layers.items():
            if name != SHUFFLED:
                less = np.array(ranks, np.float64) - np.array(layers[SHUFFLED], np.float64)
                axes.plot(range(len(less)), less, marker="o", markersize=3, **lines[name])
        axes.axhline(0, color=COLOURS["muted"], linewidth=0.9)
        axes.set_xlabel("weight matrices, from the first layer to the last")
        axes.set_xticks([])

    panels = [Panel("training loss, nats a token", losses)]
    if epochs > 1:
        panels.append(Panel("gradient norm around the seam", around_seam))
    panels += [
        Panel("held-out loss less shuffled", heldout),
        Panel("stable rank of gradients less shuffled", stable_ranks),
    ]
    return Chart(
        panels,
        "The same tokens in several orders: training loss, gradients around the seam of epochs, held-out loss by "
        "source, stable ranks.",
        f"{summary['weights']:,} weights · {epochs} epochs of {summary['steps']:,} steps of "
        f"{summary['batch']:,} × {summary['length']:,} tokens · means over {summary['seeds']} seeds; bars are 95 % "
        "intervals; stable ranks are those at the end of training, by weight matrix.",
        across=2,
        height=330,
    )
