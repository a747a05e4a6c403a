"""The state of a store: one document with the results of all stages and the files that hold them.

The document is replaced as a whole (`Store.swap`), so a killed process leaves the old state or the new one. Files are
written before the state names them, and removed after the state no longer names them. The document carries a hash of
itself.

Runs on a bucket may change the state at the same time. `changing` repeats a change on the state of another run. All
receipts are then those of this run, since a mixture would describe no run; all else is as the other run left it, with
the change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson
import xxhash
from pydantic import TypeAdapter, ValidationError

from dagster_divorder.errors import StoreError
from dagster_divorder.store.base import STATE, Store
from dagster_divorder.store.fragments import RECORDS

HISTORY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A stored result of a stage. key: it is stored under it. version: hash of the content. files: named files in the
    store. facts: values for later stages and runs. figures: values for people."""

    key: str
    version: str
    files: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Result):
    """The last run of a stage: its result, and what describes the run alone.

    fingerprint: code version, and hash of the settings that decide the result. upstream: versions of the stages read.
    settings: settings that were not at their defaults.
    """

    stage: str
    fingerprint: str
    upstream: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)


Told = TypeVar("Told", Receipt, Result)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A plan that was written for trainers. The store keeps its results.

    fingerprint: names it in manifests of exports. batch: sequences a step. keys: folder of an output or export -> the
    key of its manifest. orders: stage -> the result that decides it. published: whether every folder was written.
    """

    fingerprint: str
    batch: int
    keys: dict[str, str]
    orders: dict[str, Result]
    published: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """The whole document. Values are never changed, only replaced.

    receipts: each stage's last run. results: the stored results of each stage, one a key, in the order of use: the last
    `HISTORY` of a whole corpus, so that settings can be switched back for free, and every fit (until `divorder prune`).
    outputs: the names that this store has written into each output folder. plans: the last plans that were written for
    trainers, in the order of writing (`pipeline.published`). removed: whether fragments were removed since the last
    prune: results may quote documents that no fragment holds.
    """

    receipts: dict[str, Receipt] = field(default_factory=dict)
    results: dict[str, list[Result]] = field(default_factory=dict)
    outputs: dict[str, list[str]] = field(default_factory=dict)
    plans: list[TrainingPlan] = field(default_factory=list)
    removed: bool = False

    def entries(self) -> list[Result]:
        """All receipts and results: every entry that names store files."""
        results = [*self.results.values(), *([*plan.orders.values()] for plan in self.plans)]
        return [*self.receipts.values(), *(result for each in results for result in each)]


_SHAPE = TypeAdapter(State)
_known: tuple[bytes | None, State] = None, State()
"""The document that this process last read or wrote, as bytes and as values."""


def load_state(store: Store) -> State:
    """The state of a store; empty if nothing ran yet. Raises StoreError: the document is damaged, or missing
    although there are fragments."""
    global _known
    data, why = store.document(), "is damaged"
    if data is None and not store.folders(RECORDS):
        return State()
    if data is None:
        why = "is missing, although the store holds fragments"
    elif data == _known[0]:
        return _known[1]
    elif data == _signed(b"{" + data[len(_signed(b"{")) :]):
        try:
            _known = data, _SHAPE.validate_python(orjson.loads(data))
            return _known[1]
        except (orjson.JSONDecodeError, ValidationError):
            pass
    raise StoreError(
        f"{store.where(STATE)} {why}: restore it from a copy, or set store.path to a new folder: a run then computes "
        "everything again"
    )


def _signed(plain: bytes) -> bytes:
    """A JSON object's document: the object with its hash as the first entry."""
    return b'{"check":"%s",%s' % (xxhash.xxh3_128_hexdigest(plain).encode(), plain[1:])


def changing(store: Store, change: Callable[[State], State]) -> State:
    """Replace the state of a store by `change(state)`; returns the new state. The caller is inside `Store.lock`.

    change: a function without side effects; it is called again if another run has replaced the state. Nothing is
    written if it changes nothing.
    """
    global _known
    before = load_state(store)
    receipts = before.receipts
    while (after := change(before)) != load_state(store) or store.document() is None:
        data = _signed(orjson.dumps(after))
        if store.swap(data):
            _known = data, after
            break
        before = replace(load_state(store), receipts=receipts)
    return after


def load_receipt(store: Store, stage: str) -> Receipt | None:
    """The receipt of a stage; None if it never ran on this store. Raises StoreError as `load_state` does."""
    receipt = load_state(store).receipts.get(stage)
    return None if receipt is None else _copied(receipt)


def save_receipt(store: Store, receipt: Receipt) -> None:
    """Replace the receipt of its stage, and mark its result as the last used. Nothing is written if only the seconds
    would change."""
    stage, stored = receipt.stage, as_stored(receipt)

    def without_seconds(receipt: Receipt) -> Receipt:
        return replace(receipt, figures={**receipt.figures, "seconds": None})

    def save(state: State) -> State:
        results = state.results.get(stage, [])
        used = sorted(results, key=lambda result: result.version == receipt.version)
        kept = used if "fit" in receipt.files else used[-HISTORY:]
        last = state.receipts.get(stage)
        if last and kept == results and without_seconds(last) == without_seconds(stored):
            return state
        receipts = {**state.receipts, stage: stored}
        return replace(state, receipts=receipts, results={**state.results, stage: kept})

    changing(store, save)


def load_result(store: Store, stage: str, key: str) -> Result | None:
    """The result of a stage under a key; None if there is none."""
    results = load_state(store).results.get(stage, [])
    return next((_copied(result) for result in results if result.key == key), None)


def keep_result(store: Store, stage: str, result: Result) -> None:
    """Add a result, or replace the result under the same key."""
    put_result(store, stage, result, None, always=True)


def put_result(
    store: Store, stage: str, result: Result, before: Result | None, *, always: bool = False
) -> Result:
    """Add a result, or replace the result `before` under the same key; returns the result that the state now has. It
    is another run's if that run has added or replaced one first, unless `always`."""
    stored = as_stored(result)

    def put(state: State) -> State:
        results = state.results.get(stage, [])
        known = next((other for other in results if other.key == result.key), None)
        if known and not always and known.version != (before.version if before else ""):
            return state
        kept = [other for other in results if other.key != result.key]
        return replace(state, results={**state.results, stage: [*kept, stored]})

    results = changing(store, put).results[stage]
    return _copied(next(other for other in results if other.key == result.key))


def as_stored(values: Told) -> Told:
    """A receipt or a result as reading returns it: NumPy numbers and arrays become plain numbers and lists."""
    return type(values)(**orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)))


def _copied(values: Told) -> Told:
    """A copy for a reader, who may change its dictionaries."""
    return replace(values, files={**values.files}, facts={**values.facts}, figures={**values.figures})
