"""Removes files that are no longer needed, and words of deleted documents.

A complete run on a folder removes what none of the last `HISTORY` views and results needs (`remove_superseded`).
`divorder prune` removes all but the current ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.stage import PerDocument, WholeCorpus
from dagster_divorder.store.base import FORMAT_FILE, LOCK_FILE, STATE, Store
from dagster_divorder.store.fits import FITS
from dagster_divorder.store.fragments import RECORDS, Fragments, records_folder
from dagster_divorder.store.space import RESULTS, embeddings_file
from dagster_divorder.store.state import (
    State,
    changing,
    load_receipt,
    load_state,
)
from dagster_divorder.store.view import Fragment, View
from dagster_divorder.write.curated import remove_beside

WHOLE = ("views", "rejects", "schemas")
"""Folders of raw_docs with a file for each state of the corpus."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune frees: bytes by part of the store, such as `stages/clusters`, and the number of deleted
    documents."""

    bytes: dict[str, int]
    documents: int


def disk_use(store: Store) -> dict[str, int]:
    """Bytes by part of the store, sorted."""
    return _by_part(store.files())


def _by_part(sizes: dict[str, int]) -> dict[str, int]:
    parts = Counter[str]()
    for name, size in sizes.items():
        top, _, rest = name.partition("/")
        parts[f"{top}/{rest.split('/')[0]}" if top in ("stages", "fits") else top] += size
    return dict(sorted(parts.items()))


def remove_superseded(store: Store, graph: Graph, stages: Iterable[str]) -> None:
    """Remove fragments and their results that none of the last views has, and results of these stages that the state
    does not name. The caller is inside `Store.lock`."""
    if store.shared:
        return
    state = load_state(store)
    pieces, named = _pieces(store, state), _named(state)
    old = {
        folder: [file for file in store.list(folder) if _piece_of(file) not in pieces]
        for folder in (*_fragment_folders(store), *_result_folders(store, graph))
    }
    if any(old[folder] for folder in _fragment_folders(store)):
        changing(store, lambda state: replace(state, removed=True))
    for files in old.values():
        store.delete(*files)
    for folder in _whole_folders(store, graph, stages):
        if folder not in named:
            store.delete(*(file for file in store.list(folder) if file not in named))


def plan_prune(graph: Graph, store: Store) -> Pruned:
    """What `prune` would free."""
    needed = _needed(store, graph)
    freed = {name: size for name, size in store.removable().items() if name not in needed}
    return Pruned(_by_part(freed), _deleted_documents(store))


def prune(graph: Graph, store: Store) -> Pruned:
    """Remove what is not needed. Texts of deleted documents go with everything that quotes them (`Stage.quotes`): names
    of clusters, examples, pictures, and the pages beside the output. The next run makes these again. Only a bootstrap
    base model's tokenizer and table still know words of deleted documents.

    Results under other settings go too; a run under those settings computes them again. Draws of held-out documents
    under other settings stay, because a new draw would hold out other documents.
    """
    before, deleted = disk_use(store), _deleted_documents(store)
    if deleted or load_state(store).removed:
        changing(store, lambda state: _without_quotes(graph, state))
        remove_beside(store)
    # Saved before files are removed, so that the state never names a missing file.
    changing(store, lambda state: _needed_state(store, graph, state))
    needed = _needed(store, graph)
    store.delete(*(name for name in store.removable() if name not in needed))
    after = disk_use(store)
    freed = {part: size - after.get(part, 0) for part, size in before.items()}
    return Pruned({part: size for part, size in freed.items() if size > 0}, deleted)


def _deleted_documents(store: Store) -> int:
    """The number of distinct texts that fragments hold and the current view lacks."""
    receipt = load_receipt(store, "raw_docs")
    if receipt is None:
        return 0
    view = View.load(store, receipt.files["view"])
    kept, texts = {piece.name for piece in view.pieces}, np.empty(0, np.uint64)
    for folder in store.folders(RECORDS):
        fragments = Fragments(store, folder.partition("/")[2])
        gone = [Fragment(name, 0) for name in fragments.present() if name not in kept]
        texts = np.unique(np.concatenate([texts, *(part[:, 0] for part in fragments.parts(gone, "text"))]))
    # Without any, the current fragments are not read.
    if len(texts):
        for part in Fragments(store, receipt.key).parts(view.fragments, "text"):
            texts = np.setdiff1d(texts, part[:, 0])
    return len(texts)


def _without_quotes(graph: Graph, state: State) -> State:
    """Without the results that may quote deleted documents."""
    quoting = {name for name, stage in graph.items() if stage.quotes}
    receipts = {name: receipt for name, receipt in state.receipts.items() if name not in quoting}
    results = {name: known for name, known in state.results.items() if name not in quoting}
    return replace(state, receipts=receipts, results=results)


def _needed_state(store: Store, graph: Graph, state: State) -> State:
    """The part of the state that is needed: receipts, the results that they lead to, fits kept without a
    receipt, and the published plan."""
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
    return State(receipts, results, state.outputs, state.plans[last:])


def _needed(store: Store, graph: Graph) -> set[str]:
    """Names of all files that the needed state leads to."""
    state = _needed_state(store, graph, load_state(store))
    names = {FORMAT_FILE, LOCK_FILE, STATE, *_named(state)}
    for entry in state.entries():
        names.update(store.list(entry.files["fit"]) if "fit" in entry.files else ())
    if "raw_docs" in state.receipts:
        pieces, records = _pieces(store, state), records_folder(state.receipts["raw_docs"].key)
        current = [f"stages/{name}/{receipt.key}" for name, receipt in state.receipts.items()]
        folders = [records, f"{records}/index"]
        folders += [folder for folder in _result_folders(store, graph) if folder in current]
        names |= {file for folder in folders for file in store.list(folder) if _piece_of(file) in pieces}
    return names


def _named(state: State) -> set[str]:
    """Files, and folders of fits, that the state names; and the current files with all vectors."""
    named = {file for entry in state.entries() for file in entry.files.values()}
    return named | {embeddings_file(receipt) for receipt in state.receipts.values()}


def _pieces(store: Store, state: State) -> set[str]:
    """Names of the fragments of all views that the state names."""
    views = {entry.files["view"] for entry in state.entries() if "view" in entry.files}
    return {piece.name for view in views if store.exists(view) for piece in View.load(store, view).pieces}


def _piece_of(file: str) -> str:
    """The fragment of a file of a fragment, or of its result."""
    return file.rpartition("/")[2].split(".", 1)[0]


def _fragment_folders(store: Store) -> Iterator[str]:
    for folder in store.folders(RECORDS):
        yield from (folder, f"{folder}/index")


def _result_folders(store: Store, graph: Graph) -> Iterator[str]:
    """Folders of results of fragments."""
    for folder in store.folders("stages"):
        stage = graph.get(folder.partition("/")[2])
        if isinstance(stage, PerDocument):
            yield from store.folders(folder)


def _whole_folders(store: Store, graph: Graph, stages: Iterable[str]) -> Iterator[str]:
    """Folders of results of the whole corpus."""
    yield from (*WHOLE, RESULTS)
    for stage in stages:
        if isinstance(graph[stage], PinnedFit):
            yield from store.folders(f"{FITS}/{stage}")
        elif isinstance(graph[stage], WholeCorpus):
            yield from store.folders(f"stages/{stage}")
