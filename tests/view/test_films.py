"""Films: real files by a real ffmpeg, frames that show what they say, and errors of the encoder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.core.measure.runs import ReadRuns
from dagster_divorder.view import films
from dagster_divorder.view.films import (
    HEIGHT,
    HOLD,
    WIDTH,
    Film,
    FilmedCorpus,
    map_film,
    migrated,
    ordering_film,
    sample_cells,
    write_film,
)

FRAMES = 5

pytestmark = pytest.mark.slow  # ffmpeg is a process.


def corpus(
    output_label: str = "corpus · 2026-11-22 · output 0123abcd", largest: str = "first"
) -> FilmedCorpus:
    names = [largest, "second", "third", "fourth", "fifth", "sixth"]
    return FilmedCorpus(names=names, sizes=np.arange(6, 0, -1), output_label=output_label)


def runs_of(order: np.ndarray, tokens: np.ndarray) -> ReadRuns:
    """Whole documents in an order, in one sequence."""
    return ReadRuns(order, np.zeros_like(order), tokens[order], np.array([0, len(order)]))


def film_of_orders(documents: int) -> Film:
    rng = np.random.default_rng(1)
    tokens, labels = rng.integers(1, 50, documents), np.sort(rng.integers(0, 6, documents))
    orders = {
        name: sample_cells(runs_of(rng.permutation(documents), tokens), labels)
        for name in ("sequences_random", "sequences")
    }
    return ordering_film(orders, corpus(), count=FRAMES)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 60), st.data())
def test_cells_are_tokens_at_even_distances_that_move_into_the_new_order(
    tokens: list[int], cells: int, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(len(tokens)))))
    document, place = sample_cells(runs_of(order, np.array(tokens)), np.arange(len(tokens)), cells)
    stream = [(of, at) for of in order.tolist() for at in range(tokens[of])]
    cells *= bool(stream)
    expected = [stream[(2 * cell + 1) * len(stream) // (2 * cells)] for cell in range(cells)]
    assert document.tolist() == [of for of, _ in expected]
    assert [expected[cell] for cell in np.argsort(place)] == sorted(expected)
    read = data.draw(st.integers(0, cells))
    found = migrated(place, read)
    assert found[:read].tolist() == list(range(read))
    assert (np.diff(place[found[read:]]) > 0).all() and len(set(found.tolist())) == cells


def film_of_map(points: int) -> Film:
    rng = np.random.default_rng(2)
    labels = np.sort(rng.integers(0, 5, points))
    orders = {"original": np.arange(points)}
    orders |= {name: rng.permutation(points) for name in ("sequences_random", "sequences")}
    return map_film(rng.normal(size=(points, 2)), labels, orders, corpus(), count=FRAMES)


def write(path: Path, film: Film, of: FilmedCorpus | None = None) -> bytes:
    write_film(path, film, of or corpus(), 10, lambda frames: None)
    return path.read_bytes()


def decoded(path: Path) -> np.ndarray:
    """The frames of a film, as a player shows them: uint8 (F, HEIGHT, WIDTH, 3)."""
    from imageio_ffmpeg import get_ffmpeg_exe

    command = [get_ffmpeg_exe(), "-v", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("make", [film_of_orders, film_of_map])
@pytest.mark.parametrize("items", [0, 1])
def test_nothing_and_one_document_have_a_film(make: Callable[[int], Film], items: int) -> None:
    film = make(items)
    frames = list(film.frames)
    assert [share for share, _ in frames] == np.linspace(0, 1, FRAMES).tolist()
    assert all(len(pictures) == len(film.corners) for _, pictures in frames)


@pytest.mark.parametrize("make", [film_of_orders, film_of_map])
def test_a_film_plays_while_it_loads_and_its_last_frame_stays(
    make: Callable[[int], Film], tmp_path: Path
) -> None:
    data = write(tmp_path / "film.mp4", make(300))
    assert data[4:8] == b"ftyp" and data.index(b"moov") < data.index(b"mdat")
    shown = decoded(tmp_path / "film.mp4").astype(int)
    assert len(shown) == FRAMES + HOLD * 10
    changes = np.abs(np.diff(shown, axis=0)).mean(axis=(1, 2, 3))
    assert changes[: FRAMES - 1].min() > 0.1 > changes[FRAMES - 1 :].max()


def test_a_film_says_what_it_is_of_and_names_the_largest_clusters(tmp_path: Path) -> None:
    write(tmp_path / "film.mp4", film_of_orders(50))
    first = decoded(tmp_path / "film.mp4")[0].astype(int)
    for other, rows in (
        (corpus(output_label="corpus · 2026-11-22 · output 4567abcd"), (0.95, 1.0)),
        (corpus(largest="another"), (0.1, 0.16)),
    ):
        write(tmp_path / "film.mp4", film_of_orders(50), other)
        changed = np.abs(decoded(tmp_path / "film.mp4")[0] - first).max(axis=(1, 2)) > 60
        at = np.flatnonzero(changed) / HEIGHT
        assert len(at) and rows[0] < at.min() and at.max() < rows[1]


def test_bars_fill_together() -> None:
    """At half of the film both are filled up to the middle of the same axis."""
    _, pictures = list(film_of_orders(300).frames)[FRAMES // 2]
    for bar in pictures:
        mark = np.flatnonzero((bar.max(axis=2) < 60).all(axis=0))
        assert abs(mark.mean() - films.COLUMNS / 2) <= 1


def test_a_film_that_cannot_be_written_is_an_error_with_what_the_encoder_said(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").mkdir()
    with pytest.raises(OSError, match="ffmpeg could not write the film"):
        write(tmp_path / "film.mp4", film_of_map(10))
