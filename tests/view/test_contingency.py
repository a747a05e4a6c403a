"""The heatmap of two clusterings: bounded, named, and always the same bytes."""

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure

from dagster_divorder.view import pictures
from dagster_divorder.view.pictures import PAIRS, contingency


def picture(clusters: int, note: str = "ARI 0.2") -> bytes:
    table = np.random.default_rng(0).integers(0, 50, (clusters, clusters))
    names = [f"sea {number}, net, gull" for number in range(clusters)]
    return contingency(table, names, names[::-1], note)


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
