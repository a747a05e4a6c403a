"""Films: real files by a real ffmpeg, frames that show what they say, and errors of the encoder."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dagster_divorder.core.migration import sample_cells
from dagster_divorder.errors import InputError
from dagster_divorder.view import films
from dagster_divorder.view.films import HEIGHT, WIDTH, film, map_frames, ordering_frames

FRAMES = 5

pytestmark = pytest.mark.slow  # ffmpeg is a process.


def frames_of_ordering(documents: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    tokens, labels = rng.integers(1, 50, documents), np.sort(rng.integers(0, 6, documents))
    cells = sample_cells(rng.permutation(documents), tokens, 2_000) if documents else sample_cells([], [], 1)
    curves = np.full(20, 2.0), np.full(20, 5.0)
    made = ordering_frames(cells, labels, *curves, count=FRAMES, sequence_length=100)
    return [frame.copy() for frame in made]


def frames_of_map(points: int) -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    labels = np.sort(rng.integers(0, 5, points))
    made = map_frames(rng.normal(size=(points, 2)), labels, rng.permutation(points), count=FRAMES)
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


def test_the_film_is_one_that_a_decoder_reads_back_frame_by_frame(tmp_path: Path) -> None:
    from imageio_ffmpeg import get_ffmpeg_exe

    frames = frames_of_map(300)
    data = write(tmp_path / "film.mp4", frames)
    assert data[4:8] == b"ftyp"
    assert data.index(b"moov") < data.index(b"mdat")  # plays while it loads
    command = [get_ffmpeg_exe(), "-v", "error", "-i", str(tmp_path / "film.mp4"), "-f", "rawvideo"]
    raw = subprocess.run([*command, "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    shown = np.frombuffer(raw, np.uint8).reshape(-1, HEIGHT, WIDTH, 3)
    assert len(shown) == FRAMES
    for seen, drawn in zip(shown, frames, strict=True):
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
    monkeypatch.setattr(films.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'dagster-divorder\[films\]'"):
        write(tmp_path / "film.mp4", [])
