"""One run of a stage: settings, store, progress, and the receipts of the stages before it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import xxhash

from dagster_divorder.engine.progress import Bar, Progress
from dagster_divorder.errors import MissingStageError
from dagster_divorder.settings import CODE_VERSIONS, Settings
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_receipt

STAGES = tuple(CODE_VERSIONS)
"""Stage names in the order in which they run."""


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


def content_hash(*parts: Any) -> str:
    """Hash of JSON-ready values, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(
        orjson.dumps(parts, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    )


def run_stage(stage: str, settings: Settings, progress: Progress | None = None) -> Receipt:
    """Run one stage on what the stages before it left in the store, and return its receipt.

    Nothing new computes nothing. A second run on the same store waits for this one.

    Raises:
        DivOrderError: with what was found, what was expected and what to do.
    """
    progress = progress or Bar()
    module = importlib.import_module(f"dagster_divorder.pipeline.{stage}")
    store = LocalStore(settings.store.path)
    with store.lease(on_wait=progress.note):
        run = Run(settings, store.open(), progress)
        start = time.perf_counter()
        receipt: Receipt = module.run(run)
        seconds = time.perf_counter() - start
        documents = receipt.report["documents"]
        timing = {
            "seconds": round(seconds, 3),
            "documents_per_second": round(documents / seconds, 1) if seconds > 0 else 0.0,
            "seconds_per_new_document": _pace(receipt, seconds, load_receipt(store, stage)),
        }
        receipt = replace(receipt, report={**receipt.report, **timing})
        receipt.save(store)
    return receipt


def _pace(receipt: Receipt, seconds: float, before: Receipt | None) -> float | None:
    """Seconds a new document, of this run if it computed some, else as known before: what a plan goes by."""
    new = receipt.report["new_documents"]
    if new:
        return seconds / new
    return before.report.get("seconds_per_new_document") if before else None


def run_all(
    settings: Settings, progress: Progress | None = None, stages: Iterable[str] = STAGES
) -> dict[str, Receipt]:
    """Run stages in order; by default all of them."""
    return {stage: run_stage(stage, settings, progress) for stage in stages}
