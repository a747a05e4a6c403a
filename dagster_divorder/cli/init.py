"""The command `divorder init`: a settings file for a corpus, from its records."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_divorder.cli.verb import Options, Verb, can_ask, config_of, shown, whole_number
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.view.answer import Answer, Part, TextTable
from dagster_divorder.view.words import cells

if TYPE_CHECKING:
    from dagster_divorder.propose import Looked

Answered = TypeVar("Answered")
FIELDS, CELL = 40, 60
"""Fields in the table, and characters of a cell."""
NUMBERS = {
    "world_size": "data-parallel ranks of the trainer",
    "micro_batch": "sequences that a rank reads at a time",
    "workers": "loader processes of a rank",
    "sequence_length": "tokens of a sequence",
    "batch": "sequences of a batch, over all ranks",
}


def init(options: Options) -> Answer:
    """Write a settings file. Shows the fields of the records and their use.

    Raises:
        InputError: no corpus is named; see also `propose.look` and `propose.write_settings`. SettingsError: the file
            exists, or cannot be written.
    """
    from dagster_divorder.propose import look, write_settings
    from dagster_divorder.settings.loading import DEFAULT_FILE, refuse_unwritable
    from dagster_divorder.trainers import TRAINERS, trainer_named

    file = Path(config_of(options) or DEFAULT_FILE)
    if not options.paths:
        raise InputError(
            "no corpus is named; give its files, folders or globs: divorder init 'corpus/*.jsonl'"
        )
    refuse_unwritable(file, new=True)
    trainer = trainer_named(options.trainer).name if options.trainer else None
    numbers = {name: given for name in NUMBERS if (given := getattr(options, name)) is not None}
    looked = look(options.paths, options.text_field)
    data = _data(looked)
    fields = _shown(looked, data["fields"])
    if can_ask() and not options.yes and not getattr(options, "json", False):
        print(shown(fields))
        fields = []
        question = f"Trainer: {', '.join(TRAINERS)} [none]"
        trainer = trainer or _ask(question, lambda name: trainer_named(name).name)
        if trainer and "world_size" not in numbers and (ranks := _ask("Its ranks [unknown]", whole_number)):
            numbers["world_size"] = ranks
    settings = write_settings(looked, file, trainer=trainer, numbers=numbers)
    option = "" if str(file) == DEFAULT_FILE else f" --config {shlex.quote(str(file))}"
    reads = repr(looked.read[0]) if looked.format == "text" else looked.why
    return Answer(
        [
            f"wrote {file}: it reads {reads}; every window will carry the mix of "
            f"{', '.join(settings.order.traits)}",
            *fields,
            "check it, then:",
            f"  divorder{option} plan    # what a run would compute",
            f"  divorder{option} run     # the order, in {settings.output.path}",
            *([f"  divorder{option} verify  # what {trainer} reads of it"] if trainer else []),
            "in Dagster: dagster dev -m dagster_divorder.definitions",
        ],
        {
            "settings": str(file),
            "input": data,
            "written": settings.model_dump(mode="json", exclude_unset=True),
        },
    )


def _ask(question: str, read: Callable[[str], Answered]) -> Answered | None:
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


def _data(looked: Looked) -> dict[str, Any]:
    """What is known of the records, and of each of their fields."""
    fields = [
        {
            "field": name,
            "type": each.type,
            "share": each.records / looked.records,
            "distinct": len(each.values) or None,
            "example": each.example,
        }
        for name, each in looked.fields.items()
    ]
    names = ("paths", "records", "format", "read", "why", "id_field", "source_field")
    return {**{name: getattr(looked, name) or None for name in names}, "fields": fields}


def _shown(looked: Looked, fields: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The fields of the records, and what they are taken for."""
    return [
        "",
        TextTable(
            cells(fields[:FIELDS], CELL), f"{', '.join(looked.paths)}: fields of {looked.records:,} records"
        ),
        *(["other fields: --json has all of them"] if len(fields) > FIELDS else []),
        *(
            f"files that are not read: {number:,} {ending}"
            for ending, number in looked.listing.others.items()
        ),
        "",
        f"{looked.format}: {looked.what}",
        f"id: {looked.id_field or 'none: no field such as id or url differs in each record'}",
        f"source: {looked.source_field or 'none: no field such as source has few texts'}",
    ]


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
