"""Runs of stages, and of the checks that stages declare. A `Run` gives a stage its settings, store, progress and the
results of earlier stages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder.corpus.shapes import shapes_of
from dagster_divorder.corpus.stored import Records
from dagster_divorder.engine import open_engine
from dagster_divorder.engine.base import Engine, give_back_memory, is_out_of_memory
from dagster_divorder.engine.progress import STANDARD_ERROR, Progress, Silent
from dagster_divorder.errors import DamagedFileError, DivOrderError, MissingStageError
from dagster_divorder.pipeline.graph import OUTPUT, Graph
from dagster_divorder.pipeline.prune import remove_superseded
from dagster_divorder.pipeline.published import publish
from dagster_divorder.pipeline.stage import Finding
from dagster_divorder.settings import Settings
from dagster_divorder.settings.loading import refuse_overlap
from dagster_divorder.store.base import Store
from dagster_divorder.store.disk import DISK_FULL, explain_os_error
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import distinct
from dagster_divorder.store.objects import store_at
from dagster_divorder.store.stages import Reader
from dagster_divorder.store.state import Receipt, State, changing, load_receipt, load_state, save_receipt
from dagster_divorder.store.view import View
from dagster_divorder.write.curated import refuse_foreign_files

_FIRST = "`divorder run` makes it, or `divorder run {}` (in Dagster: materialise it with all assets upstream)"


class ToBeMadeError(MissingStageError):
    """While planning: a run would make this stage again, and only that run knows what follows."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"{stage} is made again")
        self.stage = stage


@dataclass(slots=True)
class Run(Reader):
    """Settings, store, progress and current results, for the functions of a stage.

    While `planning`, `foreseen` holds the future receipt of each stage; None if only a run can tell. Stages that a run
    would skip have their stored receipts.
    """

    settings: Settings
    store: Store
    graph: Graph
    progress: Progress = STANDARD_ERROR
    planning: bool = False
    foreseen: dict[str, Receipt | None] = field(default_factory=dict)
    observed: dict[str, Any] = field(default_factory=dict)
    """Figures of a stage that belong to this run alone, such as a rate."""
    memo: dict[str, Any] = field(default_factory=dict)
    """Values that `decide` has computed and `make` needs, for the stage that runs."""
    unstored: tuple[View, Mapping[str, Mapping[str, np.ndarray]]] | None = None
    """A view that a plan has read and not stored, and the indexes of its new fragments."""
    _current: dict[str, Receipt] = field(default_factory=dict)
    _engine: Engine | None = None
    _kept: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        """Runs functions over many items. The first use opens it; `close` closes it."""
        if self._engine is None:
            self._engine = open_engine(self.settings.engine, partial(_unseen, self.store, self.store.id))
        return self._engine

    def close(self) -> None:
        """Close the engine, if one was opened."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def receipt(self, stage: str) -> Receipt:
        """The current result of an earlier stage. It fits these settings and its own inputs. Raises
        MissingStageError: the stage never ran or ran with other settings, or a stage that it reads has changed."""
        if self.planning and stage in self.foreseen:
            foreseen = self.foreseen[stage]
            if foreseen is None:
                raise ToBeMadeError(stage)
            return foreseen
        if stage not in self._current:
            self._current[stage] = self._load(stage)
        return self._current[stage]

    def _load(self, stage: str) -> Receipt:
        wanted, receipt = self.graph[stage], load_receipt(self.store, stage)
        if receipt is None:
            raise MissingStageError(f"{stage} has no result in {self.store.place}; {_FIRST.format(stage)}")
        reads = set(self.graph.reads(stage, self.settings))
        if receipt.fingerprint != wanted.fingerprint(self.settings) or set(receipt.upstream) != reads:
            raise MissingStageError(f"{stage} was last made with other settings; {_FIRST.format(stage)}")
        for name, version in receipt.upstream.items():
            if self.receipt(name).version != version:
                raise MissingStageError(
                    f"{stage} was made for an earlier state of {name}; {_FIRST.format(stage)}"
                )
        return receipt

    def is_current(self, stage: str) -> bool:
        """Whether `receipt` finds a current result of a stage."""
        try:
            self.receipt(stage)
        except MissingStageError:
            return False
        return True

    def save(self, receipt: Receipt) -> None:
        """Make a receipt the current one of its stage."""
        save_receipt(self.store, receipt)
        known = self._current.get(receipt.stage)
        if known and known.version != receipt.version:
            # Other current results may depend on the replaced result.
            self._current.clear()
        self._current[receipt.stage] = receipt

    def once(self, name: str, version: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives; kept until another version is asked for."""
        if name not in self._kept or self._kept[name][0] != version:
            self._kept[name] = version, make()
        return self._kept[name][1]

    @property
    def view(self) -> View:
        """The accepted records, and the fragments that hold them."""
        if self.unstored:
            return self.unstored[0]
        file = self.receipt("raw_docs").files["view"]
        view: View = self.once("view", file, lambda: View.load(self.store, file))
        return view

    @property
    def records(self) -> Records:
        """Reads the stored records of the view."""
        key, kind = self.receipt("raw_docs").key, self.view.kind
        fragments = Fragments(self.store, key, self.unstored[1] if self.unstored else {})
        records: Records = self.once(
            "records", (key, kind), lambda: Records(fragments, kind, shapes_of(self.settings))
        )
        return records

    def index(self, name: str) -> np.ndarray:
        """An array of the index over the N records of the view, see `Fragments.column`."""
        return self.records.fragments.column(self.view.fragments, name)

    def text_halves(self) -> np.ndarray:
        """First half of the hash of each record's text, uint64 (N,)."""
        return self.records.fragments.text_halves(self.view.fragments)

    @property
    def copies(self) -> np.ndarray:
        """The first record with each record's text, int64 (N,): equal for copies of a text."""

        def first_of_each() -> np.ndarray:
            once = distinct(self.index("text"))
            return once.first[once.inverse]

        copies: np.ndarray = self.once("copies", self.receipt("raw_docs").version, first_of_each)
        return copies

    @property
    def are_first(self) -> np.ndarray:
        """Which records are the first with their text, bool (N,)."""
        return self.copies == np.arange(len(self.view))


