"""`divorder estimate`: what a first run would take, and on what."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from dagster_divorder.cli.verb import Verb, config_of
from dagster_divorder.view.answer import Answer, Line, Part, TextTable

if TYPE_CHECKING:
    from dagster_divorder.estimates.first_run import Estimate, Machine

UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}


def estimate(paths: Sequence[str], config: str | None, size: int | None, *, everything: bool) -> Answer:
    """Time a stage, memory and disk of a first run, here; where it does not fit here, on larger machines."""
    from dagster_divorder.engine.progress import STANDARD_ERROR
    from dagster_divorder.estimates.first_run import make_estimate
    from dagster_divorder.propose import settings_for
    from dagster_divorder.stages import GRAPH

    settings = settings_for(paths, config)
    stages = [name for name in GRAPH.upstream(settings) if everything and GRAPH[name].asset]
    found = make_estimate(settings, *stages, size=size, progress=STANDARD_ERROR)
    rows = [
        {
            "stage": row.stage if GRAPH[row.stage].asset else f"  {row.stage}",
            "time": "?" if row.seconds is None else duration(row.seconds),
            "memory": amount(row.memory),
            "store": amount(row.disk),
        }
        for row in found.stages
    ]
    exports = [f"{name} {amount(of)}" for name, of in found.exports.items()]
    disk = ", ".join([f"store {amount(found.store)}", f"output {amount(found.output)}", *exports])
    cores = "1 core" if found.cores == 1 else f"{found.cores} cores"
    whole = "on all of it" if found.measured_whole else f"on {amount(found.sampled_bytes)} of it"
    parts: list[Part] = [
        Line(
            f"A first run takes about {duration(found.seconds)} here ({cores}), {amount(found.memory)} of memory and "
            f"{amount(found.disk)} of disk.",
            "strong",
        ),
        f"{amount(found.file_bytes)} of files: about {found.documents:,} documents, {amount(found.text_bytes)} of "
        f"text, {found.tokens:,} tokens; measured {whole}, in {duration(found.calibration_seconds)}.",
        f"disk: {disk}",
        "",
        TextTable(rows),
        *(("", *found.notes) if found.notes else ()),
        *(() if found.fits_here else ("", *_elsewhere(found))),
    ]
    return Answer(parts, {**asdict(found), "disk": found.disk, "fits_here": found.fits_here})


def _elsewhere(found: Estimate) -> list[Part]:
    """What of it this machine lacks, and what larger ones take."""
    lacks = [
        f"{what}: {amount(needed)} are needed, {amount(there)} are here"
        for what, needed, there in (
            ("memory", found.memory, found.memory_here),
            ("disk", found.disk, found.disk_here),
        )
        if there is not None and needed > there
    ]
    if found.seconds > 24 * 3600:
        lacks.append(f"time: {duration(found.seconds)} are more than a day")
    quick = next((machine for machine in found.machines if machine.seconds <= 24 * 3600), None)
    parts: list[Part] = [Line(f"Too much for this machine ({'; '.join(lacks)}).", "bad")]
    if quick:
        parts.append(
            Line(
                f"The smallest that takes less than a day: {_named(quick)}, {amount(found.disk)} of disk.",
                "strong",
            )
        )
    rows = [
        {
            "machines": _named(machine),
            "time": duration(machine.seconds),
            "memory of the first": amount(machine.memory),
            "of each other": amount(machine.worker_memory) if machine.machines > 1 else "",
        }
        for machine in found.machines
    ]
    return [
        *parts,
        TextTable(rows),
        'Cores as fast as these, nothing else running; several machines: engine.address = "ray" and a store that all '
        "of them see (docs/cluster.md).",
    ]


def _named(machine: Machine) -> str:
    return f"{machine.machines} x {machine.cores} cores" if machine.machines > 1 else f"{machine.cores} cores"


def duration(seconds: float) -> str:
    """`12 s`, `3.4 min`, `5.2 h`, `2.1 days`."""
    steps = (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800))
    unit, size = next(((unit, size) for unit, size, below in steps if seconds < below), ("days", 86_400))
    value = seconds / size
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"


def amount(size: float) -> str:
    """`12.3 MB`, `4.5 GB`, `1.2 TB`."""
    unit = next((unit for unit in UNITS if size < 1000 * UNITS[unit]), "TB")
    value = size / UNITS[unit]
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:,.1f} {unit}"


def bytes_of(text: str) -> int:
    """`500GB`, `1.5 TB`, `800 MB` -> bytes."""
    number, unit = text.strip()[:-2], text.strip()[-2:].upper()
    try:
        size = int(float(number) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; expected a number and MB, GB or TB, such as 500GB"
        )
    return size


def _add_estimate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="FILE_OR_FOLDER",
        help="JSONL or Parquet; globs in quotes (default: those of the settings)",
    )
    parser.add_argument(
        "--size",
        type=bytes_of,
        metavar="SIZE",
        help="for so much of such files, such as 500GB, in place of these",
    )
    parser.add_argument(
        "--all", action="store_true", help="also all evidence, as report --all and prove make it"
    )


ESTIMATE = Verb(
    "estimate",
    "says how long a first run takes, how much memory and disk, and on what machine",
    "divorder estimate 'corpus/*.jsonl' --size 500GB",
    "some 20 s, whatever the size",
    lambda options: estimate(options.paths, config_of(options), options.size, everything=options.all),
    _add_estimate,
)
