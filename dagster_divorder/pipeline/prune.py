"""Removing what nothing needs any more: files no receipt leads to, and rows of deleted input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dagster_divorder.pipeline.ari_comparison import INFO as COMPARISON
from dagster_divorder.pipeline.cluster_names import STAGE as NAMES
from dagster_divorder.pipeline.cluster_names import name_clusters
from dagster_divorder.pipeline.cluster_table import FOLDER as TABLES
from dagster_divorder.pipeline.merge import DOCUMENT_STAGES, rewrite
from dagster_divorder.pipeline.refresh import SKETCH
from dagster_divorder.pipeline.space import STAGE_OF, embeddings_file
from dagster_divorder.settings import CODE_VERSIONS
from dagster_divorder.store.curated import LEDGERS, remove_beside
from dagster_divorder.store.fits import PINS, RECORDS, Fit, pin, read_fit, read_pin
from dagster_divorder.store.fragments import DOCUMENTS, Fragments, records_folder
from dagster_divorder.store.local import FORMAT_FILE, LEASE_FILE, LocalStore
from dagster_divorder.store.receipts import FOLDER as RECEIPTS
from dagster_divorder.store.receipts import Receipt, history_file, load_receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import View, offsets


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune frees (or freed): bytes by part of the store, such as `stages/clusters`, and deleted documents."""

    bytes: dict[str, int]
    documents: int


def plan_prune(store: LocalStore) -> Pruned:
    """What `prune` would free: files that neither the current view nor a current key needs, and rows of deleted input.

    Rows inside fragments are counted at their fragment's mean, so bytes are an estimate where fragments are mixed.
    """
    needed = _needed(store)
    freed: dict[str, int] = {}
    for name, size in store.files().items():
        if name not in needed:
            freed[_part(name)] = freed.get(_part(name), 0) + size
    receipt = load_receipt(store, "raw_docs")
    # Of documents in fragments that no view has any more, too.
    deleted = sum(len(index["id"]) for _, index in Fragments(store, DOCUMENTS).indexes())
    if receipt:
        view = View.load(store, receipt.files["view"])
        parts = (
            (DOCUMENTS, view.documents, view.document_row),
            (records_folder(receipt.key), view.records, view.record_row),
        )
        for folder, fragments, rows in parts:
            used = np.zeros(sum(fragment.rows for fragment in fragments), dtype=bool)
            used[rows] = True
            start = offsets(fragments)
            for at, fragment in enumerate(fragments):
                dead = 1 - used[start[at] : start[at + 1]].mean()
                size = int(dead * store.path(fragment.file).stat().st_size)
                freed[_part(folder)] = freed.get(_part(folder), 0) + size
            if folder == DOCUMENTS:
                deleted -= int(used.sum())
    return Pruned({part: size for part, size in sorted(freed.items()) if size}, deleted)


def prune(store: LocalStore) -> Pruned:
    """Remove what nothing needs; texts of deleted documents are then gone, and so is what shows words of them: names of
    clusters, examples, pictures, and the pages next to the output. Clusters are named anew from the documents that are
    left; the rest is made anew by the next run. (Only the tokenizer and the table of a bootstrap base model still know
    words of the documents that they were trained on.)

    Results under other settings go too: switching back to them computes them again.
    """
    store.clear_scratch()
    before = _sizes(store)
    planned = plan_prune(store)
    receipt = load_receipt(store, "raw_docs")
    if receipt:
        rewrite(store, receipt, View.load(store, receipt.files["view"]), drop_unused=True)
    if planned.documents:
        _forget_words(store)
        _name_anew(store)
    needed = _needed(store)
    unneeded = [name for name in store.files() if name not in needed]
    # Whatever remains of this if it is killed, no record is without its pin, and no pin without its fit.
    for name in sorted(unneeded, key=lambda name: (not name.startswith(RECORDS), not name.startswith(PINS))):
        store.delete(name)
    after = _sizes(store)
    freed = {part: size - after.get(part, 0) for part, size in sorted(before.items())}
    return Pruned({part: size for part, size in freed.items() if size > 0}, planned.documents)


