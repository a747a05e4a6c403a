"""`divorder verify`: compares what trainers read with the plan, before and after its export."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dagster_divorder.engine.progress import STANDARD_ERROR, Advance
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place
from dagster_divorder.settings.sections import Packing
from dagster_divorder.stages import open_run
from dagster_divorder.stages.output.exports import (
    plan_fingerprint,
    planned_shape,
    records_shape,
    slowest_ranks,
    unread,
)
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at, neighbour
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.trainers import TRAINERS, Reading, Trainer, trainer_named
from dagster_divorder.trainers.replay import Replay, Shape, replay
from dagster_divorder.units import BATCHES, batch_advice
from dagster_divorder.view.answer import Answer, Line, Part, TextTable
from dagster_divorder.view.words import count

LAID_OUT = "exports.* belong in divorder.toml; the next run lays out the rows by them"


def verify(settings: Settings, folder: Place | None, trainer: str | None, **ranks: int | None) -> Answer:
    """What trainers read of an export or of the curated output; without a folder, of the plan. A trainer: in full;
    none: exports.trainer if it reads this, else a line on each. Passed if the trainer, or any trainer, can read every
    global batch. ranks: see `Shape.reading`; without them, those of the settings.

    Raises:
        InputError: the folder holds neither, or one of its files was altered; no such trainer, or it reads something
            else; less than one batch; impossible ranks.
        MissingStageError: without a folder, if there is no plan under these settings.
    """
    run = open_run(settings)
    chosen, own = trainer_named(trainer) if trainer else None, settings.exports.trainer
    if folder is None and own:
        chosen = chosen or trainer_named(own)
    head, shapes, is_plan = _readable(run, folder, chosen)
    if not (read := next(iter(shapes.values())).reading()).steps:
        raise InputError(
            f"there is nothing to verify: {read.length:,} rows are less than one batch of {read.batch:,}. "
            f"{batch_advice(read.length)}"
        )
    if chosen is None and own in shapes:
        chosen, shapes = trainer_named(own), {own: shapes[own]}
    asked = {name: number for name, number in ranks.items() if number is not None}
    known = settings.exports.ranks
    if asked.get("world_size") in (None, known.get("world_size")):
        asked = {**known, **asked}
    replays = {name: replay(shape, TRAINERS[name], **asked) for name, shape in shapes.items()}
    reading = next(iter(replays.values())).reading
    numbers = {name: getattr(reading, name) for name in ("world_size", "micro_batch", "workers")}
    assumed = "; the number of ranks is unknown, and two stand for several" if reading.assumed else ""
    parts: list[Part] = [
        head,
        ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in numbers.items()) + assumed,
        "",
    ]
    if chosen:
        parts += _in_full(run, replays[chosen.name], is_plan)
    else:
        rows = [
            {
                "trainer": name,
                "by default": replayed.default.kept.text,
                "at its best": replayed.best.kept.text,
                "reads": " ".join(replayed.trainer.formats) or "records",
                "is at its best with": replayed.best.needs,
            }
            for name, replayed in replays.items()
        ]
        note = "`--trainer NAME` shows its configuration, and what is lost without it"
        parts += [TextTable(rows), "", f"{note}. {LAID_OUT}."]
    ways = {name: replayed.best if folder is None else replayed.here for name, replayed in replays.items()}
    trainers = [
        {
            "trainer": name,
            "keeps_order": ways[name].kept.in_order,
            "by_default": replayed.default.kept.text,
            "at_best": replayed.best.kept.text,
            "formats": replayed.trainer.formats,
            "needs": replayed.best.needs,
            "lines": replayed.lines,
        }
        for name, replayed in replays.items()
    ]
    data = {"reads": head, **numbers, "trainers": trainers}
    return Answer(parts, data, passed=any(way.kept.in_order for way in ways.values()))


def lines_of_trainer(run: Run, folder: Place, format: str | None) -> list[str]:
    """The configuration with which exports.trainer reads an export, or the curated output (no format); none if it does
    not, or is unset."""
    settings = run.settings
    if settings.exports.trainer is None:
        return []
    named = trainer_named(settings.exports.trainer)
    reads = format in named.formats if format else bool(settings.forms & {*named.forms})
    if not reads or unread(named, settings):
        return []
    manifest = read_manifest(folder, EXPORT_MANIFEST) if format else None
    shape = Shape.of(manifest, str(folder)) if manifest else records_shape(run, folder)
    if shape.sequences < BATCHES * shape.batch:
        return []  # too few batches to advise anybody to train on them
    reading = shape.reading(**settings.exports.ranks)
    ranks = "your number of ranks" if reading.assumed else count(reading.world_size, "rank")
    lines = shape.configuration(named, reading).strip().splitlines()
    return [
        f"  {named.name}, {ranks}:",
        *(f"    {line}" for line in lines),
        *_rank_lines(run, named, reading),
    ]


def _rank_lines(run: Run, trainer: Trainer, reading: Reading) -> list[str]:
    """How much more the slowest rank has to do than the mean one; none if it does not, or the ranks are unknown."""
    if reading.assumed or reading.world_size == 1 or not trainer.shares or not reading.steps:
        return []
    slowest = slowest_ranks(run, trainer, reading.world_size, reading.micro_batch)
    what = "attention cost" if run.settings.packing.packs else "padded length"
    head = f"the slowest rank's {what} is {{:.2f}} times the mean rank's at a micro-step"
    if run.settings.exports.equal_ranks:
        return [f"{head.format(slowest['dealt'])}, {slowest['come']:.2f} if rows came in order"]
    if slowest["come"] - slowest["dealt"] < 0.05:
        return []  # dealing is not worth it
    return [f"{head.format(slowest['come'])}; exports.equal_ranks = true: {slowest['dealt']:.2f}"]


def _readable(run: Run, folder: Place | None, chosen: Trainer | None) -> tuple[str, dict[str, Shape], bool]:
    """(the first line of the answer, what each trainer reads, by name, whether it is of the present plan)."""
    settings, is_plan, kind = run.settings, True, ""
    readers, shape = [*TRAINERS.values()], None
    manifest = None if folder is None else read_manifest(folder)
    if folder is None:
        readers = [reader for reader in readers if reader.formats or settings.has_chats or reader is chosen]
        read, obstacles = "this plan", {reader.name: unread(reader, settings) for reader in readers}
    elif manifest is not None:
        if manifest.get("key") != run.receipt(OUTPUT).key:
            raise InputError(
                f"{folder} does not hold the last output of these settings; name its settings with --config, or run "
                "again"
            )
        _check_files(folder, MANIFEST, manifest)
        read, shape = f"the records of {folder}", records_shape(run, folder)
        obstacles = {reader.name: _wanted(reader, *settings.forms) for reader in readers}
    else:
        manifest = read_manifest(folder, EXPORT_MANIFEST)
        if manifest is None:
            raise InputError(
                f"{folder} is not an export: {neighbour(folder)} has no complete manifest.json; expected the folder "
                f"of an export, such as data/exports/parquet, and its neighbour, data/exports/_parquet: copy both, or "
                f"run with exports.formats set"
            )
        _check_files(folder, EXPORT_MANIFEST, manifest)
        format, labelled, shape = manifest["format"], "loss_mask" in manifest, Shape.of(manifest, str(folder))
        short = Packing(**manifest["packing"]).pads and manifest["padded_rows"] > 0
        read, kind = f"{format}, the format of {folder}", f"{format}, "
        if chosen and format in chosen.formats:
            read = f"the {'loss mask' if labelled else 'short rows'} of {folder}"
        obstacles = {
            reader.name: _wanted(reader, format) or reader.obstacle(labelled=labelled, short_rows=short)
            for reader in readers
        }
        is_plan = False
        with suppress(DivOrderError):
            is_plan = plan_fingerprint(run) == manifest["plan"]
    shapes = {name: shape or planned_shape(run, TRAINERS[name]) for name, why in obstacles.items() if not why}
    if chosen and chosen.name not in shapes:
        able = f"; expected one of {', '.join(shapes)}" if shapes else ""
        raise InputError(f"{chosen.name} does not read {read}: {obstacles[chosen.name]}{able}")
    if not shapes:
        raise InputError(f"no trainer that is known here reads {read}; docs/trainers.md lists them")
    if chosen:
        shapes = {chosen.name: shapes[chosen.name]}
    first = next(iter(shapes.values()))
    rows = f"sequences of {first.sequence_length:,} tokens" if first.sequence_length else "records"
    epochs = f", {first.epochs} epochs" if first.epochs > 1 else ""
    size = f"{first.sequences:,} {rows}{epochs}, batches of {first.batch:,}"
    if folder is None:
        written = "exported" if first.sequence_length else "written"
        return f"the plan: {size}, as it would be {written} under these settings", shapes, True
    return f"{folder}: {kind}{size}; every file is unaltered", shapes, is_plan


def _wanted(trainer: Trainer, *written: str) -> str:
    """What a trainer reads, in words; "" if it reads the format, or one of the forms of records, that is written."""
    if {*trainer.formats, *trainer.forms} & {*written}:
        return ""
    if trainer.formats:
        return f"it reads an export in {' or '.join(trainer.formats)}: name it in exports.formats"
    return f"it reads the curated output of records of {' or '.join(trainer.forms)} (input.format)"


def _check_files(folder: Place, name: str, manifest: Mapping[str, Any]) -> None:
    """Refuses a folder with an altered file. name: of the manifest."""
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    with STANDARD_ERROR("reading files", size, "bytes") as advance:
        damage = damaged_file(folder, manifest["files"], advance)
    if damage:
        what = "export" if name == EXPORT_MANIFEST else "output"
        raise InputError(f"{damage}; delete {file_at(folder, name)} and run again to write this {what}")


def _in_full(run: Run, replayed: Replay, is_plan: bool) -> list[Part]:
    trainer, default, best = replayed.trainer, replayed.default, replayed.best
    kept = f"by default it reads {default.kept.text} as planned"
    if best is not default:
        kept += (
            f", and {best.kept.text} with {best.needs}{f'; {LAID_OUT}' if best.layout is not None else ''}"
        )
    elif not default.kept.in_order:
        kept += ", and no setting keeps more"
    lines: list[Part] = [Line(trainer.title, "strong"), "", kept]
    lines += ["", f"resume at another world size: {trainer.resumes}", ""]
    if is_plan and (of_ranks := _rank_lines(run, trainer, replayed.reading)):
        lines += [*of_ranks, ""]
    if replayed.lines is None:
        return [*lines, "its configuration: the defaults; other samplers lose the order of this export"]
    if trainer.documented:
        lines.append(
            f"its sampler has no model here: without its lines it counts as shuffled; see {trainer.documented}"
        )
    return [*lines, "its configuration:", "", *(f"  {line}" for line in replayed.lines.strip().splitlines())]


def damaged_file(
    path: Place, files: dict[str, dict[str, Any]], advance: Advance = lambda size: None
) -> str | None:
    """A message about the first file that is missing or has another size or sha256; None if all files are whole.
    advance: receives the bytes of each checked file."""
    for name, entry in files.items():
        try:
            with folder_at(path).open(name) as opened:
                assert isinstance(opened, io.RawIOBase)
                sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
                size = opened.tell()
        except OSError as error:
            return f"{file_at(path, name)} cannot be read ({error.strerror or error})"
        if size != entry["bytes"]:
            return f"{file_at(path, name)} has {size:,} bytes, expected {entry['bytes']:,}"
        if sha256 != entry["sha256"]:
            return f"{file_at(path, name)} was altered: its sha256 is {sha256}, expected {entry['sha256']}"
        advance(size)
    return None
