"""The comparison picture: it draws whatever there is, exactly, and always the same bytes."""

import struct
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from dagster_divorder.core import metrics
from dagster_divorder.view import charts, drawing, pictures
from dagster_divorder.view.pictures import PicturedOrder, ordering_comparison


def pictured(order: np.ndarray, n: int, k: int, columns: int = 60) -> PicturedOrder:
    tokens = np.random.default_rng(0).integers(1, 200, n)
    labels = np.arange(n) * k // max(n, 1)
    return PicturedOrder(
        metrics.measure(order, tokens, {"cluster": labels}, {"cluster": k}, sequence_length=256, batch=4),
        metrics.distinct_clusters(order, tokens, labels, 256),
        metrics.cluster_mix(order, tokens, labels, k, columns),
    )


def riffled(n: int) -> np.ndarray:
    return np.argsort(np.arange(n) * 0.6180339887 % 1.0, kind="stable")


def png(n: int = 400, k: int = 30, shuffled: bool = True, columns: int = 60, names: list[str] | None = None):
    shuffle = pictured(np.random.default_rng(1).permutation(n), n, k, columns)
    orders = {
        "original": pictured(np.arange(n), n, k, columns),
        **({"random": PicturedOrder(shuffle.diversity, shuffle.distinct)} if shuffled else {}),
        "curated": pictured(riffled(n), n, k, columns),
        "sequences": PicturedOrder(shuffle.diversity),
    }
    return ordering_comparison(orders, names or [])


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


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and png[12:16] == b"IHDR"
    return struct.unpack(">II", png[16:24])


@pytest.mark.filterwarnings("error")
def test_names_in_any_script_draw_without_a_warning(monkeypatch):
    monkeypatch.setattr(drawing, "OTHER_SCRIPTS", ())  # as on a machine without further typefaces
    png(names=["臺灣, 歷史"] * 30)


@pytest.mark.parametrize(
    ("n", "k", "columns"),
    [(400, 30, 60), (400, 30, 3000), (400, 300, 60), (3, 2, 5), (1, 1, 1), (0, 1, 4)],
    ids=["usual", "more columns than pixels", "300 clusters", "three documents", "one document", "none"],
)
@pytest.mark.filterwarnings("error")
def test_it_draws(tmp_path, n, k, columns):
    (tmp_path / "picture.png").write_bytes(png(n, k, columns=columns))
    image = imread(tmp_path / "picture.png")
    assert image.shape[:2] == (1100, 1600)
    assert (image[0, :, :3] == 1).all() and (image[:, 0, :3] == 1).all()  # a white rim: nothing is cut off
    assert (image[..., :3].min(axis=2) < 0.5).sum() > 1000  # there is ink


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_style():
    first = png()
    before = dict(mpl.rcParams)
    with mpl.rc_context(
        {"font.size": 30, "savefig.bbox": "tight", "axes.facecolor": "red", "savefig.dpi": 50}
    ):
        styled = dict(mpl.rcParams)
        assert png() == first
        assert dict(mpl.rcParams) == styled
    assert dict(mpl.rcParams) == before
    assert size(first) == (1600, 1100)


def test_the_largest_clusters_are_named_in_their_colours(figure):
    k = 30
    names = [f"$name of {label} which is long enough" for label in range(k)]
    drawn = figure(names=names)
    written = [text for text in drawn.texts if text.get_text() in names]
    squares = [text for text in drawn.texts if text.get_text() == "■"]
    mix = pictured(np.arange(400), 400, k).mix
    largest = np.argsort(-mix.mean(axis=0, dtype=np.float64), kind="stable")
    assert 3 <= len(written) < k, "as many as there is room for"
    assert [text.get_text() for text in written] == [names[label] for label in largest[: len(written)]]
    ranks = np.argsort(drawing.by_place(mix), kind="stable")
    for square, label in zip(squares, largest, strict=False):
        assert square.get_color() == pytest.approx(drawing.cluster_colours(k)[ranks[label]])
    assert len(squares) == len(written)


def test_names_and_numbers_are_written(figure):
    texts = {text.get_text() for text in figure().texts}
    curated = pictured(riffled(400), 400, 30).diversity
    orders = ("original", "random", "curated", "sequences")
    assert {charts.SERIES[name].name for name in orders} <= texts
    assert {f"{curated.split.mean:.2f}", f"{curated.batch_shares['cluster'].max_tv:.4f}"} <= texts
    assert any("400 documents" in text and "30 clusters" in text for text in texts)


def test_the_shuffle_may_be_left_out(figure):
    texts = {text.get_text() for text in figure(shuffled=False).texts}
    assert "curated documents" in texts and "shuffled documents" not in texts


def test_packed_sequences_are_a_row_and_a_curve_more(figure):
    drawn = figure()
    packed = pictured(np.random.default_rng(1).permutation(400), 400, 30).diversity
    assert f"{packed.prefix.mean:,.0f}" in {text.get_text() for text in drawn.texts}
    labels = [[line.get_label() for line in axes.get_lines()] for axes in drawn.axes]
    documents = ["original documents", "shuffled documents", "curated documents"]
    assert documents in labels and [*documents, "curated sequences"] in labels


def test_a_bar_shows_each_share_exactly_to_a_pixel():
    mix = np.random.default_rng(0).dirichlet(np.ones(6), 20).astype(np.float32)
    colours = np.eye(6)[:, :3] + np.arange(6)[:, None] / 10
    bar = colours[drawing.stacked(mix, 143)]
    assert bar.shape == (143, 20, 3)
    np.testing.assert_allclose(bar.mean(axis=0), mix @ colours, atol=6 * 2 / 143)


def test_thirty_colours_differ_and_neighbours_differ_in_lightness():
    colours = drawing.cluster_colours(30)
    assert colours.shape == (30, 3) and (colours >= 0).all() and (colours <= 1).all()
    gaps = np.linalg.norm(colours[:, None] - colours[None], axis=2)[np.triu_indices(30, 1)]
    assert gaps.min() > 0.06
    grey = colours @ [0.2126, 0.7152, 0.0722]
    assert np.abs(np.diff(grey)).min() > 0.05


@pytest.mark.slow
def test_importing_it_loads_no_matplotlib():
    code = "import sys, dagster_divorder.view.pictures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
