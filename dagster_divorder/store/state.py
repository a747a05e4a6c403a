"""The state of a store: one document with the results of all stages and the files that hold them.

The state is replaced as a whole: in a folder by a rename, under the lease; on objects by the head's compare-and-swap
(`store.head`). So a killed process leaves the old state or the new state. Files are written before the state names
them, and removed after the state no longer names them.

    receipts  each stage's last run: its result and figures
    results   the stored results of each stage, one a key, in the order of use: the last `HISTORY` results of a whole
              corpus, so that settings can be switched back for free, and every fit (until `divorder prune`)
    outputs   the names that this store has written into each output folder
    plans     the last plans that were written for trainers, in the order of writing (`pipeline.published`)

The document carries a hash of itself. `states/` holds a copy from the end of the last run, under a hashed name. A run
restores the copy if the document is damaged or gone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson
import xxhash
from pydantic import TypeAdapter, ValidationError

from dagster_divorder.errors import DamagedFileError
from dagster_divorder.store.base import STATE, Store
from dagster_divorder.store.output_manifests import FileName
from dagster_divorder.view.answer import AsTable, TextTable

COPIES = "states"
HISTORY = 4


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Receipt(AsTable):
    """The last run of a stage.

    fingerprint: code version, and hash of the settings that decide the result. key: the result is stored under it.
    version: hash of the content. upstream: versions of the stages read. files: named files in the store. facts: values
    for later stages and runs. figures: values for people. settings: settings that were not at their defaults.
    """

    stage: str
    fingerprint: str
    key: str
    version: str
    upstream: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def _as_table(self) -> TextTable:
        """The figures, without nested tables."""
        simple = {name: value for name, value in self.figures.items() if not isinstance(value, (list, dict))}
        rows = [
            {"figure": name, "value": str(value)}
            for name, value in {**simple, "version": self.version}.items()
        ]
        return TextTable(rows, self.stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A stored result of a stage; fields as in `Receipt`, without facts and figures that describe a run alone."""

    key: str
    version: str
    files: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


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
    """The whole document. Values are never changed, only replaced."""

    receipts: dict[str, Receipt] = field(default_factory=dict)
    results: dict[str, list[Result]] = field(default_factory=dict)
    outputs: dict[str, list[FileName]] = field(default_factory=dict)
    plans: list[TrainingPlan] = field(default_factory=list)

    def entries(self) -> list[Receipt | Result]:
        """All receipts and results: every entry that names store files."""
        results = [*self.results.values(), *([*plan.orders.values()] for plan in self.plans)]
        return [*self.receipts.values(), *(result for each in results for result in each)]


_SHAPE = TypeAdapter(State)
_CHANGING = threading.RLock()
_known: tuple[bytes | None, State] = None, State()
"""The document that this process last read or wrote, as bytes and as values."""


def load_state(store: Store) -> State:
    """The state of a store; empty if nothing ran yet.

    Raises:
        DamagedFileError: the document is damaged, or missing although a copy exists.
    """
    global _known
    if store.exists(STATE):
        data = store.read(STATE)
        if data == _known[0]:
            return _known[1]
        try:
            if data == signed(b"{" + data[len(signed(b"{")) :]):
                _known = data, _SHAPE.validate_python(orjson.loads(data))
                return _known[1]
        except (orjson.JSONDecodeError, ValidationError):
            pass
    elif not store.list(COPIES):
        return State()
    raise DamagedFileError(
        f"{store.where(STATE)} is damaged or gone; run again: a run continues from its copy in {store.where(COPIES)} "
        "if that is undamaged; else restore the store from a copy, or set store.path to a new folder",
        STATE,
    )


def signed(plain: bytes) -> bytes:
    """A JSON object's document: the object with its hash as the first entry."""
    return b'{"check":"%s",%s' % (xxhash.xxh3_128_hexdigest(plain).encode(), plain[1:])


def save_state(store: Store, state: State) -> None:
    """Replace the state of a store. The caller holds the lease."""
    global _known
    data = signed(orjson.dumps(state))
    store.put(STATE, data, replace=True)
    _known = data, state


