"""`divorder verify`: compares what trainers read with the plan, before and after its export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dagster_divorder.core.measure.stationarity import Stationarity
from dagster_divorder.engine.progress import STANDARD_ERROR
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place
from dagster_divorder.settings.sections import Packing
from dagster_divorder.stages import open_run
from dagster_divorder.stages.measure.diversity_metrics import Trained, load_metrics
from dagster_divorder.stages.measure.stationarity import drift_along, load_stationarity
from dagster_divorder.stages.mix.repeats import load_stream, run_counter
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.output.exports import (
    plan_fingerprint,
    planned_shape,
    records_shape,
    slowest_ranks,
    unread,
)
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at, neighbour
from dagster_divorder.store.output_manifests import MANIFEST, damaged_file, read_manifest
from dagster_divorder.trainers import TRAINERS, Kept, Reading, Trainer, trainer_named
from dagster_divorder.trainers.replay import Replay, Shape, Way, replay
from dagster_divorder.units import batch_advice
from dagster_divorder.view.answer import Answer, Part, TextTable
from dagster_divorder.view.measures import drift_columns, side_by_side, summary_row
from dagster_divorder.view.words import count
from dagster_divorder.write.exports import FORMATS


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
    if folder is None:
        chosen = chosen or (trainer_named(own) if own else None)
        head, shapes, other = _of_plan(run, chosen)
    elif read_manifest(folder) is not None:
        head, shapes, other = _of_output(run, folder, chosen)
    else:
        head, shapes, other = _of_export(run, folder, chosen)
    if not (read := next(iter(shapes.values())).reading()).steps:
        raise InputError(
            f"there is nothing to verify: {read.length:,} rows are less than one batch of {read.batch:,}. "
            f"{batch_advice(read.length)}"
        )
    if chosen is None and own in shapes:
        chosen, shapes = trainer_named(own), {own: shapes[own]}
    asked = _asked(settings, ranks)
    replays = {name: replay(shape, TRAINERS[name], **asked) for name, shape in shapes.items()}
    reading = next(iter(replays.values())).reading
    numbers = ("world_size", "micro_batch", "workers", "nodes")
    parts: list[Part] = [
        head,
        ", ".join(f"{name.replace('_', ' ')} {getattr(reading, name)}" for name in numbers)
        + ("; the number of ranks is unknown, and two stand for several" if reading.assumed else ""),
        "",
    ]
    parts += _in_full(run, replays[chosen.name], shapes[chosen.name], other) if chosen else _table(replays)
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
    data = {
        "reads": head,
        **{name: getattr(reading, name) for name in numbers},
        "trainers": trainers,
    }
    return Answer(parts, data, passed=any(way.kept.in_order for way in ways.values()))


def _asked(settings: Settings, given: Mapping[str, int | None]) -> dict[str, int]:
    """The numbers given, and those of the settings for the same ranks."""
    numbers = {name: number for name, number in given.items() if number is not None}
    own = settings.exports.ranks
    return {**(own if numbers.get("world_size") in (None, own.get("world_size")) else {}), **numbers}


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
    reading = shape.reading(**settings.exports.ranks)
    ranks = "your number of ranks" if reading.assumed else count(reading.world_size, "rank")
    lines = shape.configuration(named, reading).strip().splitlines()
    return [
        f"  {named.name}, {ranks}:",
        *(f"    {line}" for line in lines),
        *(f"  {line}" for line in _rank_lines(run, named, reading)),
    ]


WORTH_DEALING = 0.05
"""Part of the mean rank's cost below which dealing rows is not proposed."""


def _rank_lines(run: Run, trainer: Trainer, reading: Reading) -> list[str]:
    """How much more the slowest rank has to do than the mean one; none if it does not, or the ranks are unknown."""
    if reading.assumed or reading.world_size == 1 or not trainer.shares or not reading.steps:
        return []
    slowest = slowest_ranks(run, trainer, reading.world_size, reading.micro_batch)
    what = "attention cost" if run.settings.packing.packs else "padded length"
    head = f"the slowest rank's {what} is {{:.2f}} times the mean rank's at a micro-step"
    if run.settings.exports.equal_ranks:
        return [f"{head.format(slowest['dealt'])}, {slowest['come']:.2f} if rows came in order"]
    if slowest["come"] - slowest["dealt"] < WORTH_DEALING:
        return []
    return [f"{head.format(slowest['come'])}; exports.equal_ranks = true: {slowest['dealt']:.2f}"]


Readings = tuple[str, dict[str, Shape], str]
"""The first line of the answer, what each trainer reads, by name, and why that cannot be measured; "" if it can."""
NOT_SEQUENCES = "measures need packed sequences, and its rows are records"


