"""The comparison picture: it draws whatever there is, exactly, and always the same bytes."""

import colorsys
import io
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from dagster_divorder.core import measure
from dagster_divorder.core.packing import Pieces, pack
from dagster_divorder.view import charts, drawing, pictures
from dagster_divorder.view.pictures import ordering_comparison
from dagster_divorder.view.words import brief, points
from tests.twins.metrics import distinct


def pictured(order: np.ndarray, n: int, k: int, columns: int = 60) -> tuple[dict, np.ndarray, np.ndarray]:
    """An order's measures, the clusters in each of its sequences, and its mix."""
    tokens = np.random.default_rng(0).integers(1, 200, n)
    labels = np.arange(n) * k // max(n, 1)
    return (
        measured(order, tokens, labels, k),
        np.array(distinct(tokens[order], labels[order], 256)),
        measure.cluster_mix(order, tokens, labels, k, columns),
    )


def measured(order, tokens, labels, k):
    """The measures of documents that are packed in an order."""
    packed = pack(Pieces(order, np.zeros_like(order), tokens[order]), sequence_length=256)
    counts = measure.packed_counts(packed, {"cluster": labels}, {"cluster": k})
    shown = {"sequence_length": 256, "documents": len(order)}
    return measure.measure(counts, np.arange(len(packed)), batch=4, **shown).figures


def riffled(n: int) -> np.ndarray:
    return np.argsort(np.arange(n) * 0.6180339887 % 1.0, kind="stable")


def png(n: int = 400, k: int = 30, shuffled: bool = True, columns: int = 60, names: list[str] | None = None):
    shuffle = pictured(np.random.default_rng(1).permutation(n), n, k, columns)
    orders = {
        "original": pictured(np.arange(n), n, k, columns),
        **({"sequences_random": shuffle} if shuffled else {}),
        "sequences": pictured(riffled(n), n, k, columns),
    }
    figures = {name: each for name, (each, _, _) in orders.items()}
    if shuffled:
        figures = {"original": figures.pop("original"), "random": shuffle[0], **figures}
    clusters = {name: each for name, (_, each, _) in orders.items()}
    mixes = {name: mix for name, (_, _, mix) in orders.items()}
    return ordering_comparison(figures, clusters, mixes, names or [])


@pytest.fixture
def figure(monkeypatch):
    """Draws like `png`, and gives the figure."""
    drawn = []

    def picture(width, height, draw):
        with drawing.style():
            drawn.append(Figure(figsize=(width / 100, height / 100), dpi=100))
            draw(drawn[-1])
        return b""

    monkeypatch.setattr(pictures, "picture", picture)
    return lambda **of: (png(**of), drawn[-1])[1]


@pytest.mark.filterwarnings("error")
def test_names_in_any_script_draw_without_a_warning(monkeypatch):
    monkeypatch.setattr(drawing, "OTHER_SCRIPTS", ())  # as on a machine without further typefaces
    png(names=["臺灣, 歷史"] * 30)


def test_a_name_that_no_typeface_here_can_draw_is_a_number_and_a_note_says_why(figure, monkeypatch):
    monkeypatch.setattr(drawing, "OTHER_SCRIPTS", ())
    names = ["臺灣, 歷史", "축구, 시즌", "straße, łódź", "команда", "film ★, song"] + ["x"] * 25
    shown, note = drawing.drawable(names)
    assert shown == ["cluster 0", "cluster 1", *names[2:]]
    assert note == "no typeface here for names in Han and Hangul"
    assert drawing.drawable(names[2:]) == (names[2:], "") and drawing.drawable([]) == ([], "")
    many = [*names, "ไทย ไทย ไทย", "हिन्दी"]
    assert drawing.drawable(many, "pair")[1] == "no typeface here for names in Thai, Han and others"
    drawn = figure(names=["臺灣, 歷史"] * 30)
    texts = [text.get_text() for text in drawn.texts]
    assert any(text.endswith("batches of 4 sequences · no typeface here for names in Han") for text in texts)
    assert not any("臺" in text for text in texts) and any(text.startswith("cluster ") for text in texts)


