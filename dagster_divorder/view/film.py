"""Films: frames drawn by matplotlib's Agg, encoded as H.264 by the ffmpeg that imageio-ffmpeg carries.

Guarantee: the same frames give the same file (one machine, one ffmpeg); one frame is in memory at a time.
Cost: some 5 ms a frame of 1280 x 720 to encode, beside drawing.
Known weakness: H.264 of fine detail is large, so what is drawn should be coarser than a pixel.
"""

import errno
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 1280, 720
"""Pixels; even, as the codec's colours need."""

CODEC_THREADS = 2
"""Not the machine's own number, as the bytes depend on it."""

Frame = Callable[[NDArray[np.uint8]], None]


@contextmanager
def film(path: Path, fps: int) -> Iterator[Frame]:
    """Opens a film; call what it gives with each frame, uint8 (HEIGHT, WIDTH, 4), RGBA. Writes an .mp4 that players and
    browsers show while it loads.

    Raises:
        OSError: ffmpeg ended early, as on a full disk, with what it said.
    """
    from imageio_ffmpeg import get_ffmpeg_exe

    command = [
        *(get_ffmpeg_exe(), "-y", "-v", "error", "-nostdin"),
        *("-f", "rawvideo", "-pix_fmt", "rgba", "-s", f"{WIDTH}x{HEIGHT}", "-r", str(fps), "-i", "-"),
        *("-c:v", "libx264", "-preset", "veryfast", "-crf", "23", "-pix_fmt", "yuv420p"),
        *("-threads", str(CODEC_THREADS), "-fflags", "+bitexact", "-flags:v", "+bitexact"),
        *("-movflags", "+faststart", str(path)),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    source, said = process.stdin, process.stderr
    try:
        yield lambda frame: _write(source, frame, said)
        source.close()
        message = said.read()
        if process.wait():
            raise _failed(message)
    finally:
        process.kill()  # no effect on one that has ended
        process.wait()
        said.close()


def _write(source: IO[bytes], frame: NDArray[np.uint8], said: IO[bytes]) -> None:
    try:
        source.write(np.ascontiguousarray(frame).data)
    except BrokenPipeError:
        raise _failed(said.read()) from None


def _failed(said: bytes) -> OSError:
    message = said.decode(errors="replace").strip()
    full = "No space left" in message
    return OSError(errno.ENOSPC if full else errno.EIO, f"ffmpeg could not write the film: {message}")
