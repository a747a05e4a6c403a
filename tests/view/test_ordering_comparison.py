"""The comparison picture: it draws whatever there is, exactly, and always the same bytes."""

import struct
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.image import imread

from dagster_divorder.core import metrics
from dagster_divorder.errors import InputError
from dagster_divorder.view import ordering_comparison as view
from dagster_divorder.view.ordering_comparison import PicturedOrder, ordering_comparison, to_png


def pictured(name: str, order: np.ndarray, n: int, k: int, columns: int = 60) -> PicturedOrder:
    tokens = np.random.default_rng(0).integers(1, 200, n)
    labels = np.arange(n) * k // max(n, 1)
    return PicturedOrder(
        name,
        metrics.measure(order, tokens, {"cluster": labels}, {"cluster": k}, sequence_length=256, batch=4),
        metrics.distinct_clusters(order, tokens, labels, 256),
        metrics.cluster_mix(order, tokens, labels, k, columns),
    )


def figure(
    n: int = 400, k: int = 30, shuffled: bool = True, columns: int = 60, names: list[str] | None = None
):
    shuffle = np.random.default_rng(1).permutation(n)
    riffled = np.argsort(np.arange(n) * 0.6180339887 % 1.0, kind="stable")
    return ordering_comparison(
        pictured("original", np.arange(n), n, k, columns),
        pictured("curated", riffled, n, k, columns),
        pictured("shuffle", shuffle, n, k, columns) if shuffled else None,
        names=names or [],
    )


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and png[12:16] == b"IHDR"
    return struct.unpack(">II", png[16:24])


@pytest.mark.filterwarnings("error")
def test_names_in_any_script_draw_without_a_warning(monkeypatch):
    monkeypatch.setattr(view, "OTHER_SCRIPTS", ())  # as on a machine without further typefaces
    to_png(figure(names=["臺灣, 歷史"] * 30))


@pytest.mark.parametrize(
    ("n", "k", "columns"),
    [(400, 30, 60), (400, 30, 3000), (400, 300, 60), (3, 2, 5), (1, 1, 1), (0, 1, 4)],
    ids=["usual", "more columns than pixels", "300 clusters", "three documents", "one document", "none"],
)
@pytest.mark.filterwarnings("error")
def test_it_draws(tmp_path, n, k, columns):
    (tmp_path / "picture.png").write_bytes(to_png(figure(n, k, columns=columns)))
    image = imread(tmp_path / "picture.png")
    assert image.shape[:2] == (1100, 1600)
    assert (image[0, :, :3] == 1).all() and (image[:, 0, :3] == 1).all()  # a white rim: nothing is cut off
    assert (image[..., :3].min(axis=2) < 0.5).sum() > 1000  # there is ink


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_style():
    first = to_png(figure())
    before = dict(mpl.rcParams)
    with mpl.rc_context(
        {"font.size": 30, "savefig.bbox": "tight", "axes.facecolor": "red", "savefig.dpi": 50}
    ):
        styled = dict(mpl.rcParams)
        assert to_png(figure()) == first
        assert dict(mpl.rcParams) == styled
    assert dict(mpl.rcParams) == before
    assert size(first) == (1600, 1100)


def test_the_largest_clusters_are_named_in_their_colours():
    k = 30
    names = [f"$name of {label} which is long enough" for label in range(k)]
    drawn = figure(names=names)
    written = [text for text in drawn.texts if text.get_text() in names]
    squares = [text for text in drawn.texts if text.get_text() == "■"]
    mix = pictured("original", np.arange(400), 400, k).mix
    largest = np.argsort(-mix.mean(axis=0, dtype=np.float64), kind="stable")
    assert 3 <= len(written) < k, "as many as there is room for"
    assert [text.get_text() for text in written] == [names[label] for label in largest[: len(written)]]
    ranks = np.argsort(np.argsort(view._centres(mix), kind="stable"), kind="stable")
    for square, label in zip(squares, largest, strict=False):
        assert square.get_color() == pytest.approx(view.cluster_colours(k)[ranks[label]])
    assert len(squares) == len(written)
    assert to_png(drawn) != to_png(figure())


def test_names_and_numbers_are_written():
    texts = {text.get_text() for text in figure().texts}
    curated = metrics.measure(
        np.argsort(np.arange(400) * 0.6180339887 % 1.0, kind="stable"),
        np.random.default_rng(0).integers(1, 200, 400),
        {"cluster": np.arange(400) * 30 // 400},
        {"cluster": 30},
        sequence_length=256,
        batch=4,
    )
    assert {"original", "curated", "shuffle", "curated order", f"{curated.split.mean:.2f}"} <= texts
    assert f"{curated.batch_shares['cluster'].max_tv:.4f}" in texts
    assert any("400 documents" in text and "30 clusters" in text for text in texts)


def test_the_shuffle_may_be_left_out():
    texts = {text.get_text() for text in figure(shuffled=False).texts}
    assert "curated" in texts and "shuffle" not in texts


def test_packed_sequences_are_a_row_and_a_curve_more():
    before, after = (pictured(name, np.arange(400), 400, 30) for name in ("original", "curated"))
    packed = metrics.measure(
        np.random.default_rng(2).permutation(400),
        np.random.default_rng(0).integers(1, 200, 400),
        {"cluster": np.arange(400) * 30 // 400},
        {"cluster": 30},
        sequence_length=256,
        batch=4,
    )
    drawn = ordering_comparison(before, after, sequences=("sequences", packed))
    texts = {text.get_text() for text in drawn.texts}
    assert {"sequences", f"{packed.prefix.mean:,.0f}"} <= texts
    labels = [[line.get_label() for line in axes.get_lines()] for axes in drawn.axes]
    assert ["original", "curated", "sequences"] in labels


def test_a_bar_shows_each_share_exactly_to_a_pixel():
    mix = np.random.default_rng(0).dirichlet(np.ones(6), 20).astype(np.float32)
    colours = np.eye(6)[:, :3] + np.arange(6)[:, None] / 10
    bar = view._stacked(mix, colours)
    assert bar.shape == (view.BAR_ROWS, 20, 3)
    np.testing.assert_allclose(bar.mean(axis=0), mix @ colours, atol=6 * 2 / view.BAR_ROWS)


def test_lines_keep_mean_and_extremes():
    counts = np.random.default_rng(0).integers(1, 30, 12_345)
    along = view._along(counts)
    assert len(along.at) == view.MAX_BINS
    assert (along.low.min(), along.high.max()) == (counts.min(), counts.max())
    assert (along.low <= along.mean).all() and (along.mean <= along.high).all()
    assert abs(along.mean.mean() - counts.mean()) < 0.01


def test_thirty_colours_differ_and_neighbours_differ_in_lightness():
    colours = view.cluster_colours(30)
    assert colours.shape == (30, 3) and (colours >= 0).all() and (colours <= 1).all()
    gaps = np.linalg.norm(colours[:, None] - colours[None], axis=2)[np.triu_indices(30, 1)]
    assert gaps.min() > 0.06
    grey = colours @ [0.2126, 0.7152, 0.0722]
    assert np.abs(np.diff(grey)).min() > 0.05


def test_orders_that_do_not_fit_together_are_refused():
    whole, other = pictured("original", np.arange(40), 40, 4), pictured("curated", np.arange(40), 40, 5)
    bare = PicturedOrder("curated", whole.diversity, whole.distinct)
    for after in (other, bare):
        with pytest.raises(InputError, match="mix"):
            ordering_comparison(whole, after)


def test_importing_it_loads_no_matplotlib():
    code = "import sys, dagster_divorder.view.ordering_comparison; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
