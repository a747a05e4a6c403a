"""What a terminal is shown, and whether there is one to ask."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from dagster_divorder.view.answer import UNLIMITED, Part, as_text


def shown(parts: Sequence[Part]) -> str:
    """As wide as the terminal, and in colours where it has them; whole lines of plain text elsewhere."""
    if not sys.stdout.isatty():
        return as_text(parts)
    colour = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size((UNLIMITED, 0)).columns
    return as_text(parts, width=width, colour=colour)


def can_ask() -> bool:
    """Whether somebody reads what is printed and can answer."""
    # Python has no standard input where that is closed.
    return bool(sys.stdin) and sys.stdin.isatty() and sys.stdout.isatty()
