"""The heatmap of two clusterings: bounded, named, and always the same bytes."""

import io
import struct
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from dagster_divorder.view import pictures
from dagster_divorder.view.pictures import PAIRS, contingency


def picture(clusters: int, note: str = "ARI 0.2") -> bytes:
    table = np.random.default_rng(0).integers(0, 50, (clusters, clusters))
    names = [f"sea {number}, net, gull" for number in range(clusters)]
    return contingency(table, names, names[::-1], note)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [1, 30, 3 * PAIRS])
@pytest.mark.filterwarnings("error")
def test_it_draws(clusters: int) -> None:
    png = picture(clusters)
    assert struct.unpack(">II", png[16:24]) == (1400, 1150)
    image = imread(io.BytesIO(png))
    assert (image[0, :, :3] == 1).all() and (image[:, 0, :3] == 1).all()  # a white rim: nothing is cut off
    assert (image[..., :3].min(axis=2) < 0.5).sum() > 1000  # there is ink


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_style() -> None:
    first = picture(5)
    with mpl.rc_context({"font.size": 30, "savefig.bbox": "tight", "axes.facecolor": "red"}):
        assert picture(5) == first


def test_shares_names_and_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    draw_picture = pictures.picture

    def seen(width: int, height: int, draw: Callable[[Figure], None]) -> bytes:
        return draw_picture(width, height, lambda figure: (draw(figure), drawn.append(figure))[0])

    monkeypatch.setattr(pictures, "picture", seen)
    picture(PAIRS + 2, "$5 is no formula, and ARI 0.2")
    (figure,) = drawn
    axes = figure.axes[0]
    table = np.random.default_rng(0).integers(0, 50, (PAIRS + 2, PAIRS + 2))
    shares = (table / table.sum(axis=1, keepdims=True))[:PAIRS, :PAIRS]
    assert np.array_equal(axes.images[0].get_array(), shares)
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == [
        "sea 0, net, gull",
        "sea 1, net, gull",
    ]
    assert axes.get_xticklabels()[0].get_text() == f"sea {PAIRS + 1}, net, gull"
    texts = {text.get_text() for text in figure.texts}
    assert {"$5 is no formula, and ARI 0.2", "and 2 pairs more"} <= texts