def _forget_words(store: LocalStore) -> None:
    """Remove what was made to be looked at, and may have words of documents that are deleted now.

    Receipts stay where fits hang on them: a stage makes again what is missing of its result.
    """
    for stage in ("ordering_report", "ordering_animation"):
        store.delete(f"{RECEIPTS}/{stage}.json")
    # Names are in its picture too, which is drawn anew where they change; then nothing is to lead to the old one.
    store.delete(history_file("diversity_metrics"))
    maps = load_receipt(store, "cluster_map")
    shown = [maps.files[name] for name in ("map", "picture") if name in maps.files] if maps else []
    names = [f"{folder}/{NAMES}" for folder in (RECORDS, PINS)] + store.folders(f"fits/{NAMES}")
    for name in [*shown, *(name for folder in (*names, TABLES) for name in store.list(folder))]:
        store.delete(name)
    comparison = load_receipt(store, "ari_comparison")
    for name in store.list(f"{PINS}/ari_comparison"):
        # What it has found stays, since the clusters may rest on it.
        fit = read_pin(store, name)
        if fit and comparison and fit.folder == comparison.files["fit"]:
            files = read_fit(store, fit)
            fit = pin(
                store, fit.stage, Path(name).stem, {f: files[f] for f in (COMPARISON, SKETCH)}, fit.reason
            )
            named = {**comparison.files, "fit": fit.folder}
            replace(comparison, key=fit.hash, version=fit.hash, files=named).save(store)
    remove_beside(store)


def _name_anew(store: LocalStore) -> None:
    """Name the current clusters from the documents that are left: results are read without another run.

    Where the input has been read since, and has documents in no cluster yet, the next run names them.
    """
    raw_docs, clusters = (load_receipt(store, stage) for stage in ("raw_docs", "clusters"))
    if raw_docs is None or clusters is None:
        return
    view = View.load(store, raw_docs.files["view"])
    files = StageFiles(store, "clusters", clusters.key)
    if {fragment.name for fragment in view.documents} <= files.present().keys():
        labels = files.column(view.documents, "labels")
        fit = Fit("clusters", Path(clusters.files["fit"]).name, "")
        names = name_clusters(store, view, fit, labels, clusters.report["k"])
        replace(clusters, files={**clusters.files, "names": names.folder}).save(store)


def disk_use(store: LocalStore) -> dict[str, int]:
    """Bytes by part of the store."""
    return dict(sorted(_sizes(store).items()))


def _needed(store: LocalStore) -> set[str]:
    """Names of all files that the current receipts lead to."""
    receipts = {stage: receipt for stage in CODE_VERSIONS if (receipt := load_receipt(store, stage))}
    names = {FORMAT_FILE, LEASE_FILE, *store.list(LEDGERS), *(f"receipts/{stage}.json" for stage in receipts)}
    names |= {history_file(stage) for stage in receipts}
    fits: set[str] = set()
    for receipt in receipts.values():
        for file in receipt.files.values():
            if file.startswith("fits/"):
                fits.add(file)
                names.update(store.list(file))
            else:
                names.add(file)
    for folder in store.folders(PINS):
        for name in store.list(folder):
            fit = read_pin(store, name)
            if fit and fit.folder in fits:
                names.add(name)
    for folder in store.folders(RECORDS):
        for name in store.list(folder):
            pin = name.replace(RECORDS, PINS, 1)
            # A record goes with its pin, so that what is pruned can be fitted again; that of a lost pin stays.
            if pin in names or not store.exists(pin):
                names.add(name)
    names |= {embeddings_file(receipts[stage]) for stage in STAGE_OF.values() if stage in receipts}
    if "raw_docs" in receipts:
        names |= _needed_by_view(store, receipts)
    return names


def _needed_by_view(store: LocalStore, receipts: dict[str, Receipt]) -> set[str]:
    raw_docs = receipts["raw_docs"]
    view = View.load(store, raw_docs.files["view"])
    documents = {fragment.name for fragment in view.documents}
    records = {fragment.name for fragment in view.records}
    of_documents = [DOCUMENTS, f"{DOCUMENTS}/index"]
    of_documents += [
        f"stages/{stage}/{receipts[stage].key}" for stage in DOCUMENT_STAGES if stage in receipts
    ]
    if "greedy_order" in receipts:
        of_documents += [
            folder for folder in [receipts["greedy_order"].report.get("difficulty_folder")] if folder
        ]
    of_records = [records_folder(raw_docs.key), f"{records_folder(raw_docs.key)}/index"]
    if "greedy_order" in receipts:
        of_records.append(receipts["greedy_order"].report["columns_folder"])
    return {
        file
        for folders, fragments in ((of_documents, documents), (of_records, records))
        for folder in folders
        for name, file in store.sealed(folder).items()
        if name in fragments
    }


def _part(name: str) -> str:
    top, _, rest = name.partition("/")
    return f"{top}/{rest.split('/')[0]}" if top in ("stages", "fits") else top


def _sizes(store: LocalStore) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, size in store.files().items():
        sizes[_part(name)] = sizes.get(_part(name), 0) + size
    return sizes
