"""Commands around training: verify, where, freeze, cut, loss."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_divorder.cli.verb import Options, Verb, config_of, numbers, settings_of, whole_number
from dagster_divorder.errors import SettingsError
from dagster_divorder.view.answer import Answer, Part, TextTable

if TYPE_CHECKING:
    from dagster_divorder.forensics import Freeze
    from dagster_divorder.settings import Settings


def verify(options: Options) -> Answer:
    """What trainers read of an export or a plan, and whether they keep its order."""
    from dagster_divorder.verify import verify as verify_export

    ranks = {name: getattr(options, name) for name in ("world_size", "micro_batch", "workers", "nodes")}
    return verify_export(settings_of(options), options.export, options.trainer, **ranks)


def where(
    settings: Settings, steps: range, sequences: range, ids: Sequence[str], plan: str | None = None
) -> Answer:
    """What some steps or sequences read, or where documents are read. One row a run of tokens."""
    from dagster_divorder.forensics import where as find
    from dagster_divorder.view.words import clip

    table = find(settings, steps=steps, sequences=sequences, ids=ids, plan=plan)
    runs, of = table.to_dict("records"), table.attrs
    rows = [
        {
            **{name: f"{row[name]:,}" for name in ("step", "sequence", "offset", "tokens")},
            "of document": f"{row['start']:,}..{row['start'] + row['tokens']:,} of {row['document_tokens']:,}",
            "id": clip(row["id"]),
            # A missing source is None, or NaN where other records have one.
            "source, cluster: first words": ", ".join(
                clip(part) for part in (row["source"], row["cluster_name"]) if isinstance(part, str)
            )
            + f": {clip(row['first_words'], 60)}",
        }
        for row in runs
    ]
    head = f"plan {of['plan']}, steps of {of['batch']:,} sequences"
    return Answer([head, "", TextTable(rows)], {"runs": runs, **{str(name): of[name] for name in of}})


def freeze(options: Options) -> Answer:
    """Freezes what a trainer has read of the published plan: writes `order.frozen_tokens`. Without a number, shows
    it."""
    from dagster_divorder.forensics import plan_freeze

    settings = settings_of(options)
    asked = {name: getattr(options, name) for name in ("step", "sequences", "tokens")}
    given = {name: number for name, number in asked.items() if number is not None}
    frozen = settings.order.frozen_tokens
    if not (given or frozen or options.plan):
        state = "is unset" if frozen is None else "is 0"
        parts: list[Part] = [
            f"order.frozen_tokens {state}: nothing is frozen; every run reorders everything",
            "to keep what a trainer has read: divorder freeze --step N, with N the steps it has taken",
        ]
        if settings.order.extends:
            parts = [
                'order.append is "extend": every document and every full sequence of the published plan stays',
                "if a trainer has read a last one that is not full: divorder freeze --step N",
            ]
        unknown = dict.fromkeys(("step", "sequences", "records", "rest", "plan", "file"))
        return Answer(parts, {"order.frozen_tokens": frozen, **unknown})
    if given:
        _write(options, {})  # refuses before the work
    planned = plan_freeze(settings, **(given or {"tokens": frozen}), plan=options.plan)
    file = _write(options, {"order.frozen_tokens": planned.tokens}) if given else None
    parts = [*_frozen_lines(planned)]
    if file:
        parts.append(
            f"written into {file}; `divorder run` plans the rest (in Dagster reload definitions first)"
        )
    return Answer(
        parts,
        {
            "order.frozen_tokens": planned.tokens,
            **{name: getattr(planned, name) for name in ("step", "sequences", "records", "rest", "plan")},
            "file": file and str(file),
        },
    )


def _frozen_lines(planned: Freeze) -> list[str]:
    """The frozen part of a plan, and the part that the next run may move."""
    from dagster_divorder.view.words import count

    if not planned.tokens:
        return ["nothing is frozen; the next run reorders everything"]
    sequence = planned.settings.sequence
    steps = "" if planned.step is None else f", {count(planned.step, 'step')} of {sequence.batch:,}"
    behind = "nothing comes after them yet; the next run puts new data there"
    if planned.rest and planned.settings.order.extends:
        behind = f"full ones of the {count(planned.rest, 'sequence')} after them stay, too (order.append)"
    elif planned.rest:
        behind = (
            f"the next run may move the {count(planned.rest, 'sequence')} after them, and puts new data there"
        )
    return [
        f"the first {planned.tokens:,} tokens of plan {planned.plan} stay: {count(planned.sequences, 'sequence')} of "
        f"{sequence.length:,}{steps}, with {count(planned.records, 'record')}",
        behind,
    ]


def _write(options: Options, keys: Mapping[str, Any]) -> Path:
    """Writes settings into the file of a command and returns the file.

    Raises:
        SettingsError: no settings file; see also `set_keys`.
    """
    from dagster_divorder.settings.loading import DEFAULT_FILE, config_file, set_keys

    file = config_file(config_of(options), os.environ)
    if file is None:
        raise SettingsError(f"there is no {DEFAULT_FILE} to write to; `divorder init` makes one")
    set_keys(file, keys)
    return file


def cut(options: Options) -> Answer:
    """Settings that cut documents out of the rest of a training, to paste; --write saves them."""
    from dagster_divorder.forensics import plan_cut
    from dagster_divorder.view.words import count, percent

    settings = settings_of(options)
    if options.write:
        _write(options, {})  # refuses before the work
    resume = {"resume_at": options.resume_at, "plan": options.plan}
    planned = plan_cut(settings, steps=options.step, ids=options.id, **resume)
    keys = {"order.frozen_tokens": planned.settings.order.frozen_tokens, "order.cut": planned.ids}
    share = planned.tokens / planned.rest if planned.rest else 0.0
    sentence = (
        f"{count(len(planned.ids), 'document')} cut from step {planned.step:,} of plan {planned.plan} on: "
        f"{planned.tokens:,} of {planned.rest:,} tokens ({percent(share)})"
    )
    data = {
        "step": planned.step,
        "plan": planned.plan,
        "tokens": planned.tokens,
        "rest_tokens": planned.rest,
        "share": share,
        **keys,
    }
    if options.write:
        file = _write(options, keys)
        return Answer(
            [sentence, f"written into {file}; `divorder run` plans the rest"], {**data, "file": str(file)}
        )
    return Answer(
        [
            f"# {sentence}: add these lines to the settings (--write does) and run",
            "[order]",
            f"frozen_tokens = {keys['order.frozen_tokens']}",
            f"cut = {json.dumps(keys['order.cut'], indent=2, ensure_ascii=False)}",
        ],
        data,
    )


def loss(options: Options) -> Answer:
    """The loss by source as a table, and each source's part of the total loss."""
    from dagster_divorder.engine.progress import STANDARD_ERROR
    from dagster_divorder.models.validation import loss_by_source
    from dagster_divorder.view.words import cells, fixed

    losses = loss_by_source(options.model, options.heldout, progress=STANDARD_ERROR)
    rows, composition = losses.to_dict("records"), losses.attrs["composition"]
    exact = [
        {str(name): fixed(value, 4) if isinstance(value, float) else value for name, value in row.items()}
        for row in rows
    ]
    return Answer([TextTable(cells(exact)), "", composition], {"sources": rows, "composition": composition})


