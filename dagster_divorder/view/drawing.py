"""Colours and typeface of all pictures, and matplotlib figures as PNG files or as SVG in a page.

Guarantee: the same numbers give the same bytes (same machine, typefaces and matplotlib), whatever the user's style;
matplotlib's global state is unchanged.
"""

from __future__ import annotations

import base64
import io
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from dagster_divorder.view.words import clip, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

COLOURS = {
    "ink": "#1b1d22",
    "muted": "#5c626e",
    "rule": "#d9dbe0",
    "original": "#b84a00",
    "shuffled": "#6f7580",
    "curated": "#0a66a8",
    "sequences": "#04345c",
    "surface": "#fefefe",
}
"""Distinguishable with any colour vision, and in grey. In a page each becomes the style sheet's variable of this name,
so that one drawing serves light, dark and print."""

DPI = 100
SHADES = 255
NEARLY_WHITE = 250
STAMP = 34
"""Height of the line below a picture that names its output, in pixels."""
GOLDEN = (5.0**0.5 - 1.0) / 2.0
OTHERS = (0.62, 0.63, 0.65)
"""RGB of the clusters that share a colour."""

# Typefaces for scripts that matplotlib's own typeface lacks; used if installed.
OTHER_SCRIPTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans CJK TC", "Noto Sans SC", "Noto Sans JP"),
    *("Noto Sans KR", "Noto Sans TC", "Source Han Sans SC", "Source Han Sans", "WenQuanYi Zen Hei"),
    *("WenQuanYi Micro Hei", "Droid Sans Fallback", "NanumGothic", "UnDotum", "IPAGothic", "TakaoGothic", "VL Gothic"),
    *("Arial Unicode MS", "Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "AppleGothic", "Microsoft YaHei"),
    *("Malgun Gothic", "Yu Gothic", "Meiryo", "SimHei", "Noto Sans Thai", "Noto Sans Devanagari", "Noto Sans Bengali"),
    *("Noto Sans Tamil", "Noto Sans Arabic", "Noto Sans Hebrew", "Nirmala UI", "Leelawadee UI", "Thonburi"),
    *("Kohinoor Devanagari", "FreeSerif", "Unifont"),
)  # fmt: skip

_TICKS = {"color": COLOURS["muted"], "labelsize": 12.5, "major.size": 0, "minor.size": 0, "major.pad": 6}
_STYLE: Any = {
    "text.parse_math": False,
    "font.size": 13,
    "text.color": COLOURS["ink"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["rule"],
    "axes.linewidth": 1.0,
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlepad": 9,
    # The label's usual place; without it matplotlib measures all labels of an axis.
    "axes.titley": 1.0,
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in _TICKS.items()},
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.8,
    "lines.solid_capstyle": "round",
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.labelcolor": "linecolor",
    "figure.facecolor": "none",
    "svg.fonttype": "none",
}


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's defaults and ours, whatever the user has set; restores the user's style afterwards. Letters that no
    installed typeface has become boxes without warnings; see `drawable`."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["font.family"] = ["sans-serif", *_installed()]
        yield


def _installed() -> tuple[str, ...]:
    """Typefaces of OTHER_SCRIPTS on this machine."""
    from matplotlib.font_manager import fontManager

    names = set(fontManager.get_font_names())
    return tuple(name for name in OTHER_SCRIPTS if name in names)


@lru_cache
def _letters(families: tuple[str, ...]) -> frozenset[int]:
    """The characters of matplotlib's own typeface and of these families."""
    from matplotlib.font_manager import findfont, get_font

    files = [findfont("DejaVu Sans"), *(findfont(name) for name in families)]
    return frozenset().union(*(get_font(file).get_charmap() for file in files))


def drawable(names: Sequence[str], noun: str = "cluster") -> tuple[list[str], str]:
    """(names by label for a picture, a note or ""). If no installed typeface has a name's letters, it becomes the noun
    and its label, and the note names the scripts."""
    letters = _letters(_installed())
    lacking = {
        label: [letter for letter in clip(name, len(name)) if ord(letter) not in letters and letter.isalpha()]
        for label, name in enumerate(names)
    }
    replaced = [f"{noun} {label}" if lacking[label] else name for label, name in enumerate(names)]
    letters_lacking = (letter for letters in lacking.values() for letter in letters)
    scripts = Counter(
        unicodedata.name(letter, "?").partition(" ")[0] for letter in letters_lacking
    ).most_common()
    spelled = ["Han" if script == "CJK" else script.capitalize() for script, _ in scripts]
    spelled = spelled if len(spelled) <= 3 else [*spelled[:2], "others"]
    return replaced, f"no typeface here for names in {listed(spelled)}" if scripts else ""


def picture(width: int, height: int, draw: Callable[[Figure], None], *, few_colours: bool = False) -> bytes:
    """A PNG file of width x height pixels on white.

    few_colours: at most SHADES colours; a picture of many points then takes a third of the bytes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
        draw(figure)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return _file(np.asarray(canvas.buffer_rgba())[..., :3], few_colours)


def _file(pixels: NDArray[np.uint8], few_colours: bool) -> bytes:
    import PIL.Image

    image = PIL.Image.fromarray(pixels)
    if few_colours:
        image = image.quantize(SHADES, method=PIL.Image.Quantize.FASTOCTREE, dither=PIL.Image.Dither.NONE)
        palette = np.array(image.getpalette()).reshape(-1, 3)
        palette[palette.min(axis=1) > NEARLY_WHITE] = 255
        image.putpalette(palette.ravel().tolist())
    return png(image)


def stamped(file: bytes, line: str) -> bytes:
    """A PNG file with a line of text below the picture that names its output, in the picture's colours."""
    import PIL.Image

    image = PIL.Image.open(io.BytesIO(file))

    def draw(figure: Figure) -> None:
        figure.text(0.985, 0.5, line, size=11, ha="right", va="center", color=COLOURS["muted"])

    below = PIL.Image.open(io.BytesIO(picture(image.width, STAMP, draw)))
    both = [np.asarray(each.convert("RGB")) for each in (image, below)]
    return _file(np.concatenate(both), image.mode == "P")


