"""What a run would do, before it does it: which stages compute how much, why, for how long, and the disk in use.

Reads and hashes the input, as a run does, and stores nothing. Times are the last measured seconds a new document.
Known weakness: results kept from earlier settings are not looked up, so a switch back is announced as a recomputation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import xxhash

from dagster_divorder.pipeline.prune import disk_use
from dagster_divorder.pipeline.raw_docs import read_blocks, records_key
from dagster_divorder.pipeline.run import STAGES, UPSTREAM
from dagster_divorder.settings import Settings
from dagster_divorder.store.fragments import Fragments, records_folder
from dagster_divorder.store.ids import IdIndex, hash_all, to_bytes, words
from dagster_divorder.store.inputs import LineBlock, find_files
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.records import row_ids
from dagster_divorder.store.view import View

Scope = Literal["nothing", "new", "all"]

WHOLE = ("greedy_order", "diversity_metrics", "curated_output")
"""Stages that look at all documents together, and so run as a whole."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage: how much it would compute (in documents) and why; seconds is None where no run has been timed."""

    stage: str
    scope: Scope
    why: str
    documents: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do. `new_records` were never seen; `disk` is bytes by part of the store."""

    records: int
    new_records: int
    stages: tuple[StagePlan, ...]
    disk: dict[str, int]


def make_plan(settings: Settings) -> Plan:
    """Plan a run with these settings on the store as it is.

    Raises:
        InputError: the input cannot be read.
    """
    store = LocalStore(settings.store.path).open()
    receipts = {stage: load_receipt(store, stage) for stage in STAGES}
    records, new_records, same = _scan(settings, store, receipts["raw_docs"])
    plans: dict[str, StagePlan] = {}
    for stage in STAGES:
        receipt = receipts[stage]
        scope, why = _own_scope(settings, stage, receipt)
        if scope == "nothing" and not same:
            scope, why = _scope_by_input(stage, new_records)
        if scope != "all" and stage != "base_model":
            remade = [name for name in UPSTREAM[stage] if plans[name].scope == "all"]
            if remade:
                scope, why = "all", f"{remade[0]} is made again"
        documents = {"nothing": 0, "new": new_records, "all": records}[scope]
        pace = receipt.report.get("seconds_per_new_document") if receipt else None
        seconds = 0.0 if not documents else None if pace is None else documents * pace
        plans[stage] = StagePlan(stage, scope, why, documents, seconds)
    return Plan(records, new_records, tuple(plans.values()), disk_use(store))


def _own_scope(settings: Settings, stage: str, receipt: Receipt | None) -> tuple[Scope, str]:
    if receipt is None:
        return "all", "never ran on this store"
    if receipt.recipe != settings.recipe(stage):
        return "all", "its settings or its code changed"
    refit = {"base_model": settings.model.refit, "clusters": settings.clusters.refit}.get(stage)
    return ("all", "a refit is asked for") if refit == "now" else ("nothing", "up to date")


def _scope_by_input(stage: str, new_records: int) -> tuple[Scope, str]:
    """How much a stage computes because records came, moved or went."""
    if stage == "base_model":
        return "nothing", "pinned"
    if stage in WHOLE:
        return "all", "the records changed"
    return ("new", "new records") if new_records else ("nothing", "records moved or went, none is new")


def _scan(settings: Settings, store: LocalStore, receipt: Receipt | None) -> tuple[int, int, bool]:
    """Records of the input, how many of them are new, and whether they are the current view's, in its order.

    Lines that a run would refuse count as new records: only parsing tells them apart.
    """
    kind, files = find_files(settings.input.paths)
    key = records_key(settings, kind)
    known = IdIndex()
    ids_of: dict[str, np.ndarray] = {}
    for name, index in Fragments(store, records_folder(key)).indexes():
        ids_of[name] = index["id"]
        known.add(index["id"])
    seen = IdIndex()
    records = new_records = 0
    order = xxhash.xxh3_128()
    for block in read_blocks(kind, files):
        ids = words(hash_all(block.lines) if isinstance(block, LineBlock) else row_ids(block.rows))
        missing = np.unique(ids[known.find(ids) < 0], axis=0)
        missing = missing[seen.find(missing) < 0]
        seen.add(missing)
        records += len(ids)
        new_records += len(missing)
        order.update(to_bytes(ids))
    if receipt is None or receipt.key != key or receipt.report["rejected_records"]:
        return records, new_records, False
    view = View.load(store, receipt.files["view"])
    before = np.concatenate([ids_of[fragment.name] for fragment in view.records])[view.record_row]
    return records, new_records, order.digest() == xxhash.xxh3_128(to_bytes(before)).digest()
