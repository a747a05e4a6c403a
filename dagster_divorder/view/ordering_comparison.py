"""The picture that shows what an order does: the dataset before and after, and every sequence in between.

Two bars show the whole dataset, one in each order, each column coloured by the clusters of the tokens there;
a narrow bar beside them is the corpus's own mix, which every column should resemble. Below: distinct clusters
in each sequence, the prefix deviation, and a table of the numbers. The packed sequences in their own order are a curve
and a row more.

Letters: S sequences, K clusters, C columns of a bar.
Guarantee: the same numbers give the same PNG bytes (one machine, its typefaces, one matplotlib), whatever the user's
style; matplotlib's global state is left as it was.
Cost: some 2 s, O(S + C K).
Source: the first seed's ordering_comparison.png.
Known weakness: above some 40 clusters neighbours are told apart by their place in the bar, not by colour. A name in a
script that no installed typeface has is drawn as boxes.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.metrics import Diversity
from dagster_divorder.core.metrics.along import Binned, binned
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, DPI = 16.0, 11.0, 100  # inches, inches, pixels an inch
# Of the figure's width: both ends of the bars, the gap beside them, the corpus's mix, a panel.
LEFT, RIGHT, GAP, STRIP, PANEL = 0.045, 0.917, 0.012, 0.024, 0.415
BAR = 0.13  # of the figure's height
BAR_PIXELS, BAR_ROWS = round((RIGHT - LEFT) * WIDTH * DPI), round(BAR * HEIGHT * DPI)

NAMES = 0.917  # of the figure's height: where the clusters' names stand

INK, FAINT, RULE = "#222222", "#6b6b6b", "#d0d0d0"
# Told apart with any colour vision, and in grey.
BEFORE, SHUFFLED, AFTER, SEQUENCES = "#d55e00", "#7f7f7f", "#0072b2", "#111111"

# For names in scripts that matplotlib's own typeface lacks, where they are installed.
OTHER_SCRIPTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "WenQuanYi Zen Hei",
    "Arial Unicode MS",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Noto Sans Thai",
    "Noto Sans Devanagari",
)

BIN_SEQUENCES = 16
MIN_BINS, MAX_BINS = 40, 200


@dataclass(frozen=True, eq=False)
class PicturedOrder:
    """One order of the corpus, measured.

    name: how the picture calls it. diversity: of this order, or the average of several alike (shuffles).
    distinct: int (S,), distinct clusters in each sequence. mix: float (C, K) of an order drawn as a bar, from
    `core.metrics.cluster_mix`; crispest with C = min(S, BAR_PIXELS).
    """

    name: str
    diversity: Diversity
    distinct: NDArray[np.int64]
    mix: NDArray[np.float32] | None = None


def ordering_comparison(
    before: PicturedOrder,
    after: PicturedOrder,
    shuffled: PicturedOrder | None = None,
    *,
    sequences: tuple[str, Diversity] | None = None,
    names: Sequence[str] = (),
    title: str | None = None,
) -> "Figure":
    """The figure, 1600 x 1100 pixels. InputError when an order drawn as a bar has no mix, or K differs.

    sequences: what the packed sequences in their order are called, and measure; in the prefix panel and the table.
    names: of the K clusters, by label; the largest are named above the bars, as many as there is room for.
    """
    from matplotlib.figure import Figure

    if before.mix is None or after.mix is None or before.mix.shape[1] != after.mix.shape[1]:
        raise InputError(
            "an order drawn as a bar needs a mix, and both the same clusters; see core.metrics.cluster_mix"
        )
    drawn = [(before, BEFORE), *([(shuffled, SHUFFLED)] if shuffled else []), (after, AFTER)]
    measured = [(order.name, order.diversity, colour) for order, colour in drawn]
    if sequences:
        measured.append((*sequences, SEQUENCES))
    with style():
        figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white")
        _draw_title(figure, before.diversity, before.mix.shape[1], title)
        _draw_bars(figure, [(before, BEFORE), (after, AFTER)], names)
        _draw_distinct(_panel(figure, LEFT), drawn, before.mix.shape[1])
        _draw_prefix(_panel(figure, RIGHT + GAP + STRIP - PANEL), measured)
        _draw_table(figure, measured)
    return figure


def to_png(figure: "Figure") -> bytes:
    """The figure as a PNG file's bytes."""
    rendered = io.BytesIO()
    with style():
        figure.savefig(rendered, format="png", dpi=DPI, metadata={"Software": None})
    return rendered.getvalue()


