"""Jobs: what people run by name, each with all that it needs, unattended and without a launchpad to fill in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.defs.metadata import SETTINGS_NOTE, settings_file, settings_table
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.graph import OUTPUT, Graph
from dagster_divorder.settings import Settings
from dagster_divorder.store.base import Store

CURATE = "curate"

SETTINGS = "divorder/settings"
"""Tag of a job and its runs, which the launchpad shows: the settings file."""

STORE = "divorder/store"
"""Tag of a run: the store that it writes to, as `store_names` has it."""

EVIDENCE = "evidence"
"""In a job: all evidence that no other job is for."""

JOBS: dict[str, tuple[tuple[str, ...], str]] = {
    CURATE: ((OUTPUT,), "The curated output and all that it needs; only what is new is computed."),
    "explore": (
        (EVIDENCE,),
        "Evidence to choose settings by: how many clusters, which vectors, which strategy, a map of the topics, how "
        "many different things there are, and near copies.",
    ),
    "prove": (
        ("training_evidence",),
        "Small models trained on the same tokens in several orders: does the order help?",
    ),
    "report": (
        (EVIDENCE, "ordering_report", "ordering_animation"),
        "The report to send to someone, and the films, of the curated output.",
    ),
}
"""Job -> the assets it is for, and its description."""


def jobs(graph: Graph, settings: Settings, file: Path | None) -> list[Any]:
    """The jobs that these stages allow, each with the settings in force on its page."""
    assets, made = graph.asset_upstream(settings), []
    shown: dict[str, Any] = {"settings_file": settings_file(file), "settings": settings_table(settings)}
    named = {asset for wanted, _ in JOBS.values() for asset in wanted}
    evidence = set(graph.evidence) - named
    for name, (wanted, description) in JOBS.items():
        targets = [asset for asset in assets if asset in wanted or (EVIDENCE in wanted and asset in evidence)]
        selection = sorted(set(graph.needed(settings, *targets)) & assets.keys()) if targets else []
        if selection:
            selected = dg.AssetSelection.assets(*selection)
            made.append(
                dg.define_asset_job(
                    name,
                    selected,
                    description=f"{description}\n\nSettings: {settings_file(file)}. {SETTINGS_NOTE}",
                    metadata=shown,
                    tags={SETTINGS: settings_file(file)},
                )
            )
    return made


def store_names(store: Store) -> list[str]:
    """What runs on a store are tagged with: its id, and until there is one its place."""
    place = store.real_place
    try:
        return [store.id, place] if store.id else [place]
    except DivOrderError:  # a run says what is wrong with it
        return [place]
