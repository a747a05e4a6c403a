"""Every picture: it draws whatever there is, with nothing cut off, and always the same bytes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.image import imread

from dagster_divorder.view.pictures import PAIRS
from tests.view import (
    test_cluster_map_picture,
    test_contingency,
    test_k_calibration_picture,
    test_ordering_comparison,
)

Draw = Callable[..., bytes]

PICTURES: dict[str, tuple[Draw, tuple[int, int], dict[str, tuple[object, ...]]]] = {
    "cluster map": (
        test_cluster_map_picture.picture,
        (1000, 1600),
        {
            "usual": (2000, 20),
            "400 clusters": (2000, 400),
            "three documents": (3, 2),
            "one document": (1, 1),
        },
    ),
    "contingency": (
        test_contingency.picture,
        (1150, 1400),
        {"usual": (30,), "one cluster": (1,), "many pairs": (3 * PAIRS,)},
    ),
    "k_calibration": (
        test_k_calibration_picture.png,
        (600, 1200),
        {
            "usual": (),
            "one value": ((7,), (0.0,), 0),
            "negative": ((2, 3), (-0.1, -0.2), 0),
            "many values": (tuple(range(2, 300)), tuple(np.linspace(0.3, 0, 298)), 0),
            "far apart": ((2, 10_000), (0.5, 0.5), 0),
        },
    ),
    "ordering comparison": (
        test_ordering_comparison.png,
        (1100, 1600),
        {
            "usual": (),
            "more columns than pixels": (400, 30, True, 3000),
            "300 clusters": (400, 300),
            "three documents": (3, 2, True, 5),
            "one document": (1, 1, True, 1),
            "none": (0, 1, True, 4),
        },
    ),
}
"""By name: what draws it, its rows and columns of pixels, and what it is drawn of."""


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("draw", "shape"),
    [
        pytest.param(partial(draw, *given), shape, id=f"{picture}, {name}")
        for picture, (draw, shape, cases) in PICTURES.items()
        for name, given in cases.items()
    ],
)
def test_it_draws_with_a_white_rim(draw: Draw, shape: tuple[int, int]) -> None:
    image = imread(io.BytesIO(draw()))[..., :3]
    assert image.shape[:2] == shape
    assert (image[[0, -1]] == 1).all() and (image[:, [0, -1]] == 1).all(), "something is cut off"
    assert (image.min(axis=2) < 0.5).sum() > 1000, "there is no ink"


@pytest.mark.slow
@pytest.mark.parametrize("picture", PICTURES)
def test_the_same_numbers_give_the_same_bytes_whatever_the_users_style(picture: str) -> None:
    draw, _, cases = PICTURES[picture]
    first, before = draw(*cases["usual"]), dict(mpl.rcParams)
    users = {"font.size": 30, "axes.grid": True, "axes.facecolor": "red", "text.parse_math": True}
    with mpl.rc_context({**users, "savefig.bbox": "tight", "savefig.dpi": 50}):
        styled = dict(mpl.rcParams)
        assert draw(*cases["usual"]) == first
        assert dict(mpl.rcParams) == styled
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_importing_pictures_loads_no_matplotlib() -> None:
    code = "import sys, dagster_divorder.view.pictures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
