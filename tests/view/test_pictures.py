"""Every picture: it draws whatever there is, with nothing cut off, always the same bytes, and says what it shows."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
import orjson
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image

from dagster_divorder.core import measure
from dagster_divorder.core.evidence.training_evidence import (
    HELD_OUT,
    JUMP,
    Trained,
    by_source,
    summarise,
)
from dagster_divorder.core.packing import Pieces, pack
from dagster_divorder.stages.evidence.training_evidence import evidence_tables
from dagster_divorder.view import charts, drawing, pictures, words


def ordering_comparison(
    n: int = 400, k: int = 30, columns: int = 60, names: list[str] | None = None
) -> bytes:
    tokens, labels = np.random.default_rng(0).integers(1, 200, n), np.arange(n) * k // max(n, 1)
    orders = {
        "original": np.arange(n),
        "sequences_random": np.random.default_rng(1).permutation(n),
        "sequences": np.argsort(np.arange(n) * 0.6180339887 % 1.0, kind="stable"),
    }
    measured, sequences = {}, {}
    for name, order in orders.items():
        packed = pack(Pieces(order, np.zeros_like(order), tokens[order]), sequence_length=256)
        counts = measure.packed_counts(packed, {"cluster": labels}, {"cluster": k})
        shown = {"sequence_length": 256, "documents": n}
        measured[name] = measure.measure(counts, np.arange(len(packed)), batch=4, **shown).figures
        sequences[name] = measure.along.binned(1 + np.arange(len(packed)) % k, 60)
    mixes = {
        name: measure.cluster_mix(tokens[order], labels[order], k, columns) for name, order in orders.items()
    }
    names = names or [f"term {number}" for number in range(k)]
    shown = charts.before_and_after(measured, mixes, sequences, names)
    return pictures.ordering_comparison(measured, shown)


def documents(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Places and clusters; the first clusters are the largest."""
    random = np.random.default_rng(0)
    labels = np.sort(np.minimum(random.geometric(min(0.5, 4 / k), n) - 1, k - 1)).astype(np.int32)
    xy = random.normal(scale=6.0, size=(k, 2))[labels] + random.normal(size=(n, 2))
    return xy.astype(np.float32), labels


def cluster_map(n: int, k: int) -> bytes:
    xy, labels = documents(n, k)
    names = ["$\\frac{1}$ and $", "中文, 日本語", "", "x" * 500, *(f"term {number}" for number in range(k))][
        :k
    ]
    return pictures.cluster_map(
        f"{n} documents", "a note", names, np.bincount(labels, minlength=k).tolist(), xy, labels
    )


DRAWN: dict[str, Callable[[], bytes]] = {
    "a map of 400 clusters": lambda: cluster_map(2000, 400),
    "a map of one": lambda: cluster_map(1, 1),
    "orders of 300 clusters": lambda: ordering_comparison(400, 300),
    "orders of nothing": lambda: ordering_comparison(0, 1, 4),
    "names in any script": lambda: ordering_comparison(names=["臺灣, 歷史"] * 30),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_it_draws_with_a_white_rim(draw: Callable[[], bytes]) -> None:
    file = draw()
    image = imread(io.BytesIO(file))[..., :3]
    assert image.shape[1] == 1600 and len(file) < 400_000
    assert (image[[0, -1]] == 1).all() and (image[:, [0, -1]] == 1).all(), "something is cut off"
    assert (image.min(axis=2) < 0.5).sum() > 1000, "there is no ink"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bytes]], Figure]:
    """The figure of a picture, instead of its bytes."""
    figures: list[Figure] = []

    def sheet_picture(*head: object, **more: object) -> bytes:
        with drawing.style():
            figures.append(drawing.sheet(*head, **more))  # type: ignore[arg-type]
        return b""

    monkeypatch.setattr(pictures, "sheet_picture", sheet_picture)
    return lambda draw: (draw(), figures[-1])[1]


