"""Runs of the real stages on a small part of the input, measured: what an estimate is made from.

The input of a store in the temporary folder grows from run to run, in one fresh process. The base model, most of the
cost of a small run, is trained in the first one alone; that also pays for what a process loads once, so the others tell
how a stage grows. Stages that read texts through a neural network, or train one, run apart on FEW_BYTES, and for the
others vectors are shallow.
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
from dagster_divorder.pipeline.graph import Graph, default_graph
from dagster_divorder.pipeline.prune import disk_use, prune
from dagster_divorder.pipeline.run import run_all
from dagster_divorder.pipeline.stage import Size
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Inputs
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.local import megabytes
from dagster_divorder.store.state import Receipt

PLAIN_BYTES = (2 << 20, 4 << 20, 20 << 20)
SHARES = (0.4, 0.7, 1.0)
"""Of what was drawn, at most."""
WHOLE_BYTES = 3 << 20
"""An input that is no larger is run on once, whole."""
FEW_BYTES = (20_000, 80_000, 240_000)
FEW_TOKENS = 100_000
"""A small decoder is trained on as few, whatever the settings say."""
FEW_SHARE = 0.5
"""Of a few documents of every source so many are held out: one of two."""
NETWORKS = "pytorch"
"""Among the kinds of stages that train a neural network, or read texts through one."""
COMPILED_SECONDS = 1.5
"""What a process loads for a stage takes no longer, compiling its kernels does, as it is once on a machine."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One stage in one run: wall and processor seconds, bytes of memory that the process held before, and by which it
    rose at most (0: unknown), and whether it computed something."""

    seconds: float
    processor: float
    held: int
    rise: int
    computed: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """One run: its stages, how large its corpus was, how many of its records were refused, bytes that it left by part
    of the store, of the output, and by format of the exports; `error` ended it."""

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
    """Runs on parts of the input, each on more of it than the one before. start: seconds until a process has its first
    imports; `plain` and `settings`: runs of the stages without a neural network, and theirs; `few` and `few_settings`:
    of the others. sampled: bytes of records that were there for them."""

    start: float
    plain: Sequence[Sampled]
    few: Sequence[Sampled]
    settings: Settings
    few_settings: Settings
    sampled: int


def calibrate(settings: Settings, excerpts: Sequence[Excerpt], stages: Sequence[str]) -> Calibration:
    """Run stages on parts of each input's excerpt. Nothing is left.

    Raises:
        DivOrderError: what a run would raise.
    """
    graph, plain = default_graph(), _shallow(settings)
    held, total = (sum(getattr(excerpt, of) for excerpt in excerpts) for of in ("bytes", "total"))
    wanted = [name for name in stages if graph[name].when(plain) and not _through_model(graph, plain, name)]
    others = [name for name in stages if name not in wanted]
    order = graph.needed(plain, *wanted)
    shares = [1.0]
    if total >= WHOLE_BYTES:
        shares = [min(share, size / held) for share, size in zip(SHARES, PLAIN_BYTES, strict=True)]
    with tempfile.TemporaryDirectory(prefix="divorder-estimate-") as temporary:
        folder = Path(temporary)
        start, found = _in_a_process(plain, order, excerpts, shares, folder / "plain")
        if len(found) > 1 and _compiled(found):
            # What was compiled is kept on this machine.
            start, found[:1] = _in_a_process(plain, order, excerpts, shares[:1], folder / "again")
        few_settings = _few(settings)
        needed = graph.needed(few_settings, *others)
        shares = [min(1.0, size / held) for size in FEW_BYTES]
        few = []
        if others:
            few = _in_a_process(few_settings, needed, excerpts, shares, folder / "few", lenient=True)[1]
    return Calibration(start, found, few, plain, few_settings, held)


def _through_model(graph: Graph, settings: Settings, stage: str) -> bool:
    """Whether a stage, or one before it, runs a neural network."""
    return any(NETWORKS in graph[name].kinds_under(settings) for name in graph.needed(settings, stage))


def _shallow(settings: Settings) -> Settings:
    """The same without vectors that need a model, or a row a record of the whole input."""
    given = settings.selection
    return settings.model_copy(
        update={
            "embedding": settings.embedding.model_copy(update={"kind": "shallow"}),
            "selection": given.model_copy(update={"vectors": "shallow"}),
            "evidence": settings.evidence.model_copy(update={"tokens": None}),
        }
    )


def _few(settings: Settings) -> Settings:
    """The same with less to train."""
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
    """The same settings on a share of each excerpt, written into a folder; all that a run writes goes there."""
    folder.mkdir(exist_ok=True)
    parts = [excerpt.first(share) for excerpt in excerpts]
    paths = [str(part.write(folder, f"in-{at}")) for at, part in enumerate(parts)]
    of_all = sum(part.bytes for part in parts) / max(1.0, sum(excerpt.total for excerpt in excerpts))

    def scaled(section: Any, *names: str) -> Any:
        given = {name: getattr(section, name) for name in names}
        return section.model_copy(
            update={name: max(1, int(of * of_all)) for name, of in given.items() if of is not None}
        )

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
            "engine": settings.engine.model_copy(update={"kind": "local", "address": None}),
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
    """Seconds until a fresh process is ready, and what it measures on growing shares of the excerpts. lenient: an error
    ends that, and is told, since a few documents may be too few for a stage."""
    begin, found = time.perf_counter(), list[Sampled]()
    worker, at = Worker({}), settings
    try:
        worker(_loaded, 0)
        start = time.perf_counter() - begin
        for share in shares:
            at = _on_sample(settings, excerpts, share, folder)
            found.append(worker(partial(_measured, stages, lenient), at))
            if found[-1].error:
                break
        return start, found
    except DivOrderError as error:
        said = str(error)
        for path, excerpt in zip(at.input.paths, excerpts, strict=True):
            said = said.replace(path, f"a sample of {excerpt.name}")
        of_all = megabytes(sum(part.bytes for part in excerpts))
        raise type(error)(
            f"{said} (in a run on {of_all} of the input, below {folder.parent.parent})"
        ) from None
    finally:
        worker.process.kill()
        worker.process.communicate()


def _loaded(nothing: int) -> int:
    """Called in a process, has it import what a run imports."""
    default_graph()
    return nothing


def _measured(stages: Sequence[str], lenient: bool, settings: Settings) -> Sampled:
    """Run stages one by one, and measure each."""
    found: dict[str, Measured] = {}
    receipts: dict[str, Receipt] = {}
    error = ""
    for stage in stages:
        begin, before, held = time.perf_counter(), _processor_seconds(), resident()
        try:
            made, rise = with_peak_memory(partial(run_all, settings, Silent(), [stage]))
        except DivOrderError as raised:
            if not lenient:
                raise
            error = str(raised)
            break
        receipts |= made
        found[stage] = Measured(
            seconds=time.perf_counter() - begin,
            processor=_processor_seconds() - before,
            held=held,
            rise=rise or 0,
            computed=bool(made[stage].facts["computed"]),
        )
    store = store_of(settings.store)
    with store.lease(wait=False):
        # Of the first run on less.
        prune(settings, store.open())
    read, tokens = receipts["raw_docs"], receipts.get("token_counts")
    size = Size(
        documents=read.figures["documents"],
        bytes=read.figures["text_bytes"],
        tokens=tokens.figures["tokens"] if tokens else 0,
    )
    return Sampled(
        stages=found,
        size=size,
        records=read.figures["records"],
        refused=read.figures["rejected_records"],
        store=disk_use(store),
        output=_bytes_in(Path(settings.output.path)),
        exports={name: _bytes_in(Path(settings.exports.path) / name) for name in settings.exports.formats},
        error=error,
    )


def _processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(of.ru_utime + of.ru_stime for of in used)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
