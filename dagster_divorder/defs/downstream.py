"""What an asset downstream is handed, by the annotation of its argument: `Results`, an open `Export`, a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

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
    """The IO manager of a pipeline's assets. Assets downstream read by it; ours store their results themselves."""
    return dg.IOManagerDefinition(
        lambda context: ResultsIOManager(pipeline),
        config_schema={},
        description="Hands results to assets downstream, by the annotation of their argument: "
        "dagster_divorder.results.Results, dagster_divorder.readers.export.Export or pathlib.Path.",
    )


class ResultsIOManager(dg.IOManager):
    """Opens the results of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._settings = pipeline.settings
        self._assets = {spec.key: asset for asset, spec in pipeline.specs.items()}

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        raise AssertionError(f"{context.asset_key} returns no value")

    def load_input(self, context: dg.InputContext) -> Results | Export | Path:
        """The result of an asset in the type that the argument is annotated with; without an annotation, an `Export` of
        exports and `Results` of all other assets.

        Raises:
            InputError: another type; several formats are exported and the metadata of the AssetIn name none; a format
                that is not exported, or that `Export` does not read; the path of a URL.
            MissingStageError: the asset has never been made.
            StoreError: the export is damaged or being written.
        """
        key = context.asset_key.to_user_string()
        # `map_asset_specs` may have put a prefix before ours.
        asset = self._assets.get(context.asset_key, context.asset_key.path[-1])
        store = store_of(self._settings.store).open(create=False)
        if load_receipt(store, asset) is None:
            raise MissingStageError(f"{key} has no result in {store.place}; materialise it first")
        possible: dict[Any, Callable[[], Results | Export | Path]] = {Results: lambda: Results(store)}
        if asset == OUTPUT:
            possible[Path] = lambda: _local(key, self._settings.output.path)
        if asset == EXPORTS:
            possible[Export] = lambda: open_export(self._exported(context, *SOURCES))
            possible[Path] = lambda: _whole(_local(key, self._exported(context)))
        annotated = context.dagster_type.typing_type
        if annotated is Any:
            annotated = Export if asset == EXPORTS else Results
        if annotated not in possible:
            types = ", ".join(f"{kind.__module__.partition('._')[0]}.{kind.__name__}" for kind in possible)
            raise InputError(
                f"{key} cannot be handed over as {context.dagster_type.display_name}; annotate the argument with one "
                f"of {types}"
            )
        return possible[annotated]()

    def _exported(self, context: dg.InputContext, *able: str) -> Place:
        """The folder of the format that the metadata of the AssetIn name, by default of the only one that is exported.
        able: the formats that count for this default; without them all do."""
        exports = self._settings.exports
        choices = [name for name in exports.formats if name in able or not able] or list(exports.formats)
        named = (context.definition_metadata or {}).get("format", choices[0] if len(choices) == 1 else None)
        if named not in exports.formats:
            key, formats = context.asset_key.to_user_string(), ", ".join(exports.formats)
            raise InputError(
                f"{key} has the formats {formats}, and the AssetIn names {named or 'none of them'}; name one: "
                f'AssetIn(metadata={{"format": "{choices[0]}"}})'
            )
        return exports.path / named


def _whole(folder: Path) -> Path:
    read_export_manifest(folder)
    return folder


def _local(key: str, place: Place) -> Path:
    if is_url(str(place)):
        raise InputError(
            f"{key} lies at {place}, which is no path of this machine; name the asset in deps, and read it from there"
        )
    return Path(place)
