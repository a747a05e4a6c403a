"""Maps as pictures: drawn whatever there is, the same bytes each time, of a bounded size, and the names are legible."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from dagster_divorder.view import charts, words
from dagster_divorder.view.drawing import cluster_colours, style
from dagster_divorder.view.pictures import cluster_map


def documents(n, k, seed=0):
    """Places, clusters and names; the first clusters are the largest."""
    rng = np.random.default_rng(seed)
    labels = np.sort(np.minimum(rng.geometric(min(0.5, 4 / k), n) - 1, k - 1)).astype(np.int32)
    xy = rng.normal(scale=6.0, size=(k, 2))[labels] + rng.normal(size=(n, 2))
    return xy.astype(np.float32), labels, [f"term {c}, other {c}, last {c}" for c in range(k)]


BARS = np.s_[:, 1088:]
"""Where the sizes are drawn."""


def picture(n, k):
    xy, labels, names = documents(n, k)
    sizes = np.bincount(labels, minlength=k).tolist()
    return cluster_map(f"{n} documents in {k} clusters", "a note", names, sizes, xy, labels)


def pixels(png):
    return imread(io.BytesIO(png))


def of_colour(image, colour):
    """How many pixels have a colour, to what is lost by drawing in few colours."""
    return int((np.abs(image[..., :3] - colour).max(axis=2) < 0.03).sum())


@pytest.mark.slow
def test_points_have_the_colour_of_their_clusters_bar():
    xy, labels, names = documents(600, 3)
    sizes = np.bincount(labels, minlength=3)
    image = pixels(cluster_map("", "", names, sizes, xy, labels))
    for colour in cluster_colours(3):
        assert of_colour(image[BARS], colour) > 500
    # Over white, a point is so much paler.
    where = image[:, :1000]
    for colour in cluster_colours(3):
        assert of_colour(where, 0.65 * colour + 0.35) > 50


def test_a_bar_is_as_long_as_its_cluster_is_large():
    sizes = [4000, 2000, 1000]
    bars = pixels(cluster_map("", "", ["a", "b", "c"], sizes, np.zeros((1, 2)), np.zeros(1, int)))[BARS]
    lengths = [
        (np.abs(bars[..., :3] - colour).max(axis=2) < 0.03).sum(axis=1).max() for colour in cluster_colours(3)
    ]
    np.testing.assert_allclose(np.array(lengths) / max(lengths), np.array(sizes) / 4000, atol=0.01)


@pytest.mark.slow
def test_a_full_map_is_a_small_file():
    rng = np.random.default_rng(0)
    xy, labels = rng.uniform(size=(20_000, 2)), rng.integers(0, 30, 20_000)
    names = [f"cluster {c}" for c in range(30)]
    assert len(cluster_map("title", "note", names, np.bincount(labels), xy, labels)) < 400_000


@pytest.mark.filterwarnings("error")
def test_any_name_is_drawn():
    names = ["$\\frac{1}$ and $", "中文, 日本語", "Straße, żółw", "", "x" * 500]
    xy, labels, _ = documents(50, 5)
    assert pixels(cluster_map("", "", names, [10] * 5, xy, labels)).shape[:2] == (1000, 1600)


def test_long_names_are_cut_between_their_terms():
    assert words.brief("encryption, crypto, clipper") == "encryption, crypto, clipper"
    assert words.brief("encryption, cryptography, clipper chip") == "encryption, cryptography…"
    assert words.brief("x" * 500) == "x" * (words.NAME - 1) + "…"


@pytest.mark.parametrize("spread", [0.0, 0.5, 30.0], ids=["all in one place", "close", "far apart"])
def test_names_do_not_lie_over_each_other(spread):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    _, labels, names = documents(2000, 20)
    rng = np.random.default_rng(1)
    xy = rng.normal(scale=spread, size=(20, 2))[labels] + rng.normal(scale=0.1, size=(2000, 2))
    with style():
        figure = Figure(figsize=(16, 10), dpi=100)
        axes = figure.add_axes((0.03, 0.03, 0.62, 0.845))
        charts.documents_map(axes, xy, labels, names, cluster_colours(20))
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = [text.get_window_extent(renderer) for text in axes.texts]
        shown = [text.get_text() for text in axes.texts]
    assert names[0] in shown, "the largest cluster comes first"
    assert all(axes.bbox.x0 - 1 <= box.x0 and box.x1 <= axes.bbox.x1 + 1 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert 1 <= len(shown) <= charts.NAMED and (spread < 30.0 or len(shown) >= 10)


def test_colours_of_the_largest_lie_far_apart():
    for k in (8, 30, 200):
        colours = cluster_colours(k)
        assert colours.shape == (k, 3) and len(np.unique(colours, axis=0)) == k
        gaps = np.linalg.norm(colours[:8, None] - colours[None, :8], axis=2)[np.triu_indices(8, 1)]
        assert gaps.min() > 0.12, k