@contextlib.contextmanager
def changing(store: Store) -> Iterator[State]:
    """The state of a store; no other thread replaces it meanwhile. The caller holds the lease."""
    with _CHANGING:
        yield load_state(store)


def keep_copy(store: Store) -> None:
    """Replace the copy of the state."""
    if store.exists(STATE):
        name = store.put_hashed(COPIES, "state", store.read(STATE), "json")
        store.delete(*(other for other in store.list(COPIES) if other != name))


def mend_state(store: Store) -> str | None:
    """Restore a damaged or missing state from its copy; returns a message, or None if the state is sound.

    Raises:
        DamagedFileError: the copy is missing or damaged too.
    """
    try:
        load_state(store)
        return None
    except DamagedFileError:
        copies = store.stats(COPIES)
        if not copies:
            raise
    # A killed run may have left two copies.
    last = max(copies, key=lambda name: copies[name].modified)
    store.put(STATE, store.read_verified(last), replace=True)
    load_state(store)
    return f"{store.where(STATE)} is damaged or gone: this run continues from the copy that the last run left"


def load_receipt(store: Store, stage: str) -> Receipt | None:
    """The receipt of a stage; None if it never ran on this store.

    Raises:
        DamagedFileError: as `load_state` does.
    """
    receipt = load_state(store).receipts.get(stage)
    return None if receipt is None else _recorded(store, stage, receipt)


def save_receipt(store: Store, receipt: Receipt) -> None:
    """Replace the receipt of its stage, and mark its result as the last used. Nothing is written if only the seconds
    would change."""
    stage, stored = receipt.stage, as_stored(receipt)
    with changing(store) as state:
        results = state.results.get(stage, [])
        used = sorted(results, key=lambda result: result.version == receipt.version)
        kept = used if "fit" in receipt.files else used[-HISTORY:]
        last = state.receipts.get(stage)
        if last and kept == results and _without_seconds(last) == _without_seconds(stored):
            return
        receipts = {**state.receipts, stage: stored}
        save_state(store, replace(state, receipts=receipts, results={**state.results, stage: kept}))


def _without_seconds(receipt: Receipt) -> Receipt:
    return replace(receipt, figures={**receipt.figures, "seconds": None})


def drop_receipt(store: Store, stage: str) -> None:
    """Remove the receipt of a stage; its results stay."""
    with changing(store) as state:
        receipts = {name: receipt for name, receipt in state.receipts.items() if name != stage}
        if receipts.keys() != state.receipts.keys():
            save_state(store, replace(state, receipts=receipts))


def load_result(store: Store, stage: str, key: str) -> Result | None:
    """The result of a stage under a key; None if there is none."""
    for result in load_state(store).results.get(stage, []):
        if result.key == key:
            return _recorded(store, stage, result)
    return None


def save_results(store: Store, stage: str, results: list[Result]) -> None:
    """Replace all results of a stage."""
    plain = [as_stored(result) for result in results]
    with changing(store) as state:
        if state.results.get(stage, []) != plain:
            save_state(store, replace(state, results={**state.results, stage: plain}))


def keep_result(store: Store, stage: str, result: Result) -> None:
    """Add a result, or replace the result under the same key."""
    results = load_state(store).results.get(stage, [])
    save_results(store, stage, [*(other for other in results if other.key != result.key), result])


def as_stored(values: Told) -> Told:
    """A receipt or a result as reading returns it: NumPy numbers and arrays become plain numbers and lists."""
    return type(values)(**orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)))


def _recorded(store: Store, stage: str, values: Told) -> Told:
    """A copy for a reader, who may change its dictionaries; a missing file or fact raises DamagedFileError."""
    files, facts = (_Recorded(store, stage, part) for part in (values.files, values.facts))
    return replace(values, files=files, facts=facts, figures={**values.figures})


class _Recorded(dict[str, Any]):
    """Files or facts of a stage. The lookup of a missing name raises DamagedFileError."""

    def __init__(self, store: Store, stage: str, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._store, self._stage = store, stage

    def __missing__(self, key: str) -> Any:
        raise DamagedFileError(
            f"{self._store.where(STATE)} is damaged: it holds no {key!r} of {self._stage}; run again, or restore it "
            "from a copy",
            f"{STATE}/{self._stage}",
        )
