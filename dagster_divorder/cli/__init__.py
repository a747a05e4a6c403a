"""The `divorder` command. Its verbs are in the modules beside: what each takes, and what it answers.

Exit status: 0, the answer is yes, or there was nothing to ask; 1, the answer is no (`verify`), or an error that is said
on standard error; 2, the command line is wrong; 130, interrupted; 141, whoever read the output closed it.
"""

from __future__ import annotations

import argparse
import codecs
import gc
import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from dagster_divorder import __version__
from dagster_divorder.cli import evidence, explore, runs, training
from dagster_divorder.cli.terminal import shown
from dagster_divorder.cli.verb import Options, Verb, wrapped
from dagster_divorder.engine.interrupts import resend_interrupts
from dagster_divorder.engine.progress import STANDARD_ERROR
from dagster_divorder.errors import DivOrderError, StoreError
from dagster_divorder.view.answer import Answer

GROUPS: Mapping[str, Sequence[Verb]] = {
    "Make an order": runs.VERBS,
    "Look at a corpus": explore.VERBS,
    "Compare orders": evidence.VERBS,
    "Train on it": training.VERBS,
}
GOES_ON = "the next run goes on where this one was"
"""What an interrupted command says that does not say anything else."""


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    # Modules and lists of texts, which hold no cycles, are otherwise searched for them over and over.
    gc.set_threshold(10_000, 20, 20)
    _prepare_streams()
    try:
        try:
            return _run(_parser().parse_args(arguments))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has closed it, as `head` does.
        _drop_output()
        return 128 + signal.SIGPIPE


def _prepare_streams() -> None:
    """Standard streams that are closed lead nowhere, and a character that one cannot show is escaped, as TOML has it:
    \\u20ac."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one. The next file opened would have it otherwise, and be printed into.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error("divorder", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="divorder")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    codes = map(ord, error.object[error.start : error.end])
    return "".join(f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}" for code in codes), error.end


def _drop_output() -> None:
    """What is left in the buffers has nowhere to go."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    # Before or after the command; where one is not given, it must not take away what was given in the other place.
    shared.add_argument(
        "--config",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="TOML settings file (default: DIVORDER_CONFIG, then divorder.toml)",
    )
    shared.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="answer in JSON on standard output (docs/json.md)",
    )
    parser = argparse.ArgumentParser(
        prog="divorder",
        description=wrapped(
            "Order training data so that every window of training carries the corpus's own mix."
        ),
        epilog=_verbs_by_group(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[shared],
    )
    parser.add_argument("--version", action="version", version=f"divorder {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", help="one of those below; COMMAND --help has more"
    )
    for verb in (verb for verbs in GROUPS.values() for verb in verbs):
        of_verb = commands.add_parser(
            verb.name,
            description=wrapped(f"{verb.about[0].upper()}{verb.about[1:]}."),
            epilog=f"example: {verb.example}\n{wrapped(f'cost: {verb.cost}')}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[shared],
        )
        verb.add(of_verb)
        of_verb.set_defaults(answer=verb.answer, asks=verb.asks)
    return parser


def _verbs_by_group() -> str:
    """Every verb: what it does, an example, and what it costs."""
    lines: list[str] = []
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:"]
        for verb in verbs:
            lines += [
                wrapped(f"  {verb.name:<13} {verb.about}", 16),
                f"{'':<16}$ {verb.example}",
                wrapped(f"{'':<16}cost: {verb.cost}", 16),
            ]
    return "\n".join(lines[1:])


def _run(options: Options) -> int:
    resend_interrupts()
    try:
        # A bar would write over a question.
        with nullcontext() if options.asks else STANDARD_ERROR(options.command):
            answer = options.answer(options)
        _print(_as_json(answer) if getattr(options, "json", False) else shown(answer.parts))
    except DivOrderError as error:
        print(f"divorder: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(f"divorder: stopped; {stop.args[0] if stop.args else GOES_ON}", file=sys.stderr)
        return 130
    return 0 if answer.passed else 1


def _as_json(answer: Answer) -> str:
    import orjson

    return orjson.dumps(
        answer.data, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    ).decode()


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        # Tried once more at the end otherwise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StoreError(
            f"standard output cannot be written to: {error.strerror}; send it elsewhere"
        ) from None