def cluster_colours(k: int) -> NDArray[np.float64]:
    """k colours, RGB in [0, 1] float64 (k, 3), for things that lie in a row.

    The hue runs once round the OKLCH circle. Neighbours differ in lightness (light, dark, middle, ...), which
    every kind of colour vision tells apart, so borders stay visible where hues look alike.
    """
    hue = np.deg2rad(25.0) + 2.0 * np.pi * np.arange(k) / max(k, 1)
    lightness = np.array([0.80, 0.52, 0.67])[np.arange(k) % 3]
    chroma = np.array([0.105, 0.13, 0.135])[np.arange(k) % 3]
    return _oklab_to_srgb(np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1))


_STYLE: Any = {
    "font.size": 13,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "lines.solid_capstyle": "round",
}


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's defaults and ours, whatever the user has set; what was set before comes back. Names in a script that
    no typeface here has are drawn as boxes, without a warning for every letter."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["font.family"] = ["sans-serif", *_other_scripts()]
        yield


def _other_scripts() -> list[str]:
    """The typefaces that this machine has for scripts that matplotlib's own one lacks."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return [name for name in OTHER_SCRIPTS if name in installed]


Drawn = Sequence[tuple[PicturedOrder, str]]
Measured = Sequence[tuple[str, Diversity, str]]


def _draw_title(figure: "Figure", diversity: Diversity, k: int, title: str | None) -> None:
    facts = (
        f"{diversity.documents:,} documents · {_short(diversity.tokens)} tokens · {k} clusters · "
        f"sequences of {diversity.sequence_length:,} tokens · batches of {diversity.batch:,} sequences"
    )
    figure.text(
        LEFT, 0.963, title or "The same documents, in two orders", size=21, weight="bold", va="baseline"
    )
    figure.text(LEFT, 0.938, facts, size=13, color=FAINT, va="baseline")


def _draw_bars(figure: "Figure", drawn: Drawn, names: Sequence[str]) -> None:
    mixes = [order.mix for order, _ in drawn if order.mix is not None]
    ranks = np.argsort(_centres(mixes[0]), kind="stable")
    colours = cluster_colours(len(ranks))
    _draw_names(figure, names, mixes[0].mean(axis=0, dtype=np.float64), colours[np.argsort(ranks)])
    for (order, colour), mix, bottom in zip(drawn, mixes, (0.752, 0.577), strict=True):
        head = bottom + BAR + 0.009
        axes = figure.add_axes((LEFT, bottom, RIGHT - LEFT, BAR))
        axes.imshow(
            _stacked(mix[:, ranks], colours),
            aspect="auto",
            extent=(0.0, 100.0, 1.0, 0.0),
            interpolation="nearest" if len(mix) <= BAR_PIXELS else "antialiased",
            interpolation_stage="rgba",
        )
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        figure.text(LEFT, head, f"{order.name} order", color=colour, size=15, weight="bold")
        if order is drawn[0][0]:
            axes.set_xticks([])
            width = f"{order.diversity.tokens / len(mix):,.0f}"
            note = f"each column: the clusters' shares of {width} tokens"
            figure.text(RIGHT - GAP, head, note, color=FAINT, size=12, ha="right")
            figure.text(RIGHT + GAP + STRIP / 2, head, "corpus", color=FAINT, size=12, ha="center")
        else:
            _percent_axis(axes)

        corpus = figure.add_axes((RIGHT + GAP, bottom, STRIP, BAR))
        whole = mix.mean(axis=0, dtype=np.float64, keepdims=True)[:, ranks]
        corpus.imshow(_stacked(whole, colours), aspect="auto", interpolation="nearest")
        corpus.set_axis_off()


def _draw_names(
    figure: "Figure", names: Sequence[str], shares: NDArray[np.float64], colours: NDArray[np.float64]
) -> None:
    """The names of the largest clusters in a row, each behind its colour."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    left = LEFT
    for cluster in np.argsort(-shares, kind="stable")[: len(names)]:
        text = figure.text(left + 0.011, NAMES, names[cluster], size=11, color=FAINT, parse_math=False)
        right = text.get_window_extent(renderer).x1 / (WIDTH * DPI)
        if right > RIGHT + GAP + STRIP:
            text.remove()
            break
        figure.text(left, NAMES, "■", size=11, color=colours[cluster])
        left = right + 0.013


def _draw_distinct(axes: "Axes", drawn: Drawn, k: int) -> None:
    from matplotlib.ticker import MaxNLocator

    top = 1
    for order, colour in drawn:
        along = _along(order.distinct)
        at = 100 * along.at
        axes.fill_between(at, along.low, along.high, color=colour, alpha=0.16, linewidth=0, step="mid")
        axes.plot(at, along.mean, color=colour, linewidth=1.8, label=order.name)
        top = max(top, int(along.high.max(initial=0)))
    if k <= 1.6 * top:
        axes.axhline(k, color=FAINT, linewidth=0.9, linestyle=(0, (4, 4)))
        axes.text(100, k, f"all {k}", color=FAINT, size=11, ha="right", va="bottom")
        top = k
    axes.set_ylim(0, top * 1.08)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    _percent_axis(axes)
    _headline(
        axes,
        "Clusters per sequence",
        "distinct ones; line: mean, band: least to most, of neighbouring sequences",
    )