def svg(name: str, width: int, height: int, draw: Callable[[Figure], None]) -> Markup:
    """A drawing for a page, in the page's colours and typeface; text stays text for search.

    name: unique in the page. width, height: in CSS pixels, the unit of all sizes in the drawing.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    file = io.StringIO()
    with style():
        mpl.rcParams["svg.hashsalt"] = name
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        draw(figure)
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=metadata)
    return Markup(f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">') + Markup(
        _for_the_page(name, file.getvalue())
    )


def _for_the_page(name: str, text: str) -> str:
    """The content of an SVG file without its opening tag and global style."""
    text = text[text.index("</style>") :]
    text = text[text.index("</defs>") + len("</defs>") :]
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # every drawing numbers its groups alike
    text = re.sub(r'(?<=\bid=")|(?<=url\(#)|(?<=href="#)', f"{name}-", text).replace("xlink:href", "href")
    text = re.sub(r'(?<= d=")[^"]*', _shortened, text)
    return re.sub(r'(?<= style=")[^"]*', _in_colours_of_the_page, text)


def _shortened(path: re.Match[str]) -> str:
    """A path on one line, rounded to a tenth of a pixel."""
    numbers = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path[0])
    return " ".join(numbers.split())


def _in_colours_of_the_page(declarations: re.Match[str]) -> str:
    text = re.sub(r"font-family: [^;]*(; )?", "", declarations[0])
    for variable, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{variable})")
    return text


def png(image: Image) -> bytes:
    data = io.BytesIO()
    # optimize=True would take four times as long for 2 % fewer bytes.
    image.save(data, format="PNG")
    return data.getvalue()


def reduced(file: bytes, most: int, width: int) -> bytes:
    """A PNG file of at most `most` bytes and `width` pixels: if necessary, scaled down and with fewer colours."""
    import PIL.Image

    original = PIL.Image.open(io.BytesIO(file))
    share = min(1.0, width / original.width)
    if share == 1.0 and len(file) <= most:
        return file
    while True:
        size = (max(1, round(original.width * share)), max(1, round(original.height * share)))
        smaller = original.convert("RGB").resize(size, PIL.Image.Resampling.HAMMING)
        # Ten times as fast as the median cut, with files no larger. `optimize` would double the time.
        found = io.BytesIO()
        smaller.quantize(128, PIL.Image.Quantize.FASTOCTREE).save(found, "PNG")
        if len(found.getvalue()) <= most:
            return found.getvalue()
        share *= 0.8


def data_uri(file: bytes) -> str:
    """A PNG file as the `src` of an image in a page."""
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def stacked(mix: NDArray[np.floating], rows: int) -> NDArray[np.int64]:
    """The value at each pixel of a bar, int64 (rows, C): each column is divided among the values by their shares.

    mix: (C, J), rows sum to 1, values in stacking order.
    """
    heights = (np.arange(rows) + 0.5) / rows
    ends = np.cumsum(mix, axis=1, dtype=np.float64)
    values = np.stack([np.searchsorted(column, heights) for column in ends], axis=1)
    # A column's shares may sum to a little less than one.
    return np.minimum(values, mix.shape[1] - 1)


def indexed(values: NDArray[np.integer], palette: NDArray[np.floating]) -> Image:
    """An image of at most 256 colours. values: places in the palette, (rows, C). palette: RGB in [0, 1], (J, 3)."""
    import PIL.Image

    image = PIL.Image.fromarray(values.astype(np.uint8), mode="P")
    image.putpalette(np.rint(255 * palette).astype(np.uint8).ravel().tolist())
    return image


def by_place(mix: NDArray[np.floating]) -> NDArray[np.int64]:
    """The values of a mix along an order, (C, J), sorted by the mean place of their tokens, int64 (J,), so that values
    at nearby places become neighbours."""
    total = mix.sum(axis=0, dtype=np.float64)
    moment = (np.arange(len(mix))[:, None] * mix).sum(axis=0, dtype=np.float64)
    return np.argsort(moment / np.where(total > 0, total, 1.0), kind="stable")


def cluster_colours(k: int) -> NDArray[np.float64]:
    """The colours of k clusters in all pictures, tables and films, RGB in [0, 1] float64 (k, 3).

    The hues divide the OKLCH circle evenly; the first clusters, which are the largest, get hues far apart. Neighbours
    in hue differ in lightness (light, dark, middle, ...), which any colour vision tells apart.
    """
    place = np.argsort(np.argsort(np.arange(k) * GOLDEN % 1.0))
    hue = np.deg2rad(25.0) + 2.0 * np.pi * place / max(k, 1)
    lightness = np.array([0.80, 0.52, 0.67])[place % 3]
    chroma = np.array([0.105, 0.13, 0.135])[place % 3]
    return _oklab_to_srgb(np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=1))


def _oklab_to_srgb(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    """OKLab (n, 3) to sRGB, clipped to [0, 1]. Constants: Ottosson 2020, "A perceptual color space"."""
    to_lms = np.array(
        [
            [1, 0.3963377774, 0.2158037573],
            [1, -0.1055613458, -0.0638541728],
            [1, -0.0894841775, -1.2914855480],
        ]
    )
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip((lab @ to_lms.T) ** 3 @ to_rgb.T, 0.0, 1.0)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
