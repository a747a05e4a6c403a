"""`divorder estimate`: time, memory and disk of a first run, and machines that fit it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from dagster_divorder.cli.verb import Verb, config_of
from dagster_divorder.units import BYTES, byte_size, duration
from dagster_divorder.view.answer import Answer, Line, Part, TextTable

if TYPE_CHECKING:
    from dagster_divorder.estimates.first_run import Estimate, Machine


def estimate(paths: Sequence[str], config: str | None, size: int | None, *, everything: bool) -> Answer:
    """Time by stage, memory and disk of a first run on this machine, and on larger ones if it does not fit here."""
    from dagster_divorder.engine.progress import STANDARD_ERROR
    from dagster_divorder.estimates.first_run import make_estimate
    from dagster_divorder.propose import settings_for
    from dagster_divorder.stages import GRAPH

    settings = settings_for(paths, config)
    stages = [name for name in GRAPH.upstream(settings) if everything and GRAPH[name].asset]
    costs = make_estimate(settings, *stages, size=size, progress=STANDARD_ERROR)
    rows = [
        {
            "stage": row.stage if GRAPH[row.stage].asset else f"  {row.stage}",
            "time": "?" if row.seconds is None else duration(row.seconds),
            "memory": byte_size(row.memory),
            "store": byte_size(row.disk),
        }
        for row in costs.stages
    ]
    exports = [f"{name} {byte_size(size)}" for name, size in costs.exports.items()]
    disk = ", ".join([f"store {byte_size(costs.store)}", f"output {byte_size(costs.output)}", *exports])
    cores = "1 core" if costs.cores == 1 else f"{costs.cores} cores"
    whole = "on all of it" if costs.measured_whole else f"on {byte_size(costs.sampled_bytes)} of it"
    parts: list[Part] = [
        Line(
            f"A first run takes about {duration(costs.seconds)} here ({cores}), {byte_size(costs.memory)} of memory "
            f"and {byte_size(costs.disk)} of disk.",
            "strong",
        ),
        f"{byte_size(costs.file_bytes)} of files: about {costs.documents:,} documents, {byte_size(costs.text_bytes)} "
        f"of text, {costs.tokens:,} tokens; measured {whole}, in {duration(costs.calibration_seconds)}.",
        f"disk: {disk}",
        "",
        TextTable(rows),
        *(("", *costs.notes) if costs.notes else ()),
        *(() if costs.fits_here else ("", *_elsewhere(costs))),
    ]
    return Answer(parts, {**asdict(costs), "disk": costs.disk, "fits_here": costs.fits_here})


def _elsewhere(costs: Estimate) -> list[Part]:
    """Resources that this machine lacks, and larger machines."""
    lacks = [
        f"{resource}: {byte_size(needed)} needed, {byte_size(available)} available"
        for resource, needed, available in (
            ("memory", costs.memory, costs.memory_here),
            ("disk", costs.disk, costs.disk_here),
        )
        if available is not None and needed > available
    ]
    if costs.seconds > 24 * 3600:
        lacks.append(f"time: {duration(costs.seconds)} is more than a day")
    quick = next((machine for machine in costs.machines if machine.seconds <= 24 * 3600), None)
    parts: list[Part] = [Line(f"Too much for this machine ({'; '.join(lacks)}).", "bad")]
    if quick:
        parts.append(
            Line(
                f"The smallest machine that takes less than a day: {_named(quick)}, {byte_size(costs.disk)} of disk.",
                "strong",
            )
        )
    rows = [
        {
            "machines": _named(machine),
            "time": duration(machine.seconds),
            "memory of the first": byte_size(machine.memory),
            "of each other": byte_size(machine.worker_memory) if machine.machines > 1 else "",
        }
        for machine in costs.machines
    ]
    return [
        *parts,
        TextTable(rows),
        'Assumes cores as fast as these and nothing else running. Several machines need engine.address = "ray" and a '
        "shared store (docs/cluster.md).",
    ]


def _named(machine: Machine) -> str:
    return f"{machine.machines} x {machine.cores} cores" if machine.machines > 1 else f"{machine.cores} cores"


def bytes_of(text: str) -> int:
    """`500GB`, `1.5 TB`, `800 MB` -> bytes."""
    number, unit = text.strip()[:-2], text.strip()[-2:].upper()
    try:
        size = int(float(number) * BYTES[unit])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; expected a number and MB, GB or TB, such as 500GB"
        )
    return size


def _add_estimate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="FILE_OR_FOLDER",
        help="JSONL or Parquet; quote globs (default: the inputs of the settings)",
    )
    parser.add_argument(
        "--size",
        type=bytes_of,
        metavar="SIZE",
        help="scale to this much of such files, such as 500GB",
    )
    parser.add_argument(
        "--all", action="store_true", help="include all evidence, as report --all and prove make it"
    )


ESTIMATE = Verb(
    "estimate",
    "estimates time, memory and disk of a first run, and the machine for it",
    "divorder estimate 'corpus/*.jsonl' --size 500GB",
    "about 20 s, whatever the size",
    lambda options: estimate(options.paths, config_of(options), options.size, everything=options.all),
    _add_estimate,
)
