"""Pictures of shares along the dataset, as small PNG data: bars in all clusters' colours, and strips of one value.

A picture has a pixel a slice; the style sheet stretches it, so that it takes a few hundred bytes to a few kilobytes.
Strips are see-through: the more of a slice's tokens a value has, the more of the colour is there, on light and on dark.
"""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

ORIGINAL, CURATED = (201, 92, 20), (43, 125, 191)
"""RGB of strips in the original and in the curated order: between what is used on light and on dark."""


SMALL_ROWS, GAP = 64, 8


def bar(mix: NDArray[np.floating], colours: NDArray[np.floating], rows: int) -> str:
    """A data URI: each column of `rows` pixels is divided among the values by their shares.

    mix: (C, J), J <= 255, rows sum to 1, values in the order in which they are stacked. colours: RGB in [0, 1], (J, 3).
    """
    return data_uri(_indexed(_stacked(mix, rows), colours))


def two_bars(
    before: NDArray[np.floating], after: NDArray[np.floating], colours: NDArray[np.floating]
) -> bytes:
    """A PNG file: one bar above another, with white between them."""
    white = np.full((GAP, len(before)), len(colours), np.uint8)
    stacked = [_stacked(before, SMALL_ROWS), white, _stacked(after, SMALL_ROWS)]
    return _png(_indexed(np.concatenate(stacked), np.concatenate([colours, np.ones((1, 3))])))


def strip(shares: NDArray[np.floating], colour: tuple[int, int, int]) -> str:
    """A data URI of one pixel a slice, (C,) shares in [0, 1]; as dark as the cube root of the share, so that small
    shares show."""
    import PIL.Image

    pixels = np.empty((1, len(shares), 4), np.uint8)
    pixels[..., :3] = colour
    pixels[..., 3] = np.rint(255 * np.cbrt(np.clip(shares, 0.0, 1.0)))
    return data_uri(PIL.Image.fromarray(pixels))


def _stacked(mix: NDArray[np.floating], rows: int) -> NDArray[np.uint8]:
    """The value at each pixel, uint8 (rows, C)."""
    heights = (np.arange(rows) + 0.5) / rows
    ends = np.cumsum(mix, axis=1, dtype=np.float64)
    values = np.stack([np.searchsorted(column, heights) for column in ends], axis=1)
    # A column's shares may sum to a little less than one.
    return np.minimum(values, mix.shape[1] - 1).astype(np.uint8)


def _indexed(values: NDArray[np.uint8], palette: NDArray[np.floating]) -> Image:
    import PIL.Image

    image = PIL.Image.fromarray(values, mode="P")
    image.putpalette(np.rint(255 * palette).astype(np.uint8).ravel().tolist())
    return image


def data_uri(image: Image) -> str:
    """An image as an `src` that needs no file."""
    return png_uri(_png(image))


def png_uri(png: bytes) -> str:
    """The same for the bytes of a PNG file."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _png(image: Image) -> bytes:
    data = io.BytesIO()
    image.save(data, format="PNG", optimize=True)
    return data.getvalue()
