"""Measures runs of the real stages on small parts of the input, for an estimate.

One fresh process runs the stages on a growing input, with a store in the temporary folder. The first run trains the
base model, most of the cost of a small run, and loads what a process loads once; later runs do neither and show how a
stage's time grows. Stages that train a neural network or read texts through one run separately, on FEW_BYTES; the other
stages use shallow vectors.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dagster_divorder.corpus.excerpt import Excerpt
from dagster_divorder.engine.local import Worker
from dagster_divorder.engine.memory import resident, with_peak_memory
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.prune import disk_use, prune
from dagster_divorder.pipeline.stage import Size
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Inputs
from dagster_divorder.stages import GRAPH, run_all
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.state import Receipt
from dagster_divorder.units import byte_size

PLAIN_BYTES = (2 << 20, 4 << 20, 20 << 20)
SHARES = (0.4, 0.7, 1.0)
"""Largest shares of the excerpts that the runs use."""
WHOLE_BYTES = 3 << 20
"""A smaller input gets one run, on all of it."""
FEW_BYTES = (20_000, 80_000, 240_000)
FEW_TOKENS = 100_000
"""Most tokens that a small decoder is trained on."""
FEW_SHARE = 0.5
"""The held-out share of a few documents, so that every source has some."""
NETWORKS = "pytorch"
"""The kind of stages that train a neural network or read texts through one."""
COMPILED_SECONDS = 1.5
"""Loading a stage's libraries takes less; compiling its kernels, done once on a machine, takes more."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One stage in one run: wall and processor seconds, bytes of memory before it, their rise at the peak (0: unknown),
    and whether it computed something."""

    seconds: float
    processor: float
    memory: int
    rise: int
    computed: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """One run: its stages, the size of its corpus, its accepted and refused records, and the bytes that it left in each
    part of the store, in the output, and in each format of the exports. error: what ended it, else ""."""

    stages: Mapping[str, Measured]
    size: Size
    records: int
    refused: int
    store: Mapping[str, int]
    output: int
    exports: Mapping[str, int]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Runs on growing parts of the input. start: seconds until a process has its first imports. plain, settings: runs
    and settings of stages without a neural network. few, few_settings: of the other stages. sampled: bytes of the
    excerpts."""

    start: float
    plain: Sequence[Sampled]
    few: Sequence[Sampled]
    settings: Settings
    few_settings: Settings
    sampled: int


def calibrate(settings: Settings, excerpts: Sequence[Excerpt], stages: Sequence[str]) -> Calibration:
    """Run stages on parts of each input's excerpt in temporary folders.

    Raises:
        DivOrderError: as a run.
    """
    plain = _shallow(settings)
    sampled = sum(excerpt.bytes for excerpt in excerpts)
    total = sum(excerpt.total for excerpt in excerpts)

    def through_model(stage: str) -> bool:
        """Whether a stage, or one before it, runs a neural network."""
        return any(NETWORKS in GRAPH[name].kinds_under(plain) for name in GRAPH.needed(plain, stage))

    wanted = [name for name in stages if GRAPH[name].when(plain) and not through_model(name)]
    others = [name for name in stages if name not in wanted]
    order = GRAPH.needed(plain, *wanted)
    shares = [1.0]
    if total >= WHOLE_BYTES:
        shares = [min(share, size / sampled) for share, size in zip(SHARES, PLAIN_BYTES, strict=True)]
    with tempfile.TemporaryDirectory(prefix="divorder-estimate-") as temporary:
        folder = Path(temporary)
        start, runs = _in_a_process(plain, order, excerpts, shares, folder / "plain")
        if len(runs) > 1 and _compiled(runs):
            # The machine keeps compiled kernels, so a first run that is repeated compiles none.
            start, runs[:1] = _in_a_process(plain, order, excerpts, shares[:1], folder / "again")
        few_settings = _few(settings)
        needed = GRAPH.needed(few_settings, *others)
        shares = [min(1.0, size / sampled) for size in FEW_BYTES]
        few = []
        if others:
            few = _in_a_process(few_settings, needed, excerpts, shares, folder / "few", lenient=True)[1]
    return Calibration(start, runs, few, plain, few_settings, sampled)


def _shallow(settings: Settings) -> Settings:
    """The same settings without training, and with shallow vectors only: a file of vectors covers the whole input."""
    return settings.model_copy(
        update={
            "embedding": settings.embedding.model_copy(update={"kind": "shallow"}),
            "selection": settings.selection.model_copy(update={"vectors": "shallow"}),
            "evidence": settings.evidence.model_copy(update={"tokens": None}),
        }
    )


def _few(settings: Settings) -> Settings:
    """The same settings with less to train."""
    advanced, evidence, heldout = settings.advanced, settings.evidence, settings.heldout
    tokens = min(advanced.decoder_tokens, FEW_TOKENS)
    documents = max(FEW_SHARE, heldout.share) if heldout.share else heldout.documents
    less = {"seeds": 1, "epochs": 1, "budget_seconds": None}
    return settings.model_copy(
        update={
            "advanced": advanced.model_copy(update={"decoder_tokens": tokens}),
            "evidence": evidence.model_copy(update=less),
            "heldout": heldout.model_copy(update={"documents": documents}),
        }
    )


