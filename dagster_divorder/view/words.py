"""Numbers and texts, formatted for readers."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

CLIP = 240
"""Most characters shown of a document's text."""
LONGEST_WORD = 24
"""`clip` drops a shorter last word that does not fit, and cuts a longer one."""
NAME = 30
"""Most letters of a name in a picture."""

ORDERS = {
    "original": "original order",
    "random": "documents shuffled",
    "curated": "documents in order",
    "sequences_random": "training sequences shuffled",
    "sequences": "training sequences in order",
}
"""Readable names of the measured orders, by their names in metrics, manifest and files (`core.measure`)."""
TRAIN_ON = "sequences"
"""The order that trainers read."""

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits and thousands separators; whole numbers in full; a dash for None and
    NaN."""
    if value is None or value != value:
        return "–"
    if float(value).is_integer() or abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def cells(rows: Sequence[Mapping[str, Any]], longest: int = CLIP) -> list[dict[str, str]]:
    """Rows of plain values as text: numbers to four digits, true as "yes", texts clipped to one line."""

    def cell(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else ""
        return clip(value, longest) if isinstance(value, str) else number(value, 4)

    return [{name: cell(value) for name, value in row.items()} for row in rows]


def fixed(value: float | None, decimals: int = 2) -> str:
    """A number with fixed decimals, so that a column is comparable; a dash for None and NaN."""
    return "–" if value is None or value != value else f"{value:,.{decimals}f}"


def points(share: float | None) -> str:
    """A share, or a difference of shares, in per cent with two decimals and without the unit."""
    return fixed(None if share is None else 100 * share)


def percent(share: float | None) -> str:
    """A share, such as `4.2 %`, with a non-breaking space."""
    return "–" if share is None or share != share else f"{number(100 * share)}\u00a0%"


def short(value: float) -> str:
    """A large number in three digits, such as `38.5M`."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return number(value)


def count(items: int, noun: str) -> str:
    """`1 document`, `2,000 documents`."""
    return f"{items:,} {noun}" if items == 1 else f"{items:,} {noun}s"


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])


def clip(text: str, characters: int = CLIP) -> str:
    """The beginning of a text on one line, without control, invisible and direction-changing characters, so that no
    text can disguise its neighbours."""
    head = text[: 4 * characters]
    shown = "".join(" " if c.isspace() else "" if unicodedata.category(c) in _INVISIBLE else c for c in head)
    line = " ".join(shown.split())
    if len(line) <= characters and len(text) <= len(head):
        return line
    cut = line[:characters]
    # Cuts between words, unless the last word is long.
    words, _, last = cut.rpartition(" ")
    return f"{(words if words and len(last) < LONGEST_WORD else cut).rstrip()} …"


def corpus_name(files: Sequence[str]) -> str:
    """The name of a corpus: its only file without endings, or the folder with all of its files."""
    if len(files) == 1:
        path = PurePath(files[0])
        name = f"{path.parent.name}/{path.name.split('.')[0] or path.name}".lstrip("/")
    else:
        name = PurePath(os.path.commonpath(files)).name or f"{len(files):,} files"
    return clip(name, NAME)


def output_label(manifest: Mapping[str, Any]) -> str:
    """The line on every page, picture and film of an output: corpus, date, and the first digits of the output's key."""
    return f"{corpus_name(manifest['input']['files'])} · {manifest['date']} · output {manifest['key'][:8]}"
