"""Films: real files by a real ffmpeg, frames that show what they say, and errors of the encoder."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.core.measure.runs import ReadRuns
from dagster_divorder.errors import InputError
from dagster_divorder.view import films
from dagster_divorder.view.films import (
    HEIGHT,
    HOLD,
    WIDTH,
    FilmedCorpus,
    film,
    map_frames,
    migrated,
    ordering_frames,
    sample_cells,
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


def frames_of_ordering(documents: int, of: FilmedCorpus | None = None) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    tokens, labels = rng.integers(1, 50, documents), np.sort(rng.integers(0, 6, documents))
    orders = {
        name: sample_cells(runs_of(rng.permutation(documents), tokens), labels)
        for name in ("sequences_random", "sequences")
    }
    return [frame.copy() for frame in ordering_frames(orders, of or corpus(), count=FRAMES)]


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


def frames_of_map(points: int, of: FilmedCorpus | None = None) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    labels = np.sort(rng.integers(0, 5, points))
    orders = {"original": np.arange(points)}
    orders |= {name: rng.permutation(points) for name in ("sequences_random", "sequences")}
    made = map_frames(rng.normal(size=(points, 2)), labels, orders, of or corpus(), count=FRAMES)
    return [frame.copy() for frame in made]


def write(path: Path, frames: list[np.ndarray]) -> bytes:
    with film(path, 10) as show:
        for frame in frames:
            show(frame)
    return path.read_bytes()


@pytest.mark.parametrize("make", [frames_of_ordering, frames_of_map])
@pytest.mark.parametrize("items", [0, 1, 300])
def test_every_frame_is_a_whole_picture_that_differs_from_the_last(make: object, items: int) -> None:
    frames = make(items)  # type: ignore[operator]
    assert [frame.shape for frame in frames] == [(HEIGHT, WIDTH, 4)] * FRAMES
    if items == 300:
        assert all((a != b).any() for a, b in itertools.pairwise(frames))


@pytest.mark.parametrize("make", [frames_of_ordering, frames_of_map])
def test_a_film_says_what_it_is_of_and_names_the_largest_clusters(make: object) -> None:
    first, other, named = (
        make(50, of)[0]  # type: ignore[operator]
        for of in (
            corpus(),
            corpus(output_label="corpus · 2026-11-22 · output 4567abcd"),
            corpus(largest="another"),
        )
    )
    changed = np.argwhere((first != other).any(axis=2))
    assert changed[:, 0].min() > 0.95 * HEIGHT and changed[:, 1].min() > 0.5 * WIDTH
    changed = np.argwhere((first != named).any(axis=2))
    assert changed[:, 0].min() > 0.1 * HEIGHT and changed[:, 0].max() < 0.16 * HEIGHT


def test_bars_fill_together() -> None:
    """At half of the film both are filled up to the middle of the same axis."""
    frame = frames_of_ordering(300)[FRAMES // 2][:, :, :3].astype(int)
    middle = round((films.LEFT + films.RIGHT) / 2)
    for top in (190, 190 + 266):
        mark = np.flatnonzero((frame[top + 2 : top + 90].max(axis=2) < 60).all(axis=0))
        assert abs(mark.mean() - middle) <= 2


def test_the_film_is_one_that_a_decoder_reads_back_frame_by_frame(tmp_path: Path) -> None:
    from imageio_ffmpeg import get_ffmpeg_exe

    frames = frames_of_map(300)
    data = write(tmp_path / "film.mp4", frames)
    assert data[4:8] == b"ftyp"
    assert data.index(b"moov") < data.index(b"mdat")  # plays while it loads
    command = [get_ffmpeg_exe(), "-v", "error", "-i", str(tmp_path / "film.mp4"), "-f", "rawvideo"]
    raw = subprocess.run([*command, "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    shown = np.frombuffer(raw, np.uint8).reshape(-1, HEIGHT, WIDTH, 3)
    # The last one stays.
    assert len(shown) == FRAMES + HOLD * 10
    for seen, drawn in zip(shown, frames + frames[-1:] * HOLD * 10, strict=True):
        assert np.abs(seen.astype(int) - drawn[:, :, :3]).mean() < 3


def test_the_same_frames_give_the_same_bytes(tmp_path: Path) -> None:
    digests = {
        hashlib.sha256(write(tmp_path / f"{n}.mp4", frames_of_ordering(200))).digest() for n in range(2)
    }
    assert len(digests) == 1


def test_a_film_that_cannot_be_written_is_an_error_with_what_the_encoder_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ffmpeg could not write the film"):
        write(tmp_path / "missing" / "film.mp4", frames_of_map(10))


def test_without_ffmpeg_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(InputError, match=r"pip install 'dagster-divorder\[films\]'"):
        write(tmp_path / "film.mp4", [])
