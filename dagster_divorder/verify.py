"""`divorder verify`: what trainers read of a plan, held against it, before and after it is exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dagster_divorder.core.measure import measure_packed
from dagster_divorder.core.measure.stationarity import Stationarity, stationarity
from dagster_divorder.core.measure.tables import drift_columns, summary_row
from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.engine.progress import STANDARD_ERROR
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place
from dagster_divorder.stages import open_run
from dagster_divorder.stages.measure.diversity_metrics import load_metrics
from dagster_divorder.stages.measure.stationarity import features, load_sample, load_stationarity
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.output.exports import plan_fingerprint, planned_shape
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at, neighbour
from dagster_divorder.store.output_manifests import damaged_file, read_manifest
from dagster_divorder.trainers import TRAINERS, Kept
from dagster_divorder.trainers.replay import Replay, Shape, replay
from dagster_divorder.view.answer import Answer, Part, TextTable
from dagster_divorder.view.measures import side_by_side


def verify(settings: Settings, folder: Place | None, trainer: str | None, **asked: int | None) -> Answer:
    """What one trainer in full, or each that can, reads of an export, or of any export of the plan where no folder is
    named; passed where it, or some trainer, can read every global batch. asked: see `Shape.reading`.

    Raises:
        InputError: the folder is no export, or a file of it was altered; no such trainer; numbers that do not fit.
        MissingStageError: without a folder: there is no plan under these settings.
    """
    run = open_run(settings)
    chosen = TRAINERS[one_of("trainer", trainer, TRAINERS)] if trainer else None
    if folder is None:
        readers = [chosen] if chosen else list(TRAINERS.values())
        shapes = {of.name: planned_shape(run, of) for of in readers}
        first = next(iter(shapes.values()))
        head = f"the plan: {_size(first)}, as it would be exported under these settings"
        other = ""
    else:
        manifest = load_export(folder)
        readers = [of for of in TRAINERS.values() if manifest["format"] in of.formats]
        if chosen and chosen not in readers:
            raise InputError(
                f"{chosen.name} does not read {manifest['format']}, the format of {folder}; expected an export in "
                f"{' or '.join(chosen.formats)}: name it in exports.formats"
            )
        readers = [chosen] if chosen else readers
        if not readers:
            raise InputError(
                f"{folder} holds {manifest['format']}, which trainers pack themselves; there are no batches to verify"
            )
        shapes = dict.fromkeys((of.name for of in readers), Shape.of(manifest, str(folder)))
        other = _other_plan(run, manifest["plan"])
        head = f"{folder}: {manifest['format']}, {_size(shapes[readers[0].name])}; every file is as it was written"
    found = {of.name: replay(shapes[of.name], of, **asked) for of in readers}
    reading = next(iter(found.values())).reading
    numbers = ("world_size", "micro_batch", "workers", "nodes")
    parts: list[Part] = [
        head,
        ", ".join(f"{name.replace('_', ' ')} {getattr(reading, name)}" for name in numbers),
        "",
    ]
    parts += _in_full(run, found[chosen.name], other) if chosen else _table(found)
    ways = {name: of.best if folder is None else of.here for name, of in found.items()}
    trainers = [
        {
            "trainer": name,
            "keeps_order": ways[name].kept.in_order,
            "by_default": of.default.kept.text,
            "at_best": of.best.kept.text,
            "formats": of.trainer.formats,
            "needs": of.best.needs,
            "lines": of.lines,
        }
        for name, of in found.items()
    ]
    data = {"reads": head, **{name: getattr(reading, name) for name in numbers}, "trainers": trainers}
    return Answer(parts, data, passed=any(way.kept.in_order for way in ways.values()))


def load_export(folder: Place) -> dict[str, Any]:
    """The manifest of an export whose files are all as they were written.

    Raises:
        InputError: it is no export, or a file of it is not.
    """
    manifest = read_manifest(folder, EXPORT_MANIFEST)
    if manifest is None:
        raise InputError(
            f"{folder} is no export: no manifest.json that is whole is in {neighbour(folder)}; expected the "
            "folder of an export, such as data/exports/parquet, and its neighbour, data/exports/_parquet: copy both, "
            "or run with exports.formats set"
        )
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    with STANDARD_ERROR("reading files", size, "bytes") as advance:
        damage = damaged_file(folder, manifest["files"], advance)
    if damage:
        raise InputError(
            f"{damage}; delete {file_at(folder, EXPORT_MANIFEST)} and run again, which writes this export anew"
        )
    return manifest


def _size(shape: Shape) -> str:
    epochs = f", {shape.epochs} epochs" if shape.epochs > 1 else ""
    return f"{shape.sequences:,} sequences of {shape.sequence_length:,} tokens{epochs}, batches of {shape.batch:,}"


def _other_plan(run: Run, plan: str) -> str:
    """Why what is read of an export of a plan cannot be measured; "" where the store holds its plan."""
    try:
        here = plan_fingerprint(run)
    except DivOrderError as error:
        return str(error)
    return (
        ""
        if here == plan
        else f"the export is of the plan {plan}, and the store holds {here} under these settings"
    )


def _table(found: Mapping[str, Replay]) -> list[Part]:
    rows = [
        {
            "trainer": name,
            "by default": of.default.kept.text,
            "at its best": of.best.kept.text,
            "reads": " ".join(of.trainer.formats),
            "is at its best with": of.best.needs,
        }
        for name, of in found.items()
    ]
    about = (
        "`--trainer NAME` has its lines, and what is lost without them; exports.* are for divorder.toml, and the next "
        "run lays the rows by them."
    )
    return [TextTable(rows), "", about]


def _in_full(run: Run, found: Replay, other: str) -> list[Part]:
    trainer, best = found.trainer, found.best
    lines: list[Part] = [
        trainer.title,
        "",
        _sentence(found),
        *(f"  by default {line}" for line in _said(found.default.kept)),
    ]
    lines += [f"  at its best {line}" for line in _said(best.kept) if best is not found.default]
    lines += ["", f"resume at another world size: {trainer.resumes}", ""]
    lines += [f"what is read cannot be measured: {other}", ""] if other else _measures(run, found)
    if found.lines is None:
        return [*lines, "its configuration: as it comes; other samplers lose the order of this export"]
    return [*lines, "its configuration:", "", *(f"  {line}" for line in found.lines.strip().splitlines())]


def _sentence(found: Replay) -> str:
    """What this export gives as it is read by default, and what has to be set for more."""
    default, best = found.default, found.best
    if best is default and default.kept.in_order:
        return f"as it comes it reads {default.kept.text} as planned"
    more = (
        "and nothing that can be set keeps more"
        if best is default
        else f"and {best.kept.text} with {best.needs}"
        + (
            "; exports.* are for divorder.toml, and the next run lays the rows by them"
            if best.layout is not None
            else ""
        )
    )
    return f"by default it reads {default.kept.text} as planned, {more}"


def _said(of: Kept) -> list[str]:
    """What is not as planned."""
    said = []
    if of.first:
        first = of.first
        said.append(
            f"the first that differs is batch {first.batch:,}: it should read {_some(first.expected)} and reads "
            f"{_some(first.read)}, {first.common:,} in common"
        )
    if of.missing_batches:
        said.append(f"the plan's last {of.missing_batches:,} batches are not read")
    if of.extra_batches:
        said.append(f"{of.extra_batches:,} batches are read behind the plan's last")
    if of.repeated:
        said.append(f"sequences read more often than planned: {of.repeated:,}; less often: {of.never_read:,}")
    return said


def _some(positions: np.ndarray) -> str:
    shown = ", ".join(f"{position:,}" for position in positions[:3].tolist())
    return f"sequences {shown}{', ...' if len(positions) > 3 else ''}"


def _measures(run: Run, found: Replay) -> list[Part]:
    """The measures of what is really read, beside the plan's, and what drifts along it."""
    order = load_sequence_order(run)
    rows = [_measured("the plan", load_metrics(run)["sequences"], load_stationarity(run))]
    claims = [("the plan", load_stationarity(run).claim())]
    ways = {"by default": found.default} | (
        {} if found.best is found.default else {"at its best": found.best}
    )
    for name, way in ways.items():
        if not way.kept.in_order:
            read = way.read[way.read >= 0][: order.shape[1]]
            sequences = order[read // order.shape[1], read % order.shape[1]]
            figures, drift = measure_order(run, sequences)
            rows.append(_measured(name, figures, drift))
            claims.append((name, drift.claim()))
    return [TextTable(side_by_side(rows[::-1])), "", *(f"{name}: {claim}" for name, claim in claims), ""]


def _measured(name: str, figures: Mapping[str, Any], drift: Stationarity) -> dict[str, Any]:
    return summary_row(name, figures) | drift_columns(drift)


def measure_order(run: Run, sequences: np.ndarray) -> tuple[dict[str, Any], Stationarity]:
    """(the measures of sequences of the plan as they are read, int64 (n,); whether anything drifts along them)."""
    settings, traits, packed = run.settings, load_stream(run).traits, load_packed(run)
    figures = measure_packed(packed, sequences, traits.codes, traits.sizes(), batch=settings.sequence.batch)
    sample = load_sample(run, traits, sequences)
    drift = stationarity(
        features(run, traits, sample),
        len(sample),
        batch=settings.sequence.batch,
        seed=settings.seed,
    )
    return figures.to_dict(), drift