def _draw_prefix(axes: "Axes", measured: Measured) -> None:
    axes.set_yscale("log")
    for name, diversity, colour in measured:
        prefix = diversity.prefix
        shown = prefix.l2 > 0
        axes.plot(100 * prefix.share[shown], prefix.l2[shown], color=colour, linewidth=1.8, label=name)
    _percent_axis(axes)
    _headline(axes, "Prefix deviation", "tokens so far against the mix: L2 distance in tokens, log scale")


def _draw_table(figure: "Figure", measured: Measured) -> None:
    """Numbers right-aligned under their headings, one row an order."""
    d = measured[0][1]
    columns = [
        ("clusters a\nsequence, mean", lambda m: f"{m.split.mean:.2f}"),
        ("clusters a\nsequence, least", lambda m: f"{m.split.min:.4g}"),
        ("batch vs mix,\nTV, mean", lambda m: f"{m.batch_shares['cluster'].mean_tv:.4f}"),
        ("batch vs mix,\nTV, worst", lambda m: f"{m.batch_shares['cluster'].max_tv:.4f}"),
        ("prefix deviation,\ntokens, mean", lambda m: f"{m.prefix.mean:,.0f}"),
        ("every cluster\nseen after", lambda m: f"{100 * m.coverage:.3g} %"),
    ]
    if d.batch_shares["cluster"].partial:
        columns = columns[:2] + columns[4:]  # all data in less than one batch: each order has the same
    edges = np.linspace(LEFT + 0.1, RIGHT + GAP + STRIP, len(columns) + 1)[1:]
    top = 0.112
    for right, (heading, _) in zip(edges, columns, strict=True):
        for line, text in enumerate(heading.split("\n")):
            figure.text(right, top + 0.018 * (1 - line), text, size=12, color=FAINT, ha="right")
    for row, (name, diversity, colour) in enumerate(measured):
        y = top - 0.028 - 0.0235 * row
        figure.text(LEFT, y, name, size=14, weight="bold", color=colour)
        for right, (_, value) in zip(edges, columns, strict=True):
            figure.text(right, y, value(diversity), size=14, ha="right")


def _panel(figure: "Figure", left: float) -> "Axes":
    axes = figure.add_axes((left, 0.215, PANEL, 0.235))
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    return axes


def _percent_axis(axes: "Axes") -> None:
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("position in the dataset, % of tokens")


def _headline(axes: "Axes", title: str, note: str) -> None:
    axes.annotate(title, (0, 1), (0, 30), "axes fraction", "offset points", size=15, weight="bold")
    axes.annotate(note, (0, 1), (0, 12), "axes fraction", "offset points", size=12, color=FAINT)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.115),
        ncols=4,
        frameon=False,
        handlelength=0.8,
        handletextpad=0.5,
        columnspacing=1.2,
        borderaxespad=0.0,
        labelcolor="linecolor",
    )


def _centres(mix: NDArray[np.floating]) -> NDArray[np.float64]:
    """Mean position of each cluster's tokens in the bar, (K,): clusters that lie together get like hues."""
    total = mix.sum(axis=0, dtype=np.float64)
    moment = (np.arange(len(mix))[:, None] * mix).sum(axis=0, dtype=np.float64)
    return moment / np.where(total > 0, total, 1.0)


def _stacked(mix: NDArray[np.floating], colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """The bar as RGB float64 (BAR_ROWS, C, 3): in each column each cluster has its share of the height."""
    fine = 4 * BAR_ROWS
    heights = (np.arange(fine) + 0.5) / fine
    cluster = np.stack([np.searchsorted(np.cumsum(row, dtype=np.float64), heights) for row in mix], axis=1)
    pixels = np.concatenate([colours, np.ones((1, 3))])[cluster]
    return np.asarray(pixels.reshape(BAR_ROWS, 4, len(mix), 3).mean(axis=1))


def _along(distinct: NDArray[np.int64]) -> Binned:
    """Distinct clusters of runs of neighbouring sequences, as many runs as a line can show."""
    return binned(distinct, max(MIN_BINS, min(len(distinct) // BIN_SEQUENCES, MAX_BINS)))


def _short(n: int) -> str:
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return str(n)


def _oklab_to_srgb(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    """OKLab (n, 3) to sRGB, clipped to [0, 1]. Constants: Ottosson 2020, "A perceptual color space"."""
    to_lms = np.array(
        [
            [1, 0.3963377774, 0.2158037573],
            [1, -0.1055613458, -0.0638541728],
            [1, -0.0894841775, -1.2914855480],
        ]
    )
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip((lab @ to_lms.T) ** 3 @ to_rgb.T, 0.0, 1.0)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
