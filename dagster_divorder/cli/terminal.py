"""Output for terminals, and a test for an interactive one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from dagster_divorder.view.answer import UNLIMITED, Part, as_text


def shown(parts: Sequence[Part]) -> str:
    """Text as wide as the terminal, in colours if it has them. Outside terminals: plain text, lines not wrapped."""
    if not sys.stdout.isatty():
        return as_text(parts)
    colour = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size((UNLIMITED, 0)).columns
    return as_text(parts, width=width, colour=colour)


def can_ask() -> bool:
    """Whether input and output are both a terminal."""
    # sys.stdin is None if standard input is closed.
    return bool(sys.stdin) and sys.stdin.isatty() and sys.stdout.isatty()
