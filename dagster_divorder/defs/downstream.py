"""Passes results to downstream assets as `Results`, an open `Export` or a path, by the annotation of their argument."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.errors import InputError, MissingStageError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.readers.export import SOURCES, Export, open_export, read_export_manifest
from dagster_divorder.results import Results
from dagster_divorder.settings.places import Place, is_url
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.state import load_receipt

RESULTS_IO = "divorder_results"
"""Key of the IO manager of our assets, before the prefix."""

EXPORTS = "exports"


def results_io(pipeline: Pipeline) -> dg.IOManagerDefinition:
    """The IO manager of a pipeline's assets. It only serves downstream assets; ours store their results themselves."""
    return dg.IOManagerDefinition(
        lambda context: ResultsIOManager(pipeline),
        config_schema={},
        description="Passes results to downstream assets. The annotation of the argument decides the type: "
        "dagster_divorder.results.Results, dagster_divorder.readers.export.Export or pathlib.Path.",
    )


class ResultsIOManager(dg.IOManager):
    """Opens the results of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        raise AssertionError(f"{context.asset_key} returns no value")

    def load_input(self, context: dg.InputContext) -> Results | Export | Path:
        """The result of an asset in the type of the argument's annotation. Without an annotation, `exports` gives an
        `Export`, and every other asset gives `Results`.

        Raises:
            InputError: as `_asked_for`.
            MissingStageError: the asset has never been made.
            StoreError: the export is damaged or being written.
        """
        key, metadata = context.asset_key, context.definition_metadata or {}
        kind, place = _asked_for(self._pipeline, key, context.dagster_type, metadata)
        store = store_of(self._pipeline.settings.store).open(create=False)
        if load_receipt(store, _name(self._pipeline, key)) is None:
            raise MissingStageError(
                f"{key.to_user_string()} has no result in {store.place}; materialise it first"
            )
        if kind is Results:
            return Results(store)
        if kind is Export:
            return open_export(place)
        if _name(self._pipeline, key) == EXPORTS:
            read_export_manifest(place)
        return place


def refuse_requests(graph: BaseAssetGraph[Any], pipeline: Pipeline) -> None:
    """Check the annotations of downstream assets before a run makes anything for them.

    Raises:
        dg.DagsterInvalidDefinitionError: an asset cannot be passed as its annotation asks; the message names both
            assets.
    """
    own = {spec.key for spec in pipeline.specs.values()}
    for downstream in {node.assets_def for node in graph.asset_nodes if node.parent_keys & own}:
        for name, key in downstream.node_keys_by_input_name.items():
            argument = downstream.node_def.input_def_named(name)
            if key in own and not argument.dagster_type.is_nothing and argument.input_manager_key is None:
                try:
                    _asked_for(pipeline, key, argument.dagster_type, argument.metadata)
                except InputError as error:
                    asset = min(downstream.keys).to_user_string()
                    raise dg.DagsterInvalidDefinitionError(f"{asset}, argument {name}: {error}") from None


def _name(pipeline: Pipeline, key: dg.AssetKey) -> str:
    """The asset of a key. `map_asset_specs` may have added a prefix."""
    return next((asset for asset, spec in pipeline.specs.items() if spec.key == key), key.path[-1])


def _asked_for(
    pipeline: Pipeline, key: dg.AssetKey, annotation: dg.DagsterType, metadata: Mapping[str, Any]
) -> tuple[Any, Path]:
    """The type in which one of our assets is passed on, and the folder of the `Export` or path.

    Raises:
        InputError: the annotation is of another type; several formats are exported and the metadata of the AssetIn name
            none; the format is not exported, or `Export` does not read it; or the folder is at a URL.
    """
    asset, shown = _name(pipeline, key), key.to_user_string()
    others: dict[str, list[type]] = {OUTPUT: [Path], EXPORTS: [Export, Path]}
    possible = [Results, *others.get(asset, [])]
    kind = annotation.typing_type
    if kind is Any:
        kind = Export if asset == EXPORTS else Results
    if kind not in possible:
        types = ", ".join(f"{type.__module__.partition('._')[0]}.{type.__name__}" for type in possible)
        raise InputError(
            f"{shown} cannot be passed as {annotation.display_name}; annotate the argument with one of {types}"
        )
    place: Place = pipeline.settings.output.path
    if asset == EXPORTS and kind is not Results:
        place = _exported(pipeline, shown, kind, metadata.get("format"))
    if kind is not Results and is_url(str(place)):
        raise InputError(
            f"{shown} lies at {place}, but {kind.__name__} needs local files; name the asset in deps, and copy its "
            "files to this machine"
        )
    return kind, Path(place)


def _exported(pipeline: Pipeline, shown: str, kind: type, named: str | None) -> Place:
    """The folder of the named format; by default of the only format that is exported, or that `Export` reads."""
    exports = pipeline.settings.exports
    choices = [name for name in exports.formats if kind is Path or name in SOURCES] or list(exports.formats)
    chosen = choices[0] if named is None and len(choices) == 1 else named
    if chosen not in exports.formats:
        raise InputError(
            f"{shown} has the formats {', '.join(exports.formats)}, but the AssetIn names {named or 'none of them'}; "
            f'name one: AssetIn(metadata={{"format": "{choices[0]}"}})'
        )
    if kind is Export and chosen not in SOURCES:
        raise InputError(
            f"{shown} has the format {chosen}, which only its own trainer reads; Export reads {', '.join(SOURCES)}: "
            "export one of them too (exports.formats), or annotate the argument with pathlib.Path"
        )
    return exports.path / chosen