def test_orders_are_compared_with_numbers_in_the_colours_of_clusters(drawn: Callable[..., Figure]) -> None:
    names = [f"$name of {label}, which is long, and long enough" for label in range(30)]
    figure = drawn(lambda: ordering_comparison(names=names))
    bars = [axes for axes in figure.axes if axes.images]
    titles = [axes.get_title(loc="left") for axes in bars]
    orders = ["original order", "training sequences shuffled", "training sequences in order"]
    assert [title.partition(" · batch TV of cluster, mean ")[0] for title in titles] == orders
    # Of clusters in a sequence each order has a panel, on one scale.
    panels = [axes for axes in figure.axes if axes.get_title(loc="left").partition(": ")[0] in orders]
    assert len(panels) == 3 and len({axes.get_ylim() for axes in panels}) == 1
    # The largest clusters are named, after their colours.
    (legend,) = [of for of in figure.findobj(mpl.legend.Legend) if len(of.get_patches())]
    shown = [text.get_text() for text in legend.get_texts()]
    assert len(shown) == drawing.NAMED and shown[0].startswith("$name of")
    largest = int(shown[0].removeprefix("$name of ").partition(",")[0])
    assert shown[0] == words.clip(names[largest], words.NAME)
    colour = legend.get_patches()[0].get_facecolor()[:3]
    assert colour == pytest.approx(drawing.cluster_colours(30)[largest])


def test_a_bar_shows_each_share_to_a_pixel_and_the_whole_behind_a_gap() -> None:
    mix = np.random.default_rng(0).dirichlet(np.ones(6), 20).astype(np.float32)
    colours, axes = drawing.cluster_colours(6), Figure().add_subplot()
    charts.bars(axes, mix, colours, np.arange(6))
    shown = np.asarray(axes.images[0].get_array())
    assert shown.shape == (charts.BAR_ROWS, 24, 4) and (shown[:, 20, 3] == 0).all()
    shown = shown[..., :3]
    np.testing.assert_allclose(shown[:, :20].mean(axis=0), mix @ colours, atol=6 / charts.BAR_ROWS)
    np.testing.assert_allclose(
        shown[:, 21].mean(axis=0), mix.mean(axis=0) @ colours, atol=6 / charts.BAR_ROWS
    )
    # Columns are not smoothed.
    assert axes.images[0].get_interpolation() == "none"


def test_the_recommended_number_is_marked_and_labels_do_not_touch() -> None:
    def drawn(tried: range | tuple[int, ...], silhouettes: list[float]) -> Axes:
        rows = [
            {"k": k, "silhouette": silhouette, "recommended": at == len(tried) // 2}
            for at, (k, silhouette) in enumerate(zip(tried, silhouettes, strict=True))
        ]
        axes, (panel,) = Figure().add_subplot(), charts.calibration(rows).panels
        panel.draw(axes)
        assert panel.title == f"{tried[len(tried) // 2]} clusters recommended"
        return axes

    axes = drawn((5, 10, 30, 100), [0.1, 0.2, 0.19, 0.1])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["5", "10", "30", "100"]
    assert any(list(line.get_xdata()) == [2, 2] for line in axes.lines)
    many = drawn(range(2, 300), np.linspace(0.3, 0, 298).tolist())
    assert 5 < len(many.get_xticks()) <= charts.TICKS
    assert len(drawn((7,), [0.0]).get_xticks()) == 1


def test_a_map_has_its_clusters_numbers_beside_their_names_and_sizes(drawn: Callable[..., Figure]) -> None:
    figure = drawn(lambda: cluster_map(600, 6))
    points, sizes = figure.axes
    labels = documents(600, 6)[1]
    assert {text.get_text() for text in points.texts} == {str(label) for label in set(labels.tolist())}
    assert np.array_equal(points.collections[0].get_facecolor()[:, :3], drawing.cluster_colours(6)[labels])
    assert [bar.get_width() for bar in sizes.patches] == sorted(np.bincount(labels), reverse=True)
    assert sizes.get_yticklabels()[0].get_text().endswith("  0")


def test_a_name_that_no_typeface_here_can_draw_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "OTHER_SCRIPTS", ())  # as on a machine without further typefaces
    names = ["臺灣, 歷史", "축구, 시즌", "straße, łódź", "команда", "film ★, song"]
    assert drawing.drawable(names) == ["cluster 0", "cluster 1", *names[2:]]
    assert drawing.drawable([]) == []


