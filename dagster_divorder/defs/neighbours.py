"""Refuses conflicts between a corpus and the other corpora and assets of its Dagster project.

Dagster resolves jobs when definitions load, and knows the whole project then: the selection of our jobs checks it.
`dagster asset materialize` resolves no jobs, so each step checks it too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import dagster as dg
from dagster._check import CheckError

from dagster_divorder.defs.downstream import refuse_requests
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.defs.settings import settings_file
from dagster_divorder.settings import fixed_beginning, is_in, written_places
from dagster_divorder.settings.places import OBJECT_STORES, is_url, real_place

if TYPE_CHECKING:
    from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

CORPUS, SETTINGS = "divorder/corpus", "divorder/settings"

WRITES = ("dagster/uri", "uri", "path")
"""Metadata in which an asset states where it writes."""


def corpus_metadata(pipeline: Pipeline) -> dict[str, str]:
    """Metadata of each asset of a corpus: the prefix of its names, its settings file, and the folders that runs
    write."""
    places = {f"divorder/{key}": str(place) for key, place in written_places(pipeline.settings).items()}
    return {CORPUS: "_".join(pipeline.key_prefix), SETTINGS: settings_file(pipeline.file), **places}


class CorpusSelection(dg.AssetSelection):
    """Selects assets of a corpus; checks the project when Dagster resolves it."""

    def __init__(self, pipeline: Pipeline, assets: Sequence[str]) -> None:
        self.pipeline, self.selected = pipeline, dg.AssetSelection.assets(*map(pipeline.key, assets))

    def resolve_inner(self, asset_graph: BaseAssetGraph, allow_missing: bool) -> AbstractSet[dg.AssetKey]:
        """The keys of the assets.

        Raises:
            dg.DagsterInvalidDefinitionError: as `refuse_conflicts`.
        """
        refuse_conflicts(asset_graph, self.pipeline)
        return self.selected.resolve_inner(asset_graph, allow_missing=allow_missing)


def refuse_conflicts_in_run(context: dg.AssetExecutionContext, pipeline: Pipeline) -> None:
    """`refuse_conflicts` in a step."""
    try:
        graph = context.repository_def.asset_graph
    except CheckError:  # `dg.materialize` knows only the assets of the run.
        graph = context.job_def.asset_layer.asset_graph
    refuse_conflicts(graph, pipeline)


def refuse_conflicts(graph: BaseAssetGraph, pipeline: Pipeline) -> None:
    """Check that corpora write to separate folders, that upstream assets write what this corpus reads, and that
    downstream assets ask for results that exist.

    Raises:
        dg.DagsterInvalidDefinitionError: two of them conflict; the message names both.
    """
    refuse_requests(graph, pipeline)
    own = corpus_metadata(pipeline)
    corpora: dict[str, Mapping[str, str]] = {}
    for node in graph.asset_nodes:
        if CORPUS in node.metadata:
            metadata = {key: str(_plain(value)) for key, value in node.metadata.items()}
            corpora.setdefault(metadata[CORPUS], metadata)
    for name, other in corpora.items():
        if name != own[CORPUS]:
            _refuse_overlap(own, other)
    for asset, deps in pipeline.upstream.items():
        for dep in deps:
            if graph.has(dep.asset_key):
                _refuse_elsewhere(pipeline, asset, dep.asset_key, graph.get(dep.asset_key).metadata)


def _refuse_overlap(own: Mapping[str, str], other: Mapping[str, str]) -> None:
    keys = [f"divorder/{key}" for key in ("store.path", "output.path", "exports.path")]
    for mine, theirs in product([key for key in keys if key in own], [key for key in keys if key in other]):
        here, there = real_place(own[mine]), real_place(other[theirs])
        if is_in(here, there) or is_in(there, here):
            raise dg.DagsterInvalidDefinitionError(
                f"{_key_and_place(own, mine)} and {_key_and_place(other, theirs)} overlap; expected separate folders "
                "for each corpus of a project"
            )


def _key_and_place(corpus: Mapping[str, str], key: str) -> str:
    name = f"the corpus {corpus[CORPUS]!r}" if corpus[CORPUS] else "the corpus without a prefix"
    return f"{key.removeprefix('divorder/')} {corpus[key]} of {name} ({corpus[SETTINGS]})"


def _refuse_elsewhere(
    pipeline: Pipeline, asset: str, upstream: dg.AssetKey, metadata: Mapping[str, Any]
) -> None:
    setting, paths = pipeline.files_read[asset]
    folders = [real_place(fixed_beginning(path)) for path in paths]
    for key in WRITES:
        place = _file_place(str(_plain(metadata.get(key, ""))))
        if place and not any(is_in(place, folder) or is_in(folder, place) for folder in folders):
            raise dg.DagsterInvalidDefinitionError(
                f"asset {upstream.to_user_string()} writes {place} according to its metadata {key!r}, but "
                f"{pipeline.key(asset).to_user_string()} reads {', '.join(paths)} ({setting} in "
                f"{settings_file(pipeline.file)}); expected a place that {setting} names: change one of them, or take "
                "the asset out of upstream"
            )


def _file_place(text: str) -> str:
    """The real place that an absolute path, file: URL or object store URL names; "" for any other text, such as the
    name of a table, a web page or a relative path."""
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
    known = text.partition("://")[0] in (*OBJECT_STORES, "hf") if is_url(text) else os.path.isabs(text)
    return real_place(text.rstrip("/") or os.sep) if known else ""


def _plain(value: Any) -> Any:
    """The plain value of an entry of metadata."""
    return value.value if isinstance(value, dg.MetadataValue) else value
