"""The picture of a calibration: it draws whatever was tried, and always the same bytes."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from dagster_divorder.view import pictures
from dagster_divorder.view.pictures import k_calibration


def rows(values, silhouettes, chosen=0):
    return [
        {
            "k": k,
            "silhouette": silhouette,
            "recommended": at == chosen,
        }
        for at, (k, silhouette) in enumerate(zip(values, silhouettes, strict=True))
    ]


def png(values=(5, 10, 30, 100), silhouettes=(0.1, 0.2, 0.19, 0.1), chosen=2):
    return k_calibration(rows(values, silhouettes, chosen))


@pytest.fixture
def figure(monkeypatch):
    """Draws like `png`, and gives the figure."""
    drawn = []
    monkeypatch.setattr(
        pictures, "picture", lambda width, height, draw: (draw(made := Figure()), drawn.append(made))
    )
    return lambda *of: (png(*of), drawn[-1])[1]


def test_the_recommended_number_is_marked_and_the_others_are_labelled(figure):
    made = figure()
    assert made.texts[0].get_text() == "30 clusters recommended"
    for axes in made.axes:
        assert axes.get_xscale() == "log"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["5", "10", "30", "100"]
        assert any(list(line.get_xdata()) == [30, 30] for line in axes.lines)
    assert figure((4, 5, 6), (0.1, 0.2, 0.1), 1).axes[0].get_xscale() == "linear"


def test_labels_of_many_values_do_not_touch(figure):
    made = figure(tuple(range(2, 300)), tuple(np.linspace(0.3, 0, 298)), 0)
    assert 5 < len(made.axes[0].get_xticks()) <= 9
