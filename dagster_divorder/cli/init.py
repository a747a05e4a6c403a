"""The command `divorder init`: a settings file for a corpus, from its records."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_divorder.cli.verb import Options, Verb, can_ask, config_of, shown
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.view.answer import Answer, Line, Part, TextTable
from dagster_divorder.view.words import cells

if TYPE_CHECKING:
    from dagster_divorder.propose import InputBlock

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
    # A trainer of texts that are records reads prompts, and no answers beside them.
    prompt = "prompt" if trainer and "text" in TRAINERS[trainer].forms else None
    blocks = look(options.paths, options.text_field or prompt)
    fields = [part for block in blocks for part in _fields(block)]
    if can_ask() and not options.yes and not getattr(options, "json", False):
        print(shown(fields))
        fields = []
        question = f"Trainer: {', '.join(TRAINERS)} [none]"
        trainer = trainer or _ask(question, lambda name: trainer_named(name).name)
        if trainer and "world_size" not in numbers and (ranks := _ask("Its ranks [unknown]", _ranks)):
            numbers["world_size"] = ranks
    settings = write_settings(blocks, file, trainer=trainer, numbers=numbers)
    names = [block.structure.name if block.structure else repr(block.text_field) for block in blocks]
    option = "" if str(file) == DEFAULT_FILE else f" --config {shlex.quote(str(file))}"
    return Answer(
        [
            f"wrote {file}: it reads {' and '.join(dict.fromkeys(names))}; every window will carry the mix of "
            f"{', '.join(settings.order.traits)}",
            *fields,
            *(Line(warning, "bad") for block in blocks for warning in block.warnings if warning),
            "check it, then:",
            f"  divorder{option} plan    # what a run would compute",
            f"  divorder{option} run     # the order, in {settings.output.path}",
            *([f"  divorder{option} verify  # what {trainer} reads of it"] if trainer else []),
            "in Dagster: dagster dev -m dagster_divorder.definitions",
        ],
        {
            "settings": str(file),
            "inputs": [_data(block) for block in blocks],
            "traits": list(settings.order.traits),
            "sequence": settings.sequence.model_dump(include={"length", "batch"}),
            "exports": settings.exports.model_dump(
                mode="json", include={"formats", "trainer"} | settings.exports.ranks.keys()
            ),
        },
    )


def _ask(question: str, read: Callable[[str], Answered]) -> Answered | None:
    """The answer to a question, asked again until `read` takes it; None for Enter."""
    while True:
        try:
            answer = input(f"{question}: ").strip()
            return read(answer) if answer else None
        except (DivOrderError, UnicodeDecodeError) as error:
            print(f"  {error}")
        except (EOFError, KeyboardInterrupt):
            print()
            raise KeyboardInterrupt("nothing was written; --yes asks nothing") from None


def _ranks(answer: str) -> int:
    if not answer.isdecimal() or not int(answer):
        raise InputError(f"{answer!r} is no number of ranks; expected 1 or more")
    return int(answer)


def _data(block: InputBlock) -> dict[str, Any]:
    """What is known of an input, and of each of its fields."""
    names = ("paths", "records", "format", "text_field", "why", "id_field", "source_field")
    fields = [
        {
            "field": name,
            "type": each.type,
            "share": each.records / block.records,
            "distinct": len(each.values) or None,
            "example": each.example,
        }
        for name, each in block.fields.items()
    ]
    return {**{name: getattr(block, name) or None for name in names}, "fields": fields}


def _fields(block: InputBlock) -> list[Part]:
    """The fields of an input, the files that are not read, and what the fields are taken for."""
    rows, others = cells(_data(block)["fields"], CELL), block.listing.others
    title = f"{', '.join(block.paths)}: fields of {block.records:,} records"
    text = f"text: {block.text_field!r}, {block.why}"
    return [
        "",
        TextTable(rows[:FIELDS], title),
        *([f"and {len(rows) - FIELDS:,} more: --json has all of them"] if len(rows) > FIELDS else []),
        *(f"files that are not read: {number:,} {ending}" for ending, number in others.items()),
        "",
        f"format: {block.format}, as these are {block.why}" if block.structure else text,
        f"id: {block.id_field or 'none: no field such as id or url differs in each record'}",
        f"source: {block.source_field or 'none: no field such as source has few texts'}",
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
