"""Commands around training: verify, where, freeze."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dagster_divorder.cli.verb import Options, Verb, argument, numbers, settings_of, whole_number
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.view.answer import Answer, Line, Part, TextTable

RANKS = {
    "world_size": "data-parallel ranks",
    "micro_batch": "sequences that a rank reads at a time",
    "workers": "loader processes of a rank",
}
READ = {
    "step": "optimiser steps taken, each of sequence.batch sequences over all ranks and micro-batches",
    "sequences": "sequences read; some trainers call them samples",
}
"""How much of a plan a trainer has read, by one of these numbers."""


def verify(options: Options) -> Answer:
    """What trainers read of an export or a plan, and whether they keep its order."""
    from dagster_divorder.verify import verify as verify_export

    ranks = {name: getattr(options, name) for name in RANKS}
    return verify_export(settings_of(options), options.export, options.trainer, **ranks)


def where(options: Options) -> Answer:
    """What some steps or sequences read, or where documents are read. One row a run of tokens."""
    from dagster_divorder.forensics import where as find
    from dagster_divorder.view.words import clip

    if options.loss:
        return _where_loss(options)
    asked = {"steps": options.step, "sequences": options.sequence, "ids": options.id, "plan": options.plan}
    table = find(settings_of(options), **asked)
    runs, rows = table.to_dict("records"), list[dict[str, str]]()
    for row in runs:
        # A missing source is None, or NaN where other records have one.
        names = [clip(part) for part in (row["source"], row["cluster_name"]) if isinstance(part, str)]
        last = row["start"] + row["tokens"]
        rows.append(
            {name: f"{row[name]:,}" for name in ("step", "sequence", "offset", "tokens")}
            | {
                "of document": f"{row['start']:,}..{last:,} of {row['document_tokens']:,}",
                "id": clip(row["id"]),
            }
            | {"source, cluster: first words": f"{', '.join(names)}: {clip(row['first_words'], 60)}"}
        )
    head = f"plan {table.attrs['plan']}, steps of {table.attrs['batch']:,} sequences"
    ids = list(dict.fromkeys(row["id"] for row in runs))
    data = {"plan": table.attrs["plan"], "batch": table.attrs["batch"], "ids": ids, "runs": runs}
    return Answer([head, "", TextTable(rows)], data)


def _where_loss(options: Options) -> Answer:
    """The steps whose loss stands out in a trainer's log, with what they read."""
    from dagster_divorder.spikes import loss_spikes
    from dagster_divorder.view.words import clip, percent

    if options.step or options.sequence or options.id:
        raise InputError("--loss names the steps itself; give it without --step, --sequence and --id")
    spikes = loss_spikes(settings_of(options), options.loss, options.plan)
    parts: list[Part] = [] if spikes else ["no step's loss stands out from those around it"]
    for spike in spikes:
        first, last = spike["steps"]
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        parts += [Line(f"{steps}: loss {spike['loss']:.4g}, {spike['expected']:.4g} around", "strong")]
        parts += [
            f"  {row['trait'].removesuffix('_name')} {clip(row['value'])}: {percent(row['share'])} of the tokens, "
            f"{percent(row['around'])} around"
            for row in spike["mix"]
        ]
        rows = [
            {name.replace("_", " "): clip(row[name] or "", 60) for name in ("id", "source", "first_words")}
            | {"tokens": f"{row['tokens']:,}"}
            for row in spike["documents"]
        ]
        parts += [TextTable(rows), ""]
    return Answer(parts, {"spikes": spikes})


def freeze(options: Options) -> Answer:
    """Freezes what a trainer has read of the published plan: writes `order.frozen_tokens`.

    Raises:
        SettingsError: there is no settings file, or it cannot be written.
    """
    from dagster_divorder.forensics import plan_freeze
    from dagster_divorder.settings.loading import DEFAULT_FILE, config_file, set_key

    settings, file = settings_of(options), config_file(getattr(options, "config", None), os.environ)
    given = {name: number for name in READ if (number := getattr(options, name)) is not None}
    if file is None:
        raise SettingsError(f"there is no {DEFAULT_FILE} to write to; `divorder init` makes one")
    set_key(file, "order.frozen_tokens", None)  # refuses before the work
    planned = plan_freeze(settings, **given, plan=options.plan)
    set_key(file, "order.frozen_tokens", planned.tokens)
    written = f"written into {file}; `divorder run` plans the rest (in Dagster reload definitions first)"
    shown = ("step", "sequences", "records", "rest", "plan")
    data = {"order.frozen_tokens": planned.tokens, **{name: getattr(planned, name) for name in shown}}
    return Answer([*planned.sentences, written], {**data, "file": str(file)})


def _place(text: str) -> str | Path:
    from dagster_divorder.settings.places import as_place

    return as_place(text)


def _add_read(parser: argparse.ArgumentParser) -> None:
    read = parser.add_mutually_exclusive_group(required=True)
    for name, meaning in READ.items():
        read.add_argument(f"--{name}", type=whole_number, metavar="N", help=meaning)


PLAN = argument(
    "--plan",
    metavar="PLAN",
    help="folder of the export that the trainer reads, or its plan's fingerprint (default: the published plan)",
)


VERBS = (
    Verb(
        "verify",
        "shows what trainers read of an export or a plan, and how to keep its order",
        "divorder verify data/exports/parquet --trainer trl",
        "seconds",
        verify,
        (
            argument(
                "export",
                nargs="?",
                type=_place,
                help="folder or URL of an export, such as data/exports/parquet",
            ),
            argument("--trainer", metavar="NAME", help="show this trainer in full (default: a line on each)"),
            *(
                argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=meaning)
                for name, meaning in RANKS.items()
            ),
        ),
    ),
    Verb(
        "where",
        "shows which documents some steps or sequences read, or where documents are read",
        "divorder where --step 1200..1210",
        "seconds",
        where,
        (
            *(
                argument(
                    f"--{name}",
                    type=numbers,
                    default=(),
                    metavar="A[..B]",
                    help=f"{what}, from 0; B is included",
                )
                for name, what in (("step", "steps of training"), ("sequence", "sequences"))
            ),
            argument("--id", nargs="+", default=(), help="documents, by your own ids or by record ids"),
            argument(
                "--loss",
                type=Path,
                metavar="FILE",
                help="a trainer's log of steps and losses: shows what the steps read whose loss stands out",
            ),
            PLAN,
        ),
    ),
    Verb(
        "freeze",
        "freezes what a trainer has read of the published plan",
        "divorder freeze --step 1200",
        "seconds",
        freeze,
        (PLAN, _add_read),
    ),
)