def _on_sample(settings: Settings, excerpts: Sequence[Excerpt], share: float, folder: Path) -> Settings:
    """Write a share of each excerpt into a folder; returns the same settings on these files. A run writes only
    there."""
    folder.mkdir(exist_ok=True)
    parts = [excerpt.first(share) for excerpt in excerpts]
    paths = [str(part.write(folder, f"in-{at}")) for at, part in enumerate(parts)]
    scale = sum(part.bytes for part in parts) / max(1.0, sum(excerpt.total for excerpt in excerpts))

    def scaled(section: Any, *names: str) -> Any:
        given = {name: value for name in names if (value := getattr(section, name)) is not None}
        return section.model_copy(update={name: max(1, int(value * scale)) for name, value in given.items()})

    read = settings.input
    update: dict[str, Any] = {"paths": tuple(paths), "max_reject_share": 1.0}
    if isinstance(read, Inputs):
        update["several"] = tuple(
            block.model_copy(update={"paths": (path,)})
            for block, path in zip(read.several, paths, strict=True)
        )
    return settings.model_copy(
        update={
            "input": read.model_copy(update=update),
            "store": settings.store.model_copy(update={"path": folder / "store"}),
            "output": settings.output.model_copy(update={"path": folder / "output"}),
            "exports": settings.exports.model_copy(update={"path": folder / "exports"}),
            "engine": settings.engine.model_copy(update={"address": "local"}),
            "order": settings.order.model_copy(update={"frozen_tokens": 0, "cut": ()}),
            "selection": scaled(settings.selection, "documents", "tokens"),
            "mixing": scaled(settings.mixing, "total_tokens"),
        }
    )


def _compiled(runs: Sequence[Sampled]) -> bool:
    first, second = runs[:2]
    return any(
        measured.processor > second.stages[name].processor + COMPILED_SECONDS
        for name, measured in first.stages.items()
        if name in second.stages and second.stages[name].computed
    )


def _in_a_process(
    settings: Settings,
    stages: Sequence[str],
    excerpts: Sequence[Excerpt],
    shares: Sequence[float],
    folder: Path,
    *,
    lenient: bool = False,
) -> tuple[float, list[Sampled]]:
    """(seconds until a fresh process is ready, its runs on growing shares of the excerpts). lenient: an error ends the
    runs and is returned with the last, since a stage may need more documents."""
    begin, runs, on_sample = time.perf_counter(), list[Sampled](), settings
    try:
        with Worker({}) as worker:
            # To call any function of this module, the process imports what a run imports.
            worker(_shallow, settings)
            start = time.perf_counter() - begin
            for share in shares:
                on_sample = _on_sample(settings, excerpts, share, folder)
                runs.append(worker(partial(_measured, stages, lenient), on_sample))
                if runs[-1].error:
                    break
            return start, runs
    except DivOrderError as error:
        message = str(error)
        for path, excerpt in zip(on_sample.input.paths, excerpts, strict=True):
            message = message.replace(path, f"a sample of {excerpt.name}")
        size = byte_size(sum(excerpt.bytes for excerpt in excerpts))
        raise type(error)(
            f"{message} (in a run on {size} of the input, below {folder.parent.parent})"
        ) from None


def _measured(stages: Sequence[str], lenient: bool, settings: Settings) -> Sampled:
    """Run stages one by one, and measure each."""
    measured: dict[str, Measured] = {}
    receipts: dict[str, Receipt] = {}
    error = ""
    for stage in stages:
        begin, before, memory = time.perf_counter(), _processor_seconds(), resident()
        try:
            receipt_of_stage, rise = with_peak_memory(partial(run_all, settings, Silent(), [stage]))
        except DivOrderError as raised:
            if not lenient:
                raise
            error = str(raised)
            break
        receipts |= receipt_of_stage
        measured[stage] = Measured(
            seconds=time.perf_counter() - begin,
            processor=_processor_seconds() - before,
            memory=memory,
            rise=rise or 0,
            computed=bool(receipts[stage].facts["computed"]),
        )
    store = store_of(settings.store)
    with store.lease(wait=False):
        # The bytes of the store must not include results of the run before, on less input.
        prune(GRAPH, settings, store.open())
    read, tokens = receipts["raw_docs"].figures, receipts.get("token_counts")
    size = Size(
        documents=read["documents"],
        bytes=read["text_bytes"],
        tokens=tokens.figures["tokens"] if tokens else 0,
    )
    return Sampled(
        stages=measured,
        size=size,
        records=read["records"],
        refused=read["rejected_records"],
        store=disk_use(store),
        output=_bytes_in(Path(settings.output.path)),
        exports={name: _bytes_in(Path(settings.exports.path) / name) for name in settings.exports.formats},
        error=error,
    )


def _processor_seconds() -> float:
    """Processor seconds of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
