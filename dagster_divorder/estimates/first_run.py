"""Estimates of a first run: time per stage, memory and disk, here and on larger machines.

The real stages run on a small part of the input (estimates/calibration.py). Processor seconds of a stage have a fixed
part and a part that grows with its amount of work (`Stage.amount`). A stage measured at one size only, such as a pinned
fit, takes time in proportion to its amount. The ratio of wall time to processor seconds is the measured one, which
includes other work on the machine. From some size on, workers share a stage (`Stage.shared_from`). Memory is the peak
of the largest stage; it grows up to BLOCKS_BYTES of text, then by DOCUMENT_BYTES a document (docs/decisions/scale.md).
Known weakness: stages that take milliseconds on the small part are measured badly; the part has fewer copies among its
documents than the whole; the time of object stores and networks is not measured.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dagster_divorder.corpus.excerpt import draw
from dagster_divorder.corpus.find import find_inputs
from dagster_divorder.engine.local import count_workers
from dagster_divorder.engine.memory import main_memory
from dagster_divorder.engine.progress import Progress, Silent
from dagster_divorder.errors import InputError
from dagster_divorder.estimates.calibration import PLAIN_BYTES, WHOLE_BYTES, Calibration, Sampled, calibrate
from dagster_divorder.pipeline.stage import PerDocument, Size, Stage
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Url
from dagster_divorder.stages import GRAPH
from dagster_divorder.units import byte_size

BLOCKS_BYTES = 64 << 20
DOCUMENT_BYTES = 120
"""Memory of the driver a document, measured from 0.25 to 2 GB: 48 MB for a gigabyte of 411,000 documents."""
WORKER_MEMORY = 400 << 20
SMALL_TIMES = 10
"""Largest estimate from an input measured whole, as a multiple of its size: one measurement gives no fixed part."""
DAY = 24 * 3600.0
WORKERS_COST = 1.2
"""Processor seconds of work shared by workers, as a multiple of those of one process."""
LEAST_SHARE = 0.25
"""Least share of a stage's time on the largest part that grows with the input, so that noise makes no stage free."""
MACHINES = ((1, 8), (1, 32), (1, 96), (4, 32), (16, 32))
"""(machines, cores of each) to estimate for a run that does not fit this machine."""


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """One stage: seconds on this machine (None if not measured; `why`), processor seconds, processor seconds that
    workers can share, number of workers here, bytes of memory at the peak, bytes that it leaves in the store."""

    stage: str
    seconds: float | None
    processor_seconds: float
    shared_processor_seconds: float
    workers: int
    memory: int
    disk: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """`machines` of `cores` each: seconds of a run, bytes of memory on the first machine, the driver, and on each other
    machine."""

    machines: int
    cores: int
    seconds: float
    memory: int
    worker_memory: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a first run takes. All sizes are in bytes, all times in seconds.

    file_bytes: the input's files as stored. text_bytes, tokens: its texts. sampled_bytes: the measured records, in
    calibration_seconds. measured_whole: whether all records were measured. seconds: a run on this machine, with
    start_seconds before its first stage. memory: at the peak. store, output, exports (by format): on disk. cores,
    memory_here, disk_here: of this machine (disk: None at a URL). machines: larger machines, if the run does not fit
    here. notes: further remarks.
    """

    file_bytes: int
    text_bytes: int
    documents: int
    tokens: int
    sampled_bytes: int
    measured_whole: bool
    calibration_seconds: float
    seconds: float
    start_seconds: float
    stages: tuple[StageEstimate, ...]
    memory: int
    store: int
    output: int
    exports: Mapping[str, int]
    cores: int
    memory_here: int
    disk_here: int | None
    machines: tuple[Machine, ...]
    notes: tuple[str, ...]

    @property
    def disk(self) -> int:
        """Bytes of the store, the output and the exports."""
        return self.store + self.output + sum(self.exports.values())

    @property
    def fits_here(self) -> bool:
        """Whether memory, disk and a day on this machine are enough."""
        disk = self.disk_here is None or self.disk <= self.disk_here
        return disk and self.memory <= self.memory_here and self.seconds <= DAY


def make_estimate(
    settings: Settings, *stages: str, size: int | None = None, progress: Progress | None = None
) -> Estimate:
    """Estimate a first run of some stages, by default of all that an output needs. Takes some 20 s on two cores, longer
    with neural networks. Store and output stay unchanged.

    Args:
        size: bytes of an input of such files, to estimate instead of this input.

    Raises:
        InputError: the input cannot be read, or has no usable record.
        DivOrderError: as a run.
    """
    begin = time.perf_counter()
    wanted = GRAPH.needed(settings, *stages)
    inputs = find_inputs(settings)
    excerpts = [draw(files, PLAIN_BYTES[-1] // len(inputs)) for files in inputs]
    total, stored = sum(excerpt.total for excerpt in excerpts), sum(excerpt.stored for excerpt in excerpts)
    sampled = sum(excerpt.bytes for excerpt in excerpts)
    if not sampled:
        raise InputError(
            f"{inputs[0].files[0]} holds no records; expected at least one JSONL line or Parquet row"
        )
    if size is not None:
        if total < WHOLE_BYTES and size > SMALL_TIMES * stored:
            raise InputError(
                f"{byte_size(sampled)} of records are too few to estimate {byte_size(size)} of files; give files with "
                f"{byte_size(WHOLE_BYTES)} of text or more, or a size of at most {SMALL_TIMES} times these"
            )
        total *= size / stored
    (progress or Silent()).note(
        f"running the stages on {byte_size(sampled)} of the input, in the temporary folder (some 20 s on two free "
        "cores)"
    )
    calibration = calibrate(settings, excerpts, wanted)
    last = calibration.plain[-1]
    corpus = last.size.times(total / sampled)
    workers = count_workers(settings.engine.workers)
    rows = [_stage(GRAPH[name], settings, calibration, corpus, workers) for name in wanted]
    sizes = [run.size.bytes for run in calibration.plain]

    def on_disk(values: Sequence[int]) -> int:
        return int(_at(_line(sizes, values), corpus.bytes))

    memory = int(max(row.memory for row in rows) + DOCUMENT_BYTES * corpus.documents)
    several = any(row.workers > 1 for row in rows)
    estimate = Estimate(
        file_bytes=size or stored,
        text_bytes=int(corpus.bytes),
        documents=int(corpus.documents),
        tokens=int(corpus.tokens),
        sampled_bytes=sampled,
        measured_whole=len(calibration.plain) == 1 and total == sampled,
        calibration_seconds=time.perf_counter() - begin,
        seconds=calibration.start + sum(row.seconds or 0.0 for row in rows),
        start_seconds=calibration.start,
        stages=tuple(rows),
        memory=memory + several * workers * WORKER_MEMORY,
        store=sum(row.disk for row in rows),
        output=on_disk([run.output for run in calibration.plain]),
        exports={
            name: on_disk([run.exports[name] for run in calibration.plain])
            for name in settings.exports.formats
        },
        cores=workers,
        memory_here=main_memory(),
        disk_here=_free(settings),
        machines=(),
        notes=tuple(_notes(settings, calibration)),
    )
    return estimate if estimate.fits_here else replace(estimate, machines=_machines(estimate, memory))


def _stage(
    stage: Stage, settings: Settings, calibration: Calibration, corpus: Size, workers: int
) -> StageEstimate:
    name = stage.name
    runs, run_settings = calibration.plain, calibration.settings
    if name not in runs[0].stages:
        runs, run_settings = calibration.few, calibration.few_settings
    runs = [run for run in runs if name in run.stages]
    if not runs:
        why = next((run.error for run in calibration.few if run.error), "not measured")
        return StageEstimate(name, None, 0.0, 0.0, 1, 0, 0, why)
    computed = [run for run in runs if run.stages[name].computed] or runs[:1]
    sizes = [run.size for run in computed]
    if isinstance(stage, PerDocument) or name == "raw_docs":
        # Each run computed only what the run before it had not.
        before = [Size(0, 0, 0), *sizes]
        sizes = [
            Size(*(b - a for a, b in zip(*pair, strict=True))) for pair in zip(before, sizes, strict=False)
        ]
    measured = [run.stages[name] for run in computed]
    processors = [each.processor for each in measured]
    amounts = [stage.amount(run_settings, size) for size in sizes]
    later = amounts[1:] or amounts
    fixed, rate = _line(later, processors[-len(later) :], LEAST_SHARE)
    if len(measured) > 1:
        # The first run also loads what every process loads once.
        fixed += max(0.0, processors[0] - fixed - rate * amounts[0])
    amount = stage.amount(settings, corpus)
    processor = fixed + rate * amount
    slowness = sum(each.seconds for each in measured) / max(sum(processors), 1e-6)
    at_once = min(workers, int(corpus.bytes) // stage.shared_from) if stage.shared_from else 1
    shared = rate * amount if stage.shared_from and corpus.bytes >= stage.shared_from else 0.0
    seconds = processor * slowness
    if at_once > 1:
        seconds = (fixed + shared * WORKERS_COST / at_once) * max(1.0, slowness)
    in_memory = [stage.amount(run_settings, _blocks(run.size)) for run in computed]
    rise = _at(_line(in_memory, [each.rise for each in measured]), stage.amount(settings, _blocks(corpus)))
    disk = _line([run.size.bytes for run in runs], [_bytes_of(run, name) for run in runs])
    return StageEstimate(
        stage=name,
        seconds=seconds,
        processor_seconds=processor,
        shared_processor_seconds=shared,
        workers=max(1, at_once),
        memory=int(measured[0].memory + rise),
        disk=int(_at(disk, corpus.bytes)),
    )


def _blocks(size: Size) -> Size:
    """The largest part of a corpus that is in memory at one time."""
    return size.times(min(1.0, BLOCKS_BYTES / max(size.bytes, 1)))


def _line(amounts: Sequence[float], values: Sequence[float], least: float = 0.0) -> tuple[float, float]:
    """(fixed part, rate), neither negative, of the line through the first and the last value; a single amount gives
    only a rate. least: least share of the last value that grows with the amount."""
    (x, y), (low, value) = (amounts[-1], values[-1]), (amounts[0], values[0])
    if x <= low:
        return (0.0, y / x) if x else (y, 0.0)
    rate = max(least * y / x, (y - value) / (x - low), 0.0)
    fixed = y - rate * x
    return (fixed, rate) if fixed >= 0 else (0.0, y / x)


def _at(line: tuple[float, float], amount: float) -> float:
    return line[0] + line[1] * amount


def _bytes_of(run: Sampled, stage: str) -> int:
    """Bytes of a stage in the store; raw_docs includes the parts of the store that belong to no stage."""
    return sum(
        size
        for part, size in run.store.items()
        if part in (f"stages/{stage}", f"fits/{stage}")
        or (stage == "raw_docs" and not part.startswith(("stages/", "fits/")))
    )


def _free(settings: Settings) -> int | None:
    """Free bytes where the store will be; None if the store is not on this machine's disk."""
    place = settings.store.path
    if isinstance(place, Url):
        return None
    folder = Path(place).absolute()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.is_dir())).free


