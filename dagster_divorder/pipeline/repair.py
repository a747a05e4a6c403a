"""What to do about a damaged file of the store: take away what can be made again, and know which stage makes it.

Results of stages come again from the stages before them, fragments and the view from the input. Fits are not made again
unasked, since a new fit changes the results of all data; damage to them is an error that names the remedy.
"""

from __future__ import annotations

from collections.abc import Container

from dagster_divorder.store.base import STATE, Store
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.state import drop_receipt


def discard(store: Store, name: str, stages: Container[str]) -> str | None:
    """Remove a damaged file, and what is of no use without it; return which of the stages makes it again.

    None, and nothing is removed, where no stage makes it again.
    """
    top, *parts = name.split("/")
    stage: str | None = None
    if top == "stages" or (top == STATE and parts):
        stage = parts[0]
    elif top in ("documents", "records", "views", "readings", "rejects", "schemas"):
        stage = "raw_docs"
    if stage is None or stage not in stages:
        return None
    if top in ("documents", "records"):
        # Content and index are of use only together.
        folder = top if top == "documents" else f"{top}/{parts[0]}"
        Fragments(store, folder).delete(parts[-1].split(".", 1)[0])
    if top != STATE:
        store.delete(name)
    if top == STATE or stage == "raw_docs":
        # The receipt of raw_docs leads to what has just been removed.
        drop_receipt(store, stage)
    return stage
