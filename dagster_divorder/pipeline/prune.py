"""Removes what is no longer needed: files that no receipt leads to, and rows of deleted input."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, replace

from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import MissingStageError
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument, PinnedFit, Stage
from dagster_divorder.settings import Settings
from dagster_divorder.store.base import FORMAT_FILE, LEASE_FILE, STATE, Store
from dagster_divorder.store.fragments import RECORDS, records_folder
from dagster_divorder.store.space import embeddings_file
from dagster_divorder.store.state import (
    COPIES,
    Receipt,
    State,
    drop_receipt,
    keep_copy,
    load_state,
    save_results,
    save_state,
)
from dagster_divorder.store.view import View
from dagster_divorder.write.curated import remove_beside


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune frees: bytes by part of the store, such as `stages/clusters`, and the number of deleted
    documents."""

    bytes: dict[str, int]
    documents: int


def plan_prune(graph: Graph, store: Store) -> Pruned:
    """What `prune` would free: files that neither the current view nor a current key needs, and rows of deleted input.

    A row counts as the mean size of its fragment's rows, so bytes are an estimate.
    """
    needed, freed = _needed(store, graph), Counter[str]()
    for name, size in store.files().items():
        if name not in needed:
            freed[_part(name)] += size
    deleted = any(name.startswith(f"{RECORDS}/") and name not in needed for name in store.files())
    return Pruned({part: size for part, size in sorted(freed.items()) if size}, int(deleted))


def prune(graph: Graph, settings: Settings, store: Store) -> Pruned:
    """Remove what is not needed. Texts of deleted documents go with everything that quotes them (`Stage.quotes`): names
    of clusters, examples, pictures, and the pages beside the output. Current clusters get new names from the remaining
    documents; the next run makes the rest. Only a bootstrap base model's tokenizer and table still know words of
    deleted documents.

    Results under other settings go too; a run under those settings computes them again. Draws of held-out documents
    under other settings stay, because a new draw would hold out other documents.
    """
    store.clear_scratch()
    before = disk_use(store)
    planned = plan_prune(graph, store)
    if planned.documents:
        quoting = [stage for stage in graph.values() if stage.quotes]
        for stage in quoting:
            _forget_quotes(store, stage)
        remove_beside(store)
        with contextlib.closing(Run(settings, store, graph, Silent())) as run:
            _remake_fits(run, quoting)
    # Saved before files are removed, so that the state never names a missing file.
    save_state(store, _needed_state(store, graph))
    keep_copy(store)
    needed = _needed(store, graph)
    store.delete(*(name for name in store.files() if name not in needed))
    after = disk_use(store)
    freed = {part: size - after.get(part, 0) for part, size in before.items()}
    return Pruned({part: size for part, size in freed.items() if size > 0}, planned.documents)


def _forget_quotes(store: Store, stage: Stage) -> None:
    """Remove the results of a stage that may quote deleted documents."""
    drop_receipt(store, stage.name)
    save_results(store, stage.name, [])
    if not isinstance(stage, PinnedFit):
        for folder in store.folders(f"stages/{stage.name}"):
            store.delete(*store.hashed(folder).values())


def _remake_fits(run: Run, stages: list[Stage]) -> None:
    """Make fits that quote documents again, so that results can be read before the next run."""
    for stage in stages:
        if isinstance(stage, PinnedFit) and stage.when(run.settings):
            with contextlib.suppress(
                MissingStageError
            ):  # a result that it reads is not current: the next run makes it
                run.save(stage.make(run, stage.decide(run)))


def disk_use(store: Store) -> dict[str, int]:
    """Bytes by part of the store, sorted."""
    sizes = Counter[str]()
    for name, size in store.files().items():
        sizes[_part(name)] += size
    return dict(sorted(sizes.items()))


def _needed_state(store: Store, graph: Graph) -> State:
    """The part of the state that is needed: receipts, the results that they lead to, fits kept without a
    receipt, and the published plan."""
    state = load_state(store)
    receipts = {stage: receipt for stage, receipt in state.receipts.items() if stage in graph}
    results = {}
    for name, known in state.results.items():
        stage, current = graph.get(name), receipts[name].version if name in receipts else ""
        results[name] = [
            result
            for result in known
            if result.version == current
            or (isinstance(stage, PinnedFit) and stage.outlives(store.list(result.files["fit"])))
        ]
    last = max((at for at, plan in enumerate(state.plans) if plan.published), default=0)
    return replace(state, receipts=receipts, results=results, plans=state.plans[last:])


def _needed(store: Store, graph: Graph) -> set[str]:
    """Names of all files that the needed state leads to."""
    state = _needed_state(store, graph)
    names = {FORMAT_FILE, LEASE_FILE, STATE, *store.list(COPIES)}
    for entry in state.entries():
        fit = entry.files.get("fit")
        names.update(store.list(fit) if fit else entry.files.values())
    names |= {embeddings_file(receipt) for receipt in state.receipts.values()}
    if "raw_docs" in state.receipts:
        names |= _needed_by_view(store, graph, state.receipts)
    return names


def _needed_by_view(store: Store, graph: Graph, receipts: dict[str, Receipt]) -> set[str]:
    view = View.load(store, receipts["raw_docs"].files["view"])
    records = records_folder(receipts["raw_docs"].key)
    folders = [records, f"{records}/index"]
    for stage in graph.values():
        if isinstance(stage, PerDocument) and stage.name in receipts:
            folders.append(f"stages/{stage.name}/{receipts[stage.name].key}")
    wanted = {piece.name for piece in view.pieces}
    return {file for folder in folders for name, file in store.hashed(folder).items() if name in wanted}


def _part(name: str) -> str:
    top, _, rest = name.partition("/")
    return f"{top}/{rest.split('/')[0]}" if top in ("stages", "fits") else top
