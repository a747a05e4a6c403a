"""Removes files that are no longer needed, and words of deleted documents.

A complete run on a folder removes what none of the last `HISTORY` views and results needs (`remove_superseded`).
`divorder prune` removes all but the current ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.store.base import FORMAT_FILE, LOCK_FILE, STATE, Store
from dagster_divorder.store.fragments import RECORDS, Fragments, records_folder
from dagster_divorder.store.stages import RESULTS, embeddings_file
from dagster_divorder.store.state import State, changing, load_receipt, load_state
from dagster_divorder.store.view import Fragment, View
from dagster_divorder.write.curated import remove_beside

SPARED_SECONDS = 24 * 3600.0
"""On a bucket, `divorder prune` removes no younger file: a run may be about to name it."""
WHOLE = ("views", "rejects", "schemas")
"""Folders of raw_docs with a file for each state of the corpus."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune frees: bytes, and whether texts of deleted documents are among them."""

    bytes: int
    texts: bool


def remove_superseded(store: Store, graph: Graph, stages: Iterable[str]) -> None:
    """Remove fragments and their results that none of the last views has, and results of these stages that the state
    does not name. The caller is inside `Store.lock`."""
    if store.shared:
        return
    is_needed, old = _needed(store, load_state(store)), []
    for file in store.files():
        top, _, rest = file.partition("/")
        name = rest.partition("/")[0]
        # Results of fragments stay under other keys, too; other files of a stage that did not run may be half a result.
        of_fragments = top == RECORDS or (top == "stages" and isinstance(graph.get(name), PerDocument))
        may_go = of_fragments or name in stages or top in (*WHOLE, RESULTS)
        if may_go and not is_needed(file, of_fragments):
            old.append(file)
    if any(file.startswith(f"{RECORDS}/") for file in old):
        changing(store, lambda state: replace(state, removed=True))
    store.delete(*old)


def prune(graph: Graph, store: Store, *, dry_run: bool = False) -> Pruned:
    """Remove what is not needed. Texts of deleted documents go with everything that quotes them (`Stage.quotes`): names
    of clusters, examples, pictures, and the pages beside the output. The next run makes these again. Only a bootstrap
    base model's tokenizer and table still know words of deleted documents. dry_run: only tells what would go.

    Results under other settings go too; a run under those settings computes them again. Draws of held-out documents
    under other settings stay, because a new draw would hold out other documents.
    """
    state, deleted = load_state(store), _holds_deleted(store)
    quoting = {name for name, stage in graph.items() if stage.quotes} if deleted or state.removed else set()
    change = partial(_needed_state, graph, quoting)
    if quoting and not dry_run:
        remove_beside(store)
    # Saved before files are removed, so that the state never names a missing file.
    is_needed = _needed(store, change(state) if dry_run else changing(store, change))
    before = time.time() - SPARED_SECONDS if store.shared else math.inf
    freed = {name: size for name, size in store.files(before).items() if not is_needed(name, False)}
    if not dry_run:
        store.delete(*freed)
    return Pruned(sum(freed.values()), deleted)


def _holds_deleted(store: Store) -> bool:
    """Whether fragments hold a text that the current view lacks."""
    receipt = load_receipt(store, "raw_docs")
    if receipt is None:
        return False
    view, texts = View.load(store, receipt.files["view"]), np.empty(0, np.uint64)
    kept = {piece.name for piece in view.pieces}
    for folder in store.folders(RECORDS):
        fragments = Fragments(store, folder.partition("/")[2])
        gone = [Fragment(name, 0) for name in fragments.present() if name not in kept]
        texts = np.concatenate([texts, *(part[:, 0] for part in fragments.parts(gone, "text"))])
    if not len(texts):
        return False
    return not np.isin(texts, Fragments(store, receipt.key).text_halves(view.fragments)).all()


def _needed_state(graph: Graph, quoting: Set[str], state: State) -> State:
    """The part of the state that is needed: receipts, the results that they lead to, fits kept without a
    receipt, and the published plan; nothing of the stages that may quote deleted documents."""
    stages = graph.keys() - quoting
    receipts = {stage: receipt for stage, receipt in state.receipts.items() if stage in stages}
    results = {}
    for name, known in state.results.items():
        if name in quoting:
            continue
        stage, current = graph.get(name), receipts[name].version if name in receipts else ""
        results[name] = [
            result
            for result in known
            if result.version == current or (isinstance(stage, PinnedFit) and stage.outlives)
        ]
    last = max((at for at, plan in enumerate(state.plans) if plan.published), default=0)
    return State(receipts, results, state.outputs, state.plans[last:])


def _needed(store: Store, state: State) -> Callable[[str, bool], bool]:
    """Tells whether a state leads to a file, and takes whether results of needed fragments count under any key."""
    names = {file for entry in state.entries() for file in entry.files.values()}
    # The files with all vectors are named by their receipts.
    names |= {embeddings_file(receipt) for receipt in state.receipts.values()}
    names |= {FORMAT_FILE, LOCK_FILE, STATE}
    views = {entry.files["view"] for entry in state.entries() if "view" in entry.files}
    fragments = {
        piece.name for view in views if store.exists(view) for piece in View.load(store, view).pieces
    }
    folders = {f"stages/{name}/{receipt.key}" for name, receipt in state.receipts.items()}
    if "raw_docs" in state.receipts:
        records = records_folder(state.receipts["raw_docs"].key)
        folders |= {records, f"{records}/index"}

    def is_needed(file: str, any_key: bool) -> bool:
        # The files of a fit are named by their folder.
        folder, _, name = file.rpartition("/")
        of_fragment = name.split(".", 1)[0] in fragments and (any_key or folder in folders)
        return of_fragment or file in names or folder in names

    return is_needed