def test_the_largest_clusters_are_named_in_their_colours(figure):
    k = 30
    names = [f"$name of {label}, which is long, and long enough" for label in range(k)]
    drawn = figure(names=names)
    written = [text for text in drawn.texts if text.get_text().startswith("$name of")]
    squares = [text for text in drawn.texts if text.get_text() == "■"]
    mix = pictured(np.arange(400), 400, k)[2]
    largest = np.argsort(-mix.mean(axis=0, dtype=np.float64), kind="stable")
    assert 3 <= len(written) < k, "as many as there is room for"
    assert [text.get_text() for text in written] == [brief(names[label]) for label in largest[: len(written)]]
    for square, label in zip(squares, largest, strict=False):
        assert square.get_color() == pytest.approx(drawing.cluster_colours(k)[label])
    assert len(squares) == len(written)


def test_names_and_numbers_are_written(figure):
    texts = {text.get_text() for text in figure().texts}
    curated = pictured(riffled(400), 400, 30)[0]
    orders = ("original", "random", "sequences_random", "sequences")
    assert {charts.SERIES[name].name for name in orders} <= texts
    assert {
        f"{curated['distinct']['cluster']['mean']:.2f}",
        points(curated["windows"]["batch"]["cluster"]["worst"]),
    } <= texts
    assert any("400 documents" in text and "30 clusters" in text for text in texts)


def test_the_shuffle_may_be_left_out(figure):
    texts = {text.get_text() for text in figure(shuffled=False).texts}
    assert "training sequences in order" in texts and "documents shuffled" not in texts


def test_a_shuffle_stands_between_the_original_order_and_ours(figure):
    drawn = figure()
    bars = [
        axes.images[0].get_array().shape
        for axes in drawn.axes
        if axes.images and axes.get_position().width > 0.5
    ]
    assert len(bars) == 3
    labels = [[line.get_label() for line in axes.get_lines()] for axes in drawn.axes]
    compared = ["original order", "training sequences shuffled", "training sequences in order"]
    assert [compared[0], "documents shuffled", *compared[1:]] in labels
    # Of clusters in a sequence each has a panel of its own: no band hides another.
    panels = [axes for axes in drawn.axes if len(axes.collections) == 1]
    assert [axes.get_lines()[0].get_label() for axes in panels] == compared
    edges = [(axes.get_position().x0, axes.get_position().x1) for axes in panels]
    assert all(end < begin for (_, end), (begin, _) in pairwise(edges))
    assert len({axes.get_ylim() for axes in panels}) == 1


def test_a_picture_can_say_below_what_it_is_of():
    for few_colours in (False, True):
        plain = drawing.picture(300, 40, lambda figure: figure.text(0.1, 0.5, "x"), few_colours=few_colours)
        stamped = drawing.stamped(plain, "corpus · 2026-11-22 · output 0123abcd")
        assert stamped == drawing.stamped(plain, "corpus · 2026-11-22 · output 0123abcd")
        assert stamped != drawing.stamped(plain, "corpus · 2026-11-22 · output 4567abcd")
        before, after = (np.asarray(Image.open(io.BytesIO(of)).convert("RGB")) for of in (plain, stamped))
        assert after.shape == (40 + drawing.STAMP, 300, 3)
        assert np.abs(after[:40].astype(int) - before).mean() < 1
        assert (after[40:] < 128).any()


def test_thirty_colours_differ_and_neighbours_in_hue_differ_in_lightness():
    colours = drawing.cluster_colours(30)
    assert colours.shape == (30, 3) and (colours >= 0).all() and (colours <= 1).all()
    gaps = np.linalg.norm(colours[:, None] - colours[None], axis=2)[np.triu_indices(30, 1)]
    assert gaps.min() > 0.06
    by_hue = colours[np.argsort([colorsys.rgb_to_hsv(*colour)[0] for colour in colours])]
    assert np.abs(np.diff(by_hue @ [0.2126, 0.7152, 0.0722])).mean() > 0.1


@pytest.mark.parametrize("top", [8_500.0, 20_000.0, 3e5])
def test_a_logarithmic_axis_has_few_labels_whatever_it_spans(top: float) -> None:
    axes = Figure().add_subplot()
    charts.along(
        axes, [(np.linspace(0, 1, 50), np.linspace(1_300.0, top, 50), charts.SERIES["original"])], log=True
    )
    low, high = axes.get_ylim()
    assert 2 <= sum(low <= tick <= high for tick in axes.get_yticks()) <= 7
