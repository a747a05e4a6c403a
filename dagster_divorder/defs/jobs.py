"""Jobs that people run by name. Each has all assets that it needs and no configuration to fill in."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_divorder.defs.neighbours import CorpusSelection
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.defs.settings import SETTINGS_NOTE, settings_file, settings_table
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.store.base import Store

CURATE = "curate"

SETTINGS = "divorder/settings"
"""Tag of a job and its runs: the settings file. The launchpad shows it."""

BEGUN = "divorder/begun"
"""Tag of a materialisation that the command line reports: start of its run, in seconds since 1970."""

STORE = "divorder/store"
"""Tag of a run: the store of a corpus without a prefix, as `store_names` names it."""

EVIDENCE = "evidence"
"""Stands in a job for all evidence that no other job makes."""

JOBS: dict[str, tuple[tuple[str, ...], str]] = {
    CURATE: ((OUTPUT,), "The curated output and everything it needs. Only what is new is computed."),
    "explore": (
        (EVIDENCE,),
        "Evidence for choosing settings: how many clusters, which vectors, which strategy; a map of the topics, "
        "and the diversity of the corpus.",
    ),
    "prove": (
        ("training_evidence",),
        "Small models trained on the same tokens in several orders: does the order help?",
    ),
    "report": (
        (EVIDENCE, "ordering_report", "ordering_animation"),
        "A report on the curated output to send to others, and its films.",
    ),
}
"""Job -> its assets, and its description."""


def jobs(pipeline: Pipeline) -> list[Any]:
    """The jobs of a pipeline; the page of each shows the settings in force."""
    graph, settings = pipeline.graph, pipeline.settings
    assets, asset_jobs = pipeline.specs, []
    file = settings_file(pipeline.file)
    shown: dict[str, Any] = {"settings_file": file, "settings": settings_table(settings)}
    named = {asset for wanted, _ in JOBS.values() for asset in wanted}
    evidence = set(graph.evidence) - named
    for name, (wanted, description) in JOBS.items():
        targets = [asset for asset in assets if asset in wanted or (EVIDENCE in wanted and asset in evidence)]
        selection = sorted(set(graph.needed(settings, *targets)) & assets.keys()) if targets else []
        if selection:
            asset_jobs.append(
                dg.define_asset_job(
                    pipeline.named(name),
                    CorpusSelection(pipeline, selection),
                    description=f"{description}\n\nSettings: {file}. {SETTINGS_NOTE}",
                    metadata=shown,
                    tags={SETTINGS: file},
                )
            )
    return asset_jobs


def store_tag(pipeline: Pipeline) -> str:
    """Name of the tag that holds this corpus's store in a run. A run may have several corpora."""
    return ".".join([STORE, *pipeline.key_prefix])


def store_names(store: Store) -> list[str]:
    """Possible values of the tag of a store: its id and its place; only its place before it has an id."""
    place = store.real_place
    try:
        return [store.id, place] if store.id else [place]
    except DivOrderError:  # the run explains it
        return [place]