def _of_plan(run: Run, chosen: Trainer | None) -> Readings:
    settings = run.settings
    readers = [
        reader
        for reader in TRAINERS.values()
        if (reader.formats or settings.masked or reader is chosen) and not unread(reader, settings)
    ]
    if chosen and chosen not in readers:
        raise InputError(
            f"{chosen.name} does not read this plan: {unread(chosen, settings)}; expected one of "
            f"{', '.join(reader.name for reader in readers)}"
        )
    readers = [chosen] if chosen else readers
    shapes = {reader.name: planned_shape(run, reader) for reader in readers}
    first = next(iter(shapes.values()))
    written = "exported" if first.sequence_length else "written"
    return (
        f"the plan: {_size(first)}, as it would be {written} under these settings",
        shapes,
        _not_sequences(run, first),
    )


def _of_output(run: Run, folder: Place, chosen: Trainer | None) -> Readings:
    manifest = read_manifest(folder) or {}
    if manifest.get("key") != run.receipt(OUTPUT).key:
        raise InputError(
            f"{folder} does not hold the last output of these settings; name its settings with --config, or run again"
        )
    _check_files(folder, MANIFEST, manifest)
    readers = [reader for reader in TRAINERS.values() if set(reader.forms) & run.settings.forms]
    readers, shape = _fitting(readers, chosen, f"the records of {folder}"), records_shape(run, folder)
    head = f"{folder}: {_size(shape)}; every file is unaltered"
    return head, dict.fromkeys((reader.name for reader in readers), shape), _not_sequences(run, shape)


def _not_sequences(run: Run, shape: Shape) -> str:
    """Why rows of a shape cannot be measured as sequences of the plan, "" if they can."""
    if shape.sequence_length:
        return ""
    # If records are neither packed nor cut, row i is the i-th sequence of the first epoch.
    alike = shape.sequences == run.receipt("packed_sequences").facts["sequences"]
    return "" if alike and not run.settings.packing.packs else NOT_SEQUENCES


def _of_export(run: Run, folder: Place, chosen: Trainer | None) -> Readings:
    manifest = load_export(folder)
    readers = [reader for reader in TRAINERS.values() if manifest["format"] in reader.formats]
    masked, pads = "loss_mask" in manifest, Packing(**manifest["packing"]).pads
    obstacles = {
        reader.name: reader.obstacle(masked=masked, short_rows=pads and manifest["padded_rows"] > 0)
        for reader in readers
    }
    if chosen and (obstacle := obstacles.get(chosen.name)):
        unread = "the loss mask" if masked else f"the {manifest['padded_rows']:,} short rows"
        raise InputError(f"{chosen.name} does not read {unread} of {folder}: {obstacle}")
    readers = [reader for reader in readers if not obstacles[reader.name]]
    readers = _fitting(readers, chosen, f"{manifest['format']}, the format of {folder}")
    if not readers:
        raise InputError(
            f"{folder} holds {manifest['format']}, which trainers pack themselves; there are no batches to verify"
        )
    shape = Shape.of(manifest, str(folder))
    head = f"{folder}: {manifest['format']}, {_size(shape)}; every file is unaltered"
    return head, dict.fromkeys((reader.name for reader in readers), shape), _other_plan(run, manifest["plan"])


def _fitting(readers: list[Trainer], chosen: Trainer | None, read: str) -> list[Trainer]:
    """The chosen trainer, or all trainers that can read it.

    Raises:
        InputError: the chosen trainer does not read it.
    """
    if chosen is None:
        return readers
    if chosen not in readers:
        expected = (
            f"an export in {' or '.join(chosen.formats)}: name it in exports.formats"
            if chosen.formats
            else f"the curated output of records of {' or '.join(chosen.forms)} (input.format)"
        )
        raise InputError(f"{chosen.name} does not read {read}; expected {expected}")
    return [chosen]


def load_export(folder: Place) -> dict[str, Any]:
    """The manifest of an export, after a check of all its files.

    Raises:
        InputError: the folder is not an export, or a file was altered.
    """
    manifest = read_manifest(folder, EXPORT_MANIFEST)
    if manifest is None:
        raise InputError(
            f"{folder} is not an export: {neighbour(folder)} has no complete manifest.json; expected the folder of "
            f"an export, such as data/exports/parquet, and its neighbour, data/exports/_parquet: copy both, or run "
            f"with exports.formats set"
        )
    _check_files(folder, EXPORT_MANIFEST, manifest)
    return manifest


def _check_files(folder: Place, name: str, manifest: Mapping[str, Any]) -> None:
    """Refuses a folder with an altered file. name: of the manifest."""
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    with STANDARD_ERROR("reading files", size, "bytes") as advance:
        damage = damaged_file(folder, manifest["files"], advance)
    if damage:
        what = "export" if name == EXPORT_MANIFEST else "output"
        raise InputError(f"{damage}; delete {file_at(folder, name)} and run again to write this {what}")


def _size(shape: Shape) -> str:
    epochs = f", {shape.epochs} epochs" if shape.epochs > 1 else ""
    rows = f"sequences of {shape.sequence_length:,} tokens" if shape.sequence_length else "records"
    return f"{shape.sequences:,} {rows}{epochs}, batches of {shape.batch:,}"