@pytest.mark.parametrize("k", [8, 30, 200])
def test_colours_differ_and_those_of_the_largest_clusters_lie_far_apart(k: int) -> None:
    colours = drawing.cluster_colours(k)
    assert colours.shape == (k, 3) and (colours >= 0).all() and (colours <= 1).all()
    assert len(np.unique(colours, axis=0)) == k and drawing.cluster_colours(0).shape == (0, 3)
    gaps = np.linalg.norm(colours[:8, None] - colours[None, :8], axis=2)[np.triu_indices(8, 1)]
    assert gaps.min() > 0.12


@pytest.mark.parametrize("top", [8_500.0, 20_000.0, 3e5])
def test_a_logarithmic_axis_has_few_labels_whatever_it_spans(top: float) -> None:
    axes = Figure().add_subplot()
    charts.along(
        axes, [(np.linspace(0, 1, 50), np.linspace(1_300.0, top, 50), charts.SERIES["original"])], log=True
    )
    low, high = axes.get_ylim()
    assert 2 <= sum(low <= tick <= high for tick in axes.get_yticks()) <= 7


HOSTILE = "<script>alert(1)</script>"
STEPS = 40


def summary(
    orders: tuple[str, ...] = ("original", "random_sequences", "curated", "stratified/original"),
    seeds: int = 3,
    failed: str = "",
) -> dict[str, Any]:
    """As the stage stores it, of trainings that were drawn."""
    draw = np.random.default_rng(0)

    def training(order: str) -> Trained:
        nothing = np.nan if order == failed else 1.0
        return Trained(
            losses=(nothing * draw.normal(4, 0.1, 2 * STEPS)).astype(np.float32),
            norms=(nothing * draw.uniform(0.5, 1.5, 2 * STEPS)).astype(np.float32),
            heldout=nothing * draw.normal(4, 0.1, (2, 2)),
            ranks=nothing * draw.uniform(1, 2, (2, 2)),
        )

    trained = {
        (order, rate): [training(order) for _ in range(seeds)] for order in orders for rate in (1e-3, 3e-3)
    }
    parts = {"attention": np.array([True, False])}
    summary = {
        **summarise(trained, "random_sequences", STEPS, ["wiki", HOSTILE], parts, 1000),
        **{"weights": 1000, "seeds": seeds, "epochs": 2, "steps": STEPS, "batch": 4, "length": 32},
        "notes": [f"no document of {HOSTILE}"],
    }
    stored: dict[str, Any] = orjson.loads(orjson.dumps(summary, option=orjson.OPT_SERIALIZE_NUMPY))
    return stored


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "given",
    [{}, {"seeds": 1}, {"failed": "curated"}, {"orders": ("random_sequences", "curated")}],
)
def test_the_tables_and_the_chart_say_what_there_is(given: dict[str, Any]) -> None:
    of = summary(**given)
    tables = evidence_tables(of)
    assert len(tables["rates"]) == 2 * len(of["orders"])
    figures = {row["figure"] for row in tables["figures"]}
    assert {HELD_OUT, JUMP, by_source(HOSTILE)} < figures
    assert len(tables["figures"]) == len(of["orders"]) * len(figures)
    for row in tables["figures"]:
        if row["order"] != given.get("failed"):
            assert (" to " in row["less shuffled"]) == (of["seeds"] > 1) == ("±" in row["mean"])
    chart = charts.trainings(of)
    assert len(chart.panels) == 4
    assert Image.open(io.BytesIO(drawing.sheet_picture([chart]))).width == 1600


def test_stars_are_of_differences_beyond_noise() -> None:
    of = summary()
    for order in of["orders"]:
        low, high = (-2.2, 0.2) if order["order"] == "original" else (-1.2, -0.8)
        for pair in order["figures"].values():
            pair["less shuffled"] = {"mean": -1.0, "error": 0.1, "low": low, "high": high}
    for row in evidence_tables(of)["figures"]:
        assert row["less shuffled"].endswith(" *") == (row["order"] != "original")
