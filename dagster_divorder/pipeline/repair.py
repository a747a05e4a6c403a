"""Repairs damage in the store: removes a damaged file that can be made again, and names the stage that makes it.

Results are made again from the stages before them, fragments and the view from the input. Fits are not: a new fit
changes the results of all data, so a damaged fit is an error that names the remedy.
"""

from __future__ import annotations

from collections.abc import Container

from dagster_divorder.store.base import STATE, Store
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.state import drop_receipt


def discard(store: Store, name: str, stages: Container[str]) -> str | None:
    """Remove a damaged file, and files that are useless without it. Returns the stage that makes it again; if there is
    none, removes nothing and returns None."""
    top, *below = name.split("/")
    stage: str | None = None
    if top == "stages" or (top == STATE and below):
        stage = below[0]
    elif top in ("documents", "records", "views", "readings", "rejects", "schemas"):
        stage = "raw_docs"
    if stage is None or stage not in stages:
        return None
    if top in ("documents", "records"):
        # Content and index of a fragment are useless without each other.
        folder = top if top == "documents" else f"{top}/{below[0]}"
        Fragments(store, folder).delete(below[-1].split(".", 1)[0])
    if top != STATE:
        store.delete(name)
    if top == STATE or stage == "raw_docs":
        # The receipt of raw_docs names files that have just been removed.
        drop_receipt(store, stage)
    return stage
