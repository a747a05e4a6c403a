"""The command `divorder init`: a settings file for a corpus, from its records."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagster_divorder.cli.training import RANKS
from dagster_divorder.cli.verb import Options, Verb, can_ask, shown, whole_number
from dagster_divorder.errors import DivOrderError
from dagster_divorder.view.answer import Answer, Part, TextTable
from dagster_divorder.view.words import cells

NUMBERS = RANKS | {"sequence_length": "tokens of a sequence", "batch": "sequences of a batch, over all ranks"}


def init(options: Options) -> Answer:
    """Write a settings file. Shows the fields of the records and their use. Raises as `look` and `write_settings`."""
    from dagster_divorder.corpus.find import counted
    from dagster_divorder.propose import look, write_settings
    from dagster_divorder.settings.loading import DEFAULT_FILE, refuse_unwritable
    from dagster_divorder.trainers import TRAINERS, trainer_named

    file = Path(getattr(options, "config", None) or DEFAULT_FILE)
    refuse_unwritable(file, new=True)
    trainer = trainer_named(options.trainer).name if options.trainer else None
    numbers = {name: given for name in NUMBERS if (given := getattr(options, name)) is not None}
    looked = look(options.paths, options.text_field)
    fields = looked.uses()
    table: list[Part] = [
        "",
        TextTable(cells(fields), f"{', '.join(looked.paths)}: fields of {looked.records:,} records"),
        *([f"not read: {left_out}"] if (left_out := counted(looked.listing.left_out)) else ()),
        "",
    ]
    if can_ask() and not options.yes and not getattr(options, "json", False):
        print(shown(table))
        table = []
        question = f"Trainer: {', '.join(TRAINERS)} [none]"
        trainer = trainer or _ask(question, lambda name: trainer_named(name).name)
        if trainer and "world_size" not in numbers and (ranks := _ask("Its ranks [unknown]", whole_number)):
            numbers["world_size"] = ranks
    settings = write_settings(looked, file, trainer=trainer, numbers=numbers)
    option = "" if str(file) == DEFAULT_FILE else f" --config {shlex.quote(str(file))}"
    return Answer(
        [
            f"wrote {file}: it reads {looked.format} in {', '.join(map(repr, looked.read))}; every window will carry "
            f"the mix of {', '.join(settings.order.traits)}",
            *table,
            "check it, then:",
            f"  divorder{option} plan    # what a run would compute",
            f"  divorder{option} run     # the order, in {settings.output.path}",
            *([f"  divorder{option} verify  # what {trainer} reads of it"] if trainer else []),
            "in Dagster: dagster dev -m dagster_divorder.definitions",
        ],
        {
            "input": {"paths": looked.paths, "records": looked.records},
            "written": settings.model_dump(mode="json", exclude_unset=True),
            "fields": fields,
        },
    )


def _ask(question: str, read: Callable[[str], Any]) -> Any:
    """The answer to a question, asked again until `read` takes it; None for Enter."""
    while True:
        try:
            answer = input(f"{question}: ").strip()
            return read(answer) if answer else None
        except (DivOrderError, argparse.ArgumentTypeError, UnicodeDecodeError) as error:
            print(f"  {error}")
        except (EOFError, KeyboardInterrupt):
            print()
            raise KeyboardInterrupt("nothing was written; --yes asks nothing") from None


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="FILE_OR_FOLDER", help="JSONL or Parquet; quote globs")
    parser.add_argument("--yes", action="store_true", help="ask nothing: accept every proposal")
    parser.add_argument("--text-field", metavar="NAME", help="the field that holds the text")
    parser.add_argument("--trainer", metavar="NAME", help="write the export that this trainer reads")
    for name, meaning in NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=meaning)


VERB = Verb(
    "init",
    "writes divorder.toml for a corpus, from its records",
    "divorder init 'corpus/*.jsonl'",
    "seconds",
    init,
    (_add_init,),
    asks=True,
)