def _notes(settings: Settings, calibration: Calibration) -> Iterator[str]:
    last = calibration.plain[-1]
    refused, limit = last.refused / max(1, last.refused + last.records), settings.input.max_reject_share
    if refused > limit:
        yield (
            f"{refused:.1%} of the sampled records are refused, and input.max_reject_share allows {limit:.1%}: a run "
            "would stop and list them"
        )
    if calibration.few:
        yield (
            "stages with neural networks were measured on a few documents, on the device of these settings; other "
            "devices take other times"
        )
    for error in dict.fromkeys(run.error for run in calibration.few if run.error):
        yield f"a stage could not run on a few documents and is missing from the time: {error}"
    if settings.engine.address != "local":
        yield "the times are for this machine, not for the Ray cluster"


def _machines(estimate: Estimate, memory: int) -> tuple[Machine, ...]:
    shared = sum(row.shared_processor_seconds for row in estimate.stages) * WORKERS_COST
    alone = sum(row.processor_seconds - row.shared_processor_seconds for row in estimate.stages)
    return tuple(
        Machine(
            machines=machines,
            cores=cores,
            seconds=estimate.start_seconds + alone + shared / (machines * cores),
            memory=memory + cores * WORKER_MEMORY,
            worker_memory=cores * WORKER_MEMORY if machines > 1 else 0,
        )
        for machines, cores in MACHINES
    )
