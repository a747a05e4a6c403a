"""The command `divorder init`: a settings file for a corpus, from its records."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_divorder.cli.dagster_files import write_dagster_files
from dagster_divorder.cli.terminal import can_ask, shown
from dagster_divorder.cli.verb import Options, Verb, config_of
from dagster_divorder.errors import InputError
from dagster_divorder.view.answer import Answer, Part, TextTable
from dagster_divorder.view.words import cells, count

if TYPE_CHECKING:
    from dagster_divorder.propose import InputBlock, Proposal
    from dagster_divorder.settings import Settings

NO_DAGSTER = "in Dagster: divorder init --dagster writes the files that `dagster dev` needs"


def init(options: Options) -> Answer:
    """Write a settings file, and with --dagster Dagster's files. Shows the fields of the records and their use.

    Raises:
        InputError: no corpus is named; see also `propose.look` and `Proposal.toml`. SettingsError: the file exists, or
        cannot be written.
    """
    from dagster_divorder.propose import write_settings
    from dagster_divorder.settings import DEFAULT_FILE

    file = Path(config_of(options) or DEFAULT_FILE)
    if not options.paths and options.dagster:
        return Answer(*write_dagster_files(file))
    try:
        proposal, fields, replaces = _proposed(options, file)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was written") from None
    settings = write_settings(proposal, file, replaces=replaces)
    blocks = proposal.blocks
    read = " and ".join(
        dict.fromkeys(block.structure.name if block.structure else repr(block.text) for block in blocks)
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
            *_verify_line(proposal, settings, option),
            *dagster_parts,
        ],
        {
            "settings": str(file),
            "text_fields": [block.text or None for block in blocks],
            "inputs": [block.data() for block in blocks],
            "looked_at": looked_at,
            "refused": refused,
            "will_stop": refused > settings.input.max_reject_share * looked_at,
            "traits": list(settings.order.traits),
            "sequence": settings.sequence.model_dump(include={"length", "batch"}),
            "trainer": proposal.trainer,
            "exports": settings.exports.model_dump(
                mode="json", include={"formats", "world_size", "micro_batch", "workers"}
            ),
            **dagster_files,
        },
    )


def _proposed(options: Options, file: Path) -> tuple[Proposal, list[Part], bool]:
    """(the proposal, its fields unless already printed, whether it replaces an existing file)."""
    from dagster_divorder.cli import dialogue
    from dagster_divorder.propose import NUMBERS, Proposal, look, refuse_existing
    from dagster_divorder.trainers import TRAINERS

    if not options.paths:
        raise InputError(
            "no corpus is named; give its files, folders or globs: divorder init 'corpus/*.jsonl'"
        )
    asks = can_ask() and not options.yes and not getattr(options, "json", False)
    replaces = asks and file.is_file() and dialogue.replaces(str(file))
    if not replaces:
        refuse_existing(file)
    numbers = {name: getattr(options, "sequence_length" if name == "length" else name) for name in NUMBERS}
    # A trainer of texts that are records reads prompts, and no answers beside them.
    prompt = "prompt" if "text" in getattr(TRAINERS.get(options.trainer), "forms", ()) else None
    proposal = Proposal(
        blocks=look(options.paths, options.text_field or prompt),
        trainer=options.trainer,
        numbers={name: number for name, number in numbers.items() if number is not None},
    )
    if not asks:
        return proposal, _fields(proposal), replaces
    print(shown(_fields(proposal)))
    return dialogue.complete(proposal), [], replaces


def _fields(proposal: Proposal) -> list[Part]:
    """The fields of each input, the files that are not read, and what the fields are taken for."""
    from dagster_divorder.propose import FIELDS_SHOWN, NAME_CHARACTERS

    parts: list[Part] = []
    for block in proposal.blocks:
        data = block.data()["fields"]
        title = f"{', '.join(block.paths)}: " if len(proposal.blocks) > 1 else ""
        rows = cells(data[:FIELDS_SHOWN], NAME_CHARACTERS)
        parts += ["", TextTable(rows, f"{title}fields of {count(block.records, 'record')}")]
        if len(data) > FIELDS_SHOWN:
            parts.append(f"and {len(data) - FIELDS_SHOWN:,} more: --json has all of them")
        if block.listing.others:
            others = ", ".join(f"{number:,} {ending}" for ending, number in block.listing.others.items())
            parts.append(f"files that are not read: {others}")
        parts += ["", *(_reasons(block) if block.read else [])]
    return parts


def _reasons(block: InputBlock) -> list[Part]:
    parts: list[Part] = [f"text: {block.text!r}, {block.why}"]
    if block.structure:
        parts = [f"format: {block.form}, as these are {block.why}", f"first record: {block.first}"]
    if block.label:
        parts.append(
            f"label: {block.label!r} says whether an answer is wanted, so that a sequence holds one record"
        )
    own_id = "none: no field named id, url or similar has a different text or whole number in each record"
    source = "none: no field named source, dataset or similar has few different texts"
    if block.own_id:
        own_id = f"{block.own_id!r}, different in each record"
    if block.source:
        source = f"{block.source!r}, {count(len(block.fields[block.source].values), 'value')}"
    return [*parts, f"id: {own_id}", f"source: {source}"]


def _verify_line(proposal: Proposal, settings: Settings, option: str) -> list[str]:
    """The command that shows what the given trainer reads of the export, or of the output."""
    if not proposal.trainer:
        return []
    exports = [f"{settings.exports.path}/{name}" for name in settings.exports.formats]
    read = next(iter(exports), str(settings.output.path))
    ranks = "".join(f" --{name.replace('_', '-')} {number}" for name, number in proposal.ranks.items())
    return [
        f"  divorder{option} verify {shlex.quote(read)} --trainer {proposal.trainer}{ranks}"
        "    # then: its lines"
    ]


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="FILE_OR_FOLDER", help="JSONL or Parquet; quote globs")
    parser.add_argument("--yes", action="store_true", help="ask nothing: accept every proposal")
    parser.add_argument("--text-field", metavar="NAME", help="the field that holds the text")
    parser.add_argument("--trainer", metavar="NAME", help="write the export that this trainer reads")
    for name, meaning in (
        ("world-size", "data-parallel ranks of the trainer"),
        ("micro-batch", "sequences that a rank reads at a time"),
        ("workers", "loader processes of a rank"),
        ("sequence-length", "tokens of a sequence"),
        ("batch", "sequences of a batch, over all ranks"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=meaning)
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