def _other_plan(run: Run, plan: str) -> str:
    """Why an export's reads cannot be measured; "" if the store holds its plan."""
    try:
        stored = plan_fingerprint(run)
    except DivOrderError as error:
        return str(error)
    return (
        ""
        if stored == plan
        else f"the export has the plan {plan}, and under these settings the store holds {stored}"
    )


def _table(replays: Mapping[str, Replay]) -> list[Part]:
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
    note = (
        "`--trainer NAME` shows its configuration, and what is lost without it. exports.* belong in divorder.toml; "
        "the next run lays out the rows by them."
    )
    return [TextTable(rows), "", note]


def _in_full(run: Run, replayed: Replay, shape: Shape, other: str) -> list[Part]:
    trainer = replayed.trainer
    rows = "records" if trainer.forms else "sequences"
    lines: list[Part] = [trainer.title, "", _sentence(replayed)]
    lines += [f"  {name} {_difference(way.kept, rows)}" for name, way in _losing(replayed).items()]
    if trainer.joins_rows and shape.epochs > 1:
        lines.append(
            "the last sequence of an epoch may be short: the trainer joins rows, so in later epochs its sequences "
            f"begin up to {shape.sequence_length - 1:,} tokens inside the planned ones"
        )
    lines += ["", f"resume at another world size: {trainer.resumes}", ""]
    if not other:
        lines += [*_rank_lines(run, trainer, replayed.reading), ""]
    lines += [f"the reads cannot be measured: {other}", ""] if other else _measures(run, replayed)
    if replayed.lines is None:
        return [*lines, "its configuration: the defaults; other samplers lose the order of this export"]
    if trainer.documented:
        lines.append(
            f"its sampler has no model here: without its lines it counts as shuffled; see {trainer.documented}"
        )
    return [*lines, "its configuration:", "", *(f"  {line}" for line in replayed.lines.strip().splitlines())]


def _sentence(replayed: Replay) -> str:
    """How much of the plan the trainer reads by default, and the settings that give more."""
    default, best = replayed.default, replayed.best
    if best is default and default.kept.in_order:
        return f"by default it reads {default.kept.text} as planned"
    more = (
        "and no setting keeps more"
        if best is default
        else f"and {best.kept.text} with {best.needs}"
        + (
            "; exports.* belong in divorder.toml; the next run lays out the rows by them"
            if best.layout is not None
            else ""
        )
    )
    return f"by default it reads {default.kept.text} as planned, {more}"


def _losing(replayed: Replay) -> dict[str, Way]:
    """The ways that lose the order, by name."""
    ways = {"by default": replayed.default}
    if replayed.best is not replayed.default:
        ways["at its best"] = replayed.best
    return {name: way for name, way in ways.items() if not way.kept.in_order}


def _difference(kept: Kept, rows: str) -> str:
    """The first difference from the plan. rows: the noun for rows."""
    if kept.first is None:
        return ""
    batch, expected, read = kept.first
    return (
        f"the first difference is in batch {batch:,}: expected {rows} {_first_of(expected)}, read "
        f"{f'{rows} {_first_of(read)}' if read.size else 'none'}, {np.intersect1d(expected, read).size:,} in common"
    )


def _first_of(positions: np.ndarray) -> str:
    numbers = ", ".join(f"{position:,}" for position in positions[:3].tolist())
    return f"{numbers}{', ...' if len(positions) > 3 else ''}"


def _measures(run: Run, replayed: Replay) -> list[Part]:
    """Measures and drift of the reads, beside the plan's."""
    order = load_sequence_order(run)
    measured, reads = {"the plan": (load_metrics(run)["sequences"], load_stationarity(run))}, {}
    for name, way in _losing(replayed).items():
        reads[name] = _sequences_read(replayed, way, order)
        measured[name] = measure_order(run, reads[name][: order.shape[1]])
    traits = run.receipt("diversity_metrics").figures["traits"]
    rows = [
        summary_row(name, figures, traits) | drift_columns(drift)
        for name, (figures, drift) in measured.items()
    ]
    claims = [f"{name}: {drift.claim()}" for name, (_, drift) in measured.items()]
    return [TextTable(side_by_side(rows[::-1])), "", *claims, ""]


def _sequences_read(replayed: Replay, way: Way, order: np.ndarray) -> np.ndarray:
    """The sequences of the plan that a trainer reads, int64 (n,). order: int64 (E, S)."""
    read = way.read[way.read >= 0]
    formats = replayed.trainer.formats
    if way is replayed.default and formats and FORMATS[formats[0]].epochs == "index":
        # The trainer reads the files' rows, one for each sequence, without an index of epochs.
        return order[0][read]
    return order.reshape(-1)[read]


def measure_order(run: Run, sequences: np.ndarray) -> tuple[dict[str, Any], Stationarity]:
    """(measures of the plan's sequences in reading order, int64 (n,); their drift)."""
    stream, packed = load_stream(run), load_packed(run)
    read = Trained(packed, sequences[np.newaxis], np.zeros(len(packed), np.int64))
    count = run_counter(run, stream.record_of)
    return read.measures(stream, count, run.settings.sequence.batch).figures, drift_along(run, sequences)
