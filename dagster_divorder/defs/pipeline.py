"""A pipeline in a Dagster project: stages under settings, with their names in the project."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.errors import SettingsError
from dagster_divorder.pipeline.graph import Graph, check_key_prefix
from dagster_divorder.settings import Settings


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages under settings, and how a Dagster project shows them.

    file: the settings file, None without one. key_prefix: first parts of every asset key; joined by underscores, they
    begin every other name. group_name: the group of all assets; None: a group for each part of the pipeline. upstream:
    asset -> the assets of others that write its files. tags, owners: of every asset. automation: whether runs start
    automatically. translation: maps the spec of an asset to the spec that the project shows. specs: asset -> spec,
    after translation. needed: the stages that the output needs. versions: asset -> `code_version` under `settings`.

    Raises:
        SettingsError: a part of the prefix is not a name; upstream names an asset that reads no files of others; or
            translation changes what the settings decide, or gives two assets one key.
    """

    graph: Graph
    settings: Settings
    file: Path | None = None
    key_prefix: tuple[str, ...] = ()
    group_name: str | None = None
    upstream: Mapping[str, Sequence[dg.AssetDep]] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    owners: Sequence[str] = ()
    automation: bool = True
    translation: Callable[[dg.AssetSpec], dg.AssetSpec] | None = None
    specs: Mapping[str, dg.AssetSpec] = field(init=False)
    needed: frozenset[str] = field(init=False)
    versions: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_key_prefix(self.key_prefix)
        object.__setattr__(self, "needed", frozenset(self.graph.needed(self.settings)))
        reads = self.graph.asset_upstream(self.settings)
        for asset in self.upstream:
            if asset not in self.files_read:
                reading = ", ".join(f"{name} ({setting})" for name, (setting, _) in self.files_read.items())
                raise SettingsError(
                    f"upstream names {asset!r}, which reads no files of others under these settings; the assets that "
                    f"do are {reading}"
                )
        self.versions.update({asset: self.code_version(asset) for asset in reads})
        specs = {asset: self._translated(self._spec(asset)) for asset in reads}
        assets: dict[dg.AssetKey, str] = {}
        for asset, spec in specs.items():
            if assets.setdefault(spec.key, asset) != asset:
                raise SettingsError(
                    f"translation gives both {assets[spec.key]} and {asset} the key {spec.key.to_user_string()!r}; "
                    "expected a different key for each asset, such as 'training/{{ spec.key.path[-1] }}'"
                )
        for asset, before in reads.items():
            deps: list[Any] = [*(specs[read].key for read in before), *self.upstream.get(asset, ())]
            specs[asset] = specs[asset].replace_attributes(deps=deps)
        object.__setattr__(self, "specs", specs)

    @property
    def files_read(self) -> dict[str, tuple[str, Sequence[str]]]:
        """Asset that reads files which others may write -> the setting that names the files, and their paths."""
        embedding, curriculum = self.settings.embedding.path, self.settings.curriculum.path
        reads: dict[str, tuple[str, Sequence[str]]] = {
            "raw_docs": ("input.paths", self.settings.input.paths),
            "external_embeddings": ("embedding.path", [str(embedding)] if embedding else []),
            "scores": ("curriculum.path", [str(curriculum)] if curriculum else []),
        }
        assets = self.graph.asset_upstream(self.settings)
        return {
            name: (setting, paths) for name, (setting, paths) in reads.items() if name in assets and paths
        }

    def _spec(self, asset: str) -> dg.AssetSpec:
        """What Dagster shows of an asset, without its deps."""
        stage = self.graph[asset]
        group = stage.group
        if group == "evidence" and asset in self.needed:
            group = "embedding"
        elif group in ("embedding", "ordering") and asset not in self.needed:
            # In the group of the output's assets its edges would cross theirs.
            group = "evidence"
        return dg.AssetSpec(
            [*self.key_prefix, asset],
            description=stage.description_under(self.settings),
            group_name=self.group_name or self.named(group),
            code_version=self.code_version(asset),
            kinds=set(stage.kinds_under(self.settings)),
            tags=self.tags,
            owners=self.owners,
        )

    def _translated(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        translated = self.translation(spec) if self.translation else spec
        for name in ("deps", "code_version", "partitions_def", "skippable"):
            if getattr(translated, name) != getattr(spec, name):
                remedy = "name your assets in upstream" if name == "deps" else "leave it out"
                raise SettingsError(
                    f"translation changes {name} of {spec.key.path[-1]}, which the settings decide; {remedy}"
                )
        return translated

    def key(self, asset: str) -> dg.AssetKey:
        """The key of one of our assets, whether or not these settings have it."""
        return self.specs[asset].key if asset in self.specs else dg.AssetKey([*self.key_prefix, asset])

    def named(self, name: str) -> str:
        """The name of a job, sensor, schedule, group or resource, with the prefix."""
        return "_".join([*self.key_prefix, name])

    def code_version(self, asset: str, settings: Settings | None = None) -> str:
        """Fingerprints of a stage and its parts, by default under the pipeline's own settings. Parts have no asset of
        their own, so a change of their settings shows here."""
        settings = settings or self.settings
        if settings == self.settings and (version := self.versions.get(asset)):
            return version
        return "+".join(self.graph[part].fingerprint(settings) for part in self.graph.step(settings, asset))
