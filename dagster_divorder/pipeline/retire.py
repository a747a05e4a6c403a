"""Retiring results that time has passed: views, orders, plans and measures of earlier states of the corpus.

Each takes tens of bytes a record and is made anew by every append, so a run keeps the current ones and those of the
last few results of each stage (`store.state.HISTORY`), to which settings can be switched back for free. Results of a
fragment, which appends reuse, and fits stay until `divorder prune`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.stage import PinnedFit, WholeCorpus
from dagster_divorder.store.base import Store
from dagster_divorder.store.fits import FITS
from dagster_divorder.store.state import load_state

WHOLE = ("views", "readings", "rejects", "schemas")
"""Folders of what raw_docs makes of the corpus as a whole."""


def retire(store: Store, graph: Graph, stages: Iterable[str]) -> None:
    """Remove whole-corpus results of stages that have run which the state does not name."""
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