def _add_verify(parser: argparse.ArgumentParser) -> None:
    from dagster_divorder.settings.places import as_place

    parser.add_argument(
        "export", nargs="?", type=as_place, help="folder or URL of an export, such as data/exports/parquet"
    )
    parser.add_argument(
        "--trainer", metavar="NAME", help="show this trainer in full (default: a line on each)"
    )
    for name, meaning in (
        ("world-size", "data-parallel ranks"),
        ("micro-batch", "sequences that a rank reads at a time"),
        ("workers", "loader processes of a rank"),
        ("nodes", "machines"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=meaning)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plan",
        metavar="PLAN",
        help="folder of the export that the trainer reads, or its plan's fingerprint (default: the published plan)",
    )


def _add_steps_and_ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step", type=numbers, default=(), metavar="A[..B]", help="steps of training, from 0; B is included"
    )
    _add_plan(parser)
    parser.add_argument("--id", nargs="+", default=(), help="documents, by your own ids or by record ids")


def _add_where(parser: argparse.ArgumentParser) -> None:
    _add_steps_and_ids(parser)
    parser.add_argument(
        "--sequence", type=numbers, default=(), metavar="A[..B]", help="sequences, from 0; B is included"
    )


def _add_freeze(parser: argparse.ArgumentParser) -> None:
    _add_plan(parser)
    read = parser.add_mutually_exclusive_group()
    for name, meaning in (
        (
            "step",
            "optimiser steps taken, each of sequence.batch sequences over all ranks and micro-batches",
        ),
        ("sequences", "sequences read; some trainers call them samples"),
        ("tokens", "tokens read, padding included"),
    ):
        read.add_argument(f"--{name}", type=whole_number, metavar="N", help=meaning)


def _add_cut(parser: argparse.ArgumentParser) -> None:
    _add_steps_and_ids(parser)
    parser.add_argument(
        "--resume-at", type=int, metavar="STEP", help="the checkpoint's step; default: the first of --step"
    )
    parser.add_argument("--write", action="store_true", help="write the settings into the settings file")


def _add_loss(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="directory or Hugging Face id")
    parser.add_argument(
        "heldout", type=Path, help="folder of an output, or a Parquet file of source and text"
    )


VERBS = (
    Verb(
        "verify",
        "shows what trainers read of an export or a plan, and how to keep its order",
        "divorder verify data/exports/parquet --trainer trl",
        "seconds",
        verify,
        _add_verify,
    ),
    Verb(
        "where",
        "shows which documents some steps or sequences read, or where documents are read",
        "divorder where --step 1200..1210",
        "seconds",
        lambda options: where(settings_of(options), options.step, options.sequence, options.id, options.plan),
        _add_where,
    ),
    Verb(
        "freeze",
        "freezes what a trainer has read of the published plan; without options, shows what is frozen",
        "divorder freeze --step 1200",
        "seconds",
        freeze,
        _add_freeze,
    ),
    Verb(
        "cut",
        "gives settings that remove documents from the rest of a training",
        "divorder cut --step 1200..1210 --write",
        "seconds",
        cut,
        _add_cut,
    ),
    Verb(
        "loss",
        "measures the loss of a causal model on held-out documents, by source",
        "divorder loss Qwen/Qwen3-0.6B data/curated",
        "the model reads every held-out document",
        loss,
        _add_loss,
    ),
)
