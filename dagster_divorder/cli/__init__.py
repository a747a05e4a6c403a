"""The `divorder` command. The other modules define its verbs, with arguments and answers.

Exit status: 0, success; 1, `verify` answers no, or an error is on standard error; 2, the command line is wrong; 130,
interrupted; 141, the reader of the output closed it.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Container, Mapping, Sequence
from contextlib import nullcontext

from dagster_divorder import __version__
from dagster_divorder.cli import init, runs, training
from dagster_divorder.cli.verb import Options, Verb, shown, wrapped
from dagster_divorder.engine.progress import STANDARD_ERROR
from dagster_divorder.errors import DivOrderError, StoreError
from dagster_divorder.removed import removed_verb

GROUPS: Mapping[str, Sequence[Verb]] = {
    "Make an order": (init.VERB, *runs.VERBS),
    "Compare orders": runs.COMPARING,
    "Train on it": training.VERBS,
}


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    _prepare_streams()
    # A notebook names its own backend, which matplotlib refuses to start with where its package is not installed.
    os.environ.pop("MPLBACKEND", None)
    # It reuses what is freed: a first run takes an eighth less memory, and less time to clear pages.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        try:
            given = sys.argv[1:] if arguments is None else arguments
            parser = command_parser(given)
            if gone := removed_verb(given):
                parser.error(gone)
            return _run(parser.parse_args(given))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the output, as `head` does.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 128 + signal.SIGPIPE


def _prepare_streams() -> None:
    """Opens closed streams on /dev/null, which takes their descriptors, and escapes what they cannot encode."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def command_parser(given: Container[str] | None = None) -> argparse.ArgumentParser:
    """The parser of the command line, with one parser a verb. given: the command line; verbs that it does not name get
    no arguments, some of which need the settings."""
    shared = argparse.ArgumentParser(add_help=False)
    # Options may stand before or after the command; a missing one must not replace a given one.
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
        help="print JSON on standard output (docs/json.md)",
    )
    epilog: list[str] = []
    for group, verbs in GROUPS.items():
        epilog += ["", f"{group}:"]
        for verb in verbs:
            example, cost = f"{'':<16}$ {verb.example}", wrapped(f"{'':<16}cost: {verb.cost}", 16)
            epilog += [wrapped(f"  {verb.name:<13} {verb.does}", 16), example, cost]
    parser = argparse.ArgumentParser(
        prog="divorder",
        description=wrapped(
            "Order training data so that every window of training carries the corpus's own mix."
        ),
        epilog="\n".join(epilog[1:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[shared],
    )
    parser.add_argument("--version", action="version", version=f"divorder {__version__}")
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="COMMAND",
        help="a command from the list below; COMMAND --help shows its options",
    )
    for verb in (verb for verbs in GROUPS.values() for verb in verbs):
        verb_parser = commands.add_parser(
            verb.name,
            description=wrapped(f"{verb.does[0].upper()}{verb.does[1:]}."),
            epilog=f"example: {verb.example}\n{wrapped(f'cost: {verb.cost}')}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[shared],
        )
        if given is None or verb.name in given:
            for add in verb.add:
                add(verb_parser)
        verb_parser.set_defaults(answer=verb.answer, asks=verb.asks)
    return parser


def _run(options: Options) -> int:
    try:
        # A progress bar would overwrite questions.
        with nullcontext() if options.asks else STANDARD_ERROR(options.command):
            answer = options.answer(options)
        if getattr(options, "json", False):
            import orjson

            layout = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
            _print(orjson.dumps(answer.data, default=str, option=layout).decode())
        else:
            _print(shown(answer.parts))
    except DivOrderError as error:
        print(f"divorder: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        said = stop.args[0] if stop.args else "the next run resumes here"
        print(f"divorder: stopped; {said}", file=sys.stderr)
        return 130
    return 0 if answer.passed else 1


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        # `main` flushes the stream once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StoreError(f"cannot write to standard output: {error.strerror}; send it elsewhere") from None
