"""Removes old results: views, orders, plans and measures of earlier states of the corpus.

Each takes tens of bytes a record, and every append makes new ones. A run keeps the current result and the last few of
each stage (`store.state.HISTORY`), so that switching settings back costs nothing. Results of fragments, which appends
reuse, and fits stay until `divorder prune`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.stage import PinnedFit, WholeCorpus
from dagster_divorder.store.base import Store
from dagster_divorder.store.fits import FITS
from dagster_divorder.store.state import load_state

WHOLE = ("views", "readings", "rejects", "schemas")
"""Folders of raw_docs with a file for each state of the corpus."""


def retire(store: Store, graph: Graph, stages: Iterable[str]) -> None:
    """Remove the whole-corpus results of these stages that the state does not name."""
    named = {file for entry in load_state(store).entries() for file in entry.files.values()}
    for folder in _folders(store, graph, stages):
        if folder not in named:
            store.delete(*(name for name in store.list(folder) if name not in named))


def _folders(store: Store, graph: Graph, stages: Iterable[str]) -> Iterator[str]:
    for stage in stages:
        if stage == "raw_docs":
            yield from WHOLE
        elif isinstance(graph[stage], PinnedFit):
            yield from store.folders(f"{FITS}/{stage}")
        elif isinstance(graph[stage], WholeCorpus):
            yield from store.folders(f"stages/{stage}")
