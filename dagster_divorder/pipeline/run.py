"""One run of a stage: settings, store, progress, and the receipts of the stages before it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
import xxhash

from dagster_divorder.engine.memory import (
    address_limit,
    give_back_memory,
    is_out_of_memory,
    main_memory,
    need_addresses,
)
from dagster_divorder.engine.progress import Bar, Progress
from dagster_divorder.errors import DamagedFileError, MemoryLimitError, MissingStageError
from dagster_divorder.pipeline.graph import OUTPUT, needed
from dagster_divorder.pipeline.repair import discard
from dagster_divorder.pipeline.retire import retire
from dagster_divorder.settings import Settings, refuse_overlap
from dagster_divorder.store.curated import refuse_foreign_files
from dagster_divorder.store.fits import complete_records
from dagster_divorder.store.local import DISK_FULL, LocalStore, explain_os_error, megabytes
from dagster_divorder.store.receipts import Receipt, load_receipt


@dataclass(frozen=True, slots=True)
class Run:
    """What a stage's `run(run)` works with."""

    settings: Settings
    store: LocalStore
    progress: Progress = field(default_factory=Bar)

    def receipt(self, stage: str) -> Receipt:
        """The current result of a stage before this one, known to fit these settings and its own inputs.

        Raises:
            MissingStageError: it never ran, ran with other settings, or a stage before it has changed since.
        """
        receipt = load_receipt(self.store, stage)
        remedy = f"materialise it first: dagster asset materialize --select '*{stage}' -m dagster_divorder.definitions"
        if receipt is None:
            raise MissingStageError(f"{stage} has no result in {self.store.root}; {remedy}")
        if receipt.recipe != self.settings.recipe(stage):
            raise MissingStageError(f"{stage} was last made with other settings; {remedy}")
        for name, version in receipt.uses.items():
            if self.receipt(name).version != version:
                raise MissingStageError(f"{stage} was made for an earlier state of {name}; {remedy}")
        return receipt

    def fits(self, stage: str) -> bool:
        """Whether a stage's result is there and current, as `receipt` would have it."""
        try:
            self.receipt(stage)
        except MissingStageError:
            return False
        return True


def content_hash(*parts: Any) -> str:
    """Hash of JSON-ready values, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(
        orjson.dumps(parts, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    )


def run_stage(stage: str, settings: Settings, progress: Progress | None = None) -> Receipt:
    """Run one stage on what the stages before it left in the store, and return its receipt.

    Nothing new computes nothing. A second run on the same store waits for this one, or fails, as `store.wait` says.
    A damaged file that the stage meets is made again, if need be by the stages before it, with a note.

    Raises:
        DivOrderError: with what was found, what was expected and what to do.
    """
    return run_all(settings, progress, [stage])[stage]


def _pace(receipt: Receipt, seconds: float, before: Receipt | None) -> float | None:
    """Seconds a new document, of this run if it computed some, else as known before: what a plan goes by."""
    new = receipt.report["new_documents"]
    if new:
        return seconds / new
    return before.report.get("seconds_per_new_document") if before else None


def run_all(
    settings: Settings, progress: Progress | None = None, stages: Iterable[str] | None = None
) -> dict[str, Receipt]:
    """Run stages in order, by default all that an output needs, alone on the store throughout (see `run_stage`)."""
    need_addresses()
    stages = needed(settings) if stages is None else tuple(stages)
    progress = progress or Bar()
    # Settings that were built in Python were not loaded.
    refuse_overlap(settings)
    store = LocalStore(settings.store.path)
    with store.lease(wait=settings.store.wait, on_wait=progress.note):
        run = Run(settings, store.open(), progress)
        store.clear_scratch()
        complete_records(store)
        if not {OUTPUT, "raw_docs"}.isdisjoint(stages):
            refuse_foreign_files(store, settings.output)
        made = {stage: _mend_and_run(run, stage) for stage in stages}
        retire(store)
        return made


def _mend_and_run(run: Run, stage: str) -> Receipt:
    """Run a stage; a damaged file it meets is discarded and made again, each file once."""
    order = needed(run.settings, stage)
    first = len(order) - 1
    mended: set[str] = set()
    while True:
        try:
            return [_run_one(run, name) for name in order[first:]][-1]
        except DamagedFileError as error:
            maker = None if error.name in mended else discard(run.store, error.name)
            if maker is None:
                raise
            mended.add(error.name)
            run.progress.note(f"{error} (done now: {maker} makes it again)")
            if maker in order:  # else the stage that met it makes it
                first = min(first, order.index(maker))
        except OSError as error:
            # Store and output explain theirs; what remains are files of a moment, such as a model in training.
            if error.errno not in DISK_FULL:
                raise
            raise explain_os_error(error, Path(error.filename or run.store.root)) from error


def _run_one(run: Run, stage: str) -> Receipt:
    # What the stage before has freed would add to what this one takes.
    give_back_memory()
    start = time.perf_counter()
    try:
        receipt: Receipt = importlib.import_module(f"dagster_divorder.pipeline.{stage}").run(run)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise _memory_ran_out(stage, error) from error
    seconds = time.perf_counter() - start
    documents = receipt.report["documents"]
    timing = {
        "seconds": round(seconds, 3),
        "documents_per_second": round(documents / seconds, 1) if seconds > 0 else 0.0,
        "seconds_per_new_document": _pace(receipt, seconds, load_receipt(run.store, stage)),
    }
    receipt = replace(receipt, report={**receipt.report, **timing})
    receipt.save(run.store)
    return receipt


def _memory_ran_out(stage: str, error: Exception) -> MemoryLimitError:
    limit = address_limit()
    allowed = (
        f"{megabytes(main_memory())} of memory are there, or a container's quota of it"
        if limit is None
        else f"this process may use {megabytes(limit)} of addresses (ulimit -v)"
    )
    return MemoryLimitError(
        f"memory ran out in {stage} ({type(error).__name__}: {str(error).partition(chr(10))[0] or 'no more said'}); "
        f"{allowed}: allow more, or lower engine.workers, and run again: the fragments that are done are kept"
    )
