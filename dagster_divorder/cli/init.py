"""The command `divorder init`: a settings file for a corpus, from its records."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_divorder.cli.dagster_files import write_dagster_files
from dagster_divorder.cli.terminal import can_ask, shown
from dagster_divorder.cli.verb import Options, Verb, config_of
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.view.answer import Answer, Part, TextTable
from dagster_divorder.view.words import cells, count

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
NO_DAGSTER = "in Dagster: divorder init --dagster writes the files that `dagster dev` needs"


def init(options: Options) -> Answer:
    """Write a settings file, and with --dagster Dagster's files. Shows the fields of the records and their use.

    Raises:
        InputError: no corpus is named; see also `propose.look` and `propose.write_settings`. SettingsError: the file
            exists, or cannot be written.
    """
    from dagster_divorder.propose import Proposal, look, write_settings
    from dagster_divorder.settings.loading import DEFAULT_FILE, refuse_unwritable
    from dagster_divorder.trainers import TRAINERS, trainer_named

    file = Path(config_of(options) or DEFAULT_FILE)
    if not options.paths and options.dagster:
        return Answer(*write_dagster_files(file))
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
    titles = [f"{', '.join(block.paths)}: " if len(blocks) > 1 else "" for block in blocks]
    fields = [part for block, title in zip(blocks, titles, strict=True) for part in _fields(block, title)]
    if can_ask() and not options.yes and not getattr(options, "json", False):
        print(shown(fields))
        fields = []
        trainer = trainer or _ask(
            f"Trainer: {', '.join(TRAINERS)} [none]", lambda name: trainer_named(name).name
        )
        if trainer and "world_size" not in numbers and (ranks := _ask("Its ranks [unknown]", _ranks)):
            numbers["world_size"] = ranks
    proposal = Proposal(blocks=blocks, trainer=trainer, numbers=numbers)
    settings = write_settings(proposal, file)
    read = " and ".join(
        dict.fromkeys(block.structure.name if block.structure else repr(block.text_field) for block in blocks)
    )
    verb = "it reads" if any(block.structure for block in blocks) else "the text is in"
    option = "" if str(file) == DEFAULT_FILE else f" --config {shlex.quote(str(file))}"
    looked_at, refused = (
        sum(getattr(block.refusals, name) for block in blocks) for name in ("looked_at", "refused")
    )
    dagster_parts, dagster_files = (
        write_dagster_files(file) if options.dagster else ([NO_DAGSTER], {"dagster": None, "workspace": None})
    )
    return Answer(
        [
            f"wrote {file}: {verb} {read}, every window will carry the corpus's mix of "
            f"{', '.join(settings.order.traits)}",
            *fields,
            *proposal.warnings,
            "check it, then:",
            f"  divorder{option} plan    # what a run would compute",
            f"  divorder{option} run     # the order, in {settings.output.path}",
            *([f"  divorder{option} verify  # what {trainer} reads of it"] if trainer else []),
            *dagster_parts,
        ],
        {
            "settings": str(file),
            "inputs": [_data(block) for block in blocks],
            "looked_at": looked_at,
            "refused": refused,
            "will_stop": refused > settings.input.max_reject_share * looked_at,
            "traits": list(settings.order.traits),
            "sequence": settings.sequence.model_dump(include={"length", "batch"}),
            "exports": settings.exports.model_dump(
                mode="json", include={"formats", "trainer"} | settings.exports.ranks.keys()
            ),
            **dagster_files,
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
    return {
        **{name: getattr(block, name) or None for name in names},
        "looked_at": block.refusals.looked_at,
        "refused": block.refusals.refused,
        "first_refusal": block.refusals.first or None,
        "fields": [
            {
                "field": name,
                "type": each.type,
                "share": each.records / block.records,
                "distinct": len(each.values) or None,
                "example": each.example,
            }
            for name, each in block.fields.items()
        ],
    }


def _fields(block: InputBlock, title: str) -> list[Part]:
    """The fields of an input, the files that are not read, and what the fields are taken for."""
    rows, others = _data(block)["fields"], block.listing.others
    parts: list[Part] = [
        "",
        TextTable(cells(rows[:FIELDS], CELL), f"{title}fields of {count(block.records, 'record')}"),
    ]
    if len(rows) > FIELDS:
        parts.append(f"and {len(rows) - FIELDS:,} more: --json has all of them")
    if others:
        parts.append(
            f"files that are not read: {', '.join(f'{number:,} {ending}' for ending, number in others.items())}"
        )
    read = f"text: {block.text_field!r}, {block.why}"
    parts += ["", f"format: {block.format}, as these are {block.why}" if block.structure else read]
    if block.label:
        parts.append(
            f"label: {block.label!r} says whether an answer is wanted, so that a sequence holds one record"
        )
    parts.append(f"id: {block.id_field or 'none: no field such as id or url differs in each record'}")
    values = len(block.fields[block.source_field].values) if block.source_field else 0
    source = (
        f"{block.source_field}, {count(values, 'value')}"
        if values
        else "none: no field such as source has few texts"
    )
    return [*parts, f"source: {source}"]


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="FILE_OR_FOLDER", help="JSONL or Parquet; quote globs")
    parser.add_argument("--yes", action="store_true", help="ask nothing: accept every proposal")
    parser.add_argument("--text-field", metavar="NAME", help="the field that holds the text")
    parser.add_argument("--trainer", metavar="NAME", help="write the export that this trainer reads")
    for name, meaning in NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=meaning)
    parser.add_argument(
        "--dagster",
        action="store_true",
        help="also write dagster.yaml and workspace.yaml, so that `dagster dev` shows the corpus and keeps its "
        "history; without a corpus, write only these",
    )


VERB = Verb(
    "init",
    "writes divorder.toml for a corpus, from its records",
    "divorder init 'corpus/*.jsonl'",
    "seconds",
    init,
    (_add_init,),
    asks=True,
)
