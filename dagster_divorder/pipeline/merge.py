"""Merges the small fragments that small appends leave, and drops deleted rows.

Rows of fragments and of their results are copied; nothing is computed. The store is consistent after every step, so a
merge can be killed and run again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.store.base import Store
from dagster_divorder.store.compact import compact, is_small
from dagster_divorder.store.fragments import DOCUMENTS, Fragments, records_folder
from dagster_divorder.store.state import Receipt, Result, keep_result, load_receipt, save_receipt
from dagster_divorder.store.view import View

MERGE_FROM = 16
"""Number of small fragments that starts a merge. A lower number means fewer files and more rewriting."""


def merge_small(store: Store, graph: Graph) -> int:
    """Merge the fragments of the current view if many of them are small; returns the number of fragments removed."""
    receipt = load_receipt(store, "raw_docs")
    if receipt is None:
        return 0
    view = View.load(store, receipt.files["view"])
    if all(sum(map(is_small, fragments)) < MERGE_FROM for fragments in (view.documents, view.records)):
        return 0
    return len(rewrite(store, graph, receipt, view, drop_unused=False))


def rewrite(store: Store, graph: Graph, receipt: Receipt, view: View, *, drop_unused: bool) -> list[str]:
    """Compact the fragments of the current view, save a view of the result, then remove the replaced fragments and
    their results. Returns the names of the removed fragments."""
    record_results, document_results = (
        _result_folders(store, graph, unit) for unit in ("records", "documents")
    )
    rewritten = partial(compact, store, drop_unused=drop_unused)
    records = rewritten(records_folder(receipt.key), view.records, view.used_records(), record_results)
    documents = rewritten(DOCUMENTS, view.documents, view.used_documents(), document_results)
    if not records.dropped and not documents.dropped:
        return []
    compacted = View(
        kind=view.kind,
        records=records.fragments,
        documents=documents.fragments,
        record_row=records.row[view.record_row],
        document_row=documents.row[view.document_row],
    )
    old = receipt.files["view"]
    files = {**receipt.files, "view": compacted.save(store, receipt.version)}
    keep_result(store, "raw_docs", Result(key=receipt.version, version=receipt.version, files=files))
    save_receipt(store, replace(receipt, files=files))
    store.delete(old)
    # Record fragments go before the documents that they need, so that an interrupted removal leaves no broken
    # reference.
    for folder, dropped in ((records_folder(receipt.key), records.dropped), (DOCUMENTS, documents.dropped)):
        Fragments(store, folder).delete(*dropped)
    gone = {*records.dropped, *documents.dropped}
    for folder in (*record_results, *document_results):
        store.delete(*(stored for name, stored in store.hashed(folder).items() if name in gone))
    return sorted(gone)


def _result_folders(store: Store, graph: Graph, unit: str) -> list[str]:
    """Folders of the per-fragment results of "documents" or "records"."""
    stages = [stage.name for stage in graph.values() if isinstance(stage, PerDocument) and stage.unit == unit]
    return [folder for stage in stages for folder in store.folders(f"stages/{stage}")]
