"""Commands of `divorder`, their settings, and their output on terminals."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_divorder.view.answer import UNLIMITED, Answer, Part, as_text

if TYPE_CHECKING:
    from dagster_divorder.settings import Settings

Options = argparse.Namespace


class Verb(NamedTuple):
    """One command of `divorder`. does: its help. example: a line to copy. cost: time, in words. answer: computes the
    answer from the options. add: add its arguments to its parser. asks: whether it asks questions on a terminal."""

    name: str
    does: str
    example: str
    cost: str
    answer: Callable[[Options], Answer]
    add: Sequence[Callable[[argparse.ArgumentParser], object]] = ()
    asks: bool = False


def argument(*names: str, **given: Any) -> Callable[[argparse.ArgumentParser], object]:
    """Adds an argument to a parser; as `add_argument`."""
    return lambda parser: parser.add_argument(*names, **given)


def flag(name: str, does: str) -> Callable[[argparse.ArgumentParser], object]:
    """Adds an option without a value."""
    return argument(name, action="store_true", help=does)


def wrapped(text: str, indent: int = 0) -> str:
    """Help text wrapped to the terminal, 40 to 120 columns; indented from the second line on."""
    width = min(max(shutil.get_terminal_size((80, 0)).columns, 40), 120)
    return textwrap.fill(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def settings_of(options: Options) -> Settings:
    """The settings of a command, with --refit applied.

    Raises:
        SettingsError: a file or the environment has an unknown key or an impossible value.
    """
    # Help needs neither corpus nor settings.
    from dagster_divorder.corpus.peek import recognised
    from dagster_divorder.settings import load_settings

    return recognised(load_settings(getattr(options, "config", None))).refitting(
        *getattr(options, "refit", ())
    )


def add_refit(parser: argparse.ArgumentParser) -> None:
    """Adds `--refit`, which `settings_of` reads."""
    from dagster_divorder.settings.sections import RULES

    parser.add_argument(
        "--refit",
        nargs="+",
        action="extend",
        choices=RULES,
        default=[],
        metavar="NAME",
        help=f"fit these to the present corpus again: {', '.join(RULES)}",
    )


def numbers(text: str) -> range:
    """`1200` or `1200..1210` (both ends included) -> a range that is not empty."""
    match = re.fullmatch(r"(\d{1,40})(?:\.\.(\d{1,40}))?", text, re.ASCII)
    if match and (values := range(int(match[1]), int(match[2] or match[1]) + 1)):
        return values
    raise argparse.ArgumentTypeError(
        f"{text!r} is not A or A..B, with whole numbers from 0, B not below A; A..B includes B"
    )


def whole_number(text: str) -> int:
    """A whole number from 0."""
    if not re.fullmatch(r"\d[\d_,]{0,40}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0, such as 1200 or 1_200")
    return int(text.replace(",", "").replace("_", ""))


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