def _unseen(store: Store, id: str) -> str:
    """Why a worker cannot use the store with this id; "" if it can."""
    try:
        id_there = store.id
    except DivOrderError as error:
        return f"cannot read the store: {error}"
    if id_there == id:
        return ""
    return (
        f"finds {'another' if id_there else 'no'} store at {store.place}; expected this one: set store.path to a "
        "folder of a file system that all nodes mount at the same place, or to object storage (s3://..., gs://..., "
        "az://...)"
    )


def stage_row(stage: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """The last run of a stage: `stage`, numbers of `documents`, `new` and `reused` documents, and `seconds`."""
    counted = {name: figures.get(f"{name}_documents") for name in ("new", "reused")}
    seconds = figures.get("seconds")
    return {"stage": stage, "documents": figures.get("documents"), **counted, "seconds": seconds}


def run_graph(
    graph: Graph, settings: Settings, progress: Progress | None = None, stages: Iterable[str] | None = None
) -> dict[str, Receipt]:
    """Run stages of a graph in order, by default all that an output needs. See `dagster_divorder.stages.run_all`."""
    stages = graph.needed(settings) if stages is None else tuple(stages)
    progress = progress or STANDARD_ERROR
    # Loading checks settings; settings built in Python are checked here.
    refuse_overlap(settings)
    store = store_at(settings.store.path)
    with store.lock(on_wait=progress.note):
        with contextlib.closing(Run(settings, store.open(), graph, progress)) as run:
            # A state is written before the first fragment: fragments without a state are refused.
            before = changing(store, partial(_without_lost_view, store)).results
            if not {OUTPUT, "raw_docs"}.isdisjoint(stages):
                refuse_foreign_files(store, settings)
            needed = graph.needed(settings)
            # A run that reads the input checks all that an output needs; other stages check themselves.
            checked = [*needed, *stages]
            if "raw_docs" not in stages:
                checked = [stage for stage in stages if stage not in needed]
            if checked:
                with progress("checking the settings"):
                    check_settings(run, checked)
            receipts = {stage: _run_one(run, stage) for stage in stages}
            publish(run, stages)
            changed = load_state(store).results != before
            if changed and all(map(run.is_current, needed)):
                remove_superseded(store, graph, stages)
        return receipts


def _without_lost_view(store: Store, state: State) -> State:
    """Without the receipt of raw_docs if one of its files is gone, such as a damaged one that was deleted."""
    receipts = dict(state.receipts)
    if "raw_docs" in receipts and not all(map(store.exists, receipts["raw_docs"].files.values())):
        del receipts["raw_docs"]
    return replace(state, receipts=receipts)


def check_settings(run: Run, stages: Iterable[str]) -> None:
    """Raise the errors in settings that can be found before these stages compute anything."""
    for name in dict.fromkeys(stages):
        run.graph[name].check(run)


def _run_one(run: Run, name: str) -> Receipt:
    # Otherwise memory that the previous stage freed would add to this stage's.
    give_back_memory()
    stage = run.graph[name]
    run.observed, run.memo = {}, {}
    start = time.perf_counter()
    try:
        with run.progress(name):
            decision = stage.decide(run)
            receipt = stage.make(run, decision)
    except Exception as error:
        # Store and output explain their errors; the rest comes from temporary files, such as a model in training.
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise explain_os_error(error, Path(error.filename or run.store.place)) from error
        if not is_out_of_memory(error):
            raise
        said = str(error).partition("\n")[0] or "no more said"
        raise DivOrderError(
            f"memory ran out in {name} ({type(error).__name__}: {said}): allow more (a container's quota, "
            "`ulimit -v`), or lower engine.workers, and run again: finished fragments are kept"
        ) from error
    seconds, figures = time.perf_counter() - start, receipt.figures
    facts = {**receipt.facts, "computed": decision.documents or figures["new_documents"]}
    receipt = replace(receipt, facts=facts, figures={**figures, **run.observed, "seconds": round(seconds, 3)})
    run.save(receipt)
    return receipt


def run_checks(graph: Graph, settings: Settings, stage: str | None = None) -> dict[str, Finding]:
    """Run all checks, or only those of a stage, on the last run's results; nothing is stored. Holds the store's
    lock. `every_record_in_output` takes about the time of writing the output; the others take about as long as a
    sort. Raises MissingStageError: there is no result under these settings; StoreError: the store cannot be read."""
    checks = [check for name, each in graph.items() if stage in (None, name) for check in each.checks]
    if not checks:
        return {}
    store, findings = store_at(settings.store.path), {}
    with store.lock():
        run = Run(settings, store.open(), graph, Silent())
        for check in checks:
            try:
                findings[check.name] = check.check(run)
            except DamagedFileError as error:
                remedy = "delete this file and run again"
                findings[check.name] = Finding(passed=False, text=str(error), remedy=remedy)
    return findings
