"""A pipeline in a Dagster project: stages under settings, with their names in the project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_divorder.errors import SettingsError
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.settings import Settings
from dagster_divorder.stages import asset_upstream

GROUPS = {
    "corpus": "raw_docs",
    "ordering": "scores subset_selection repeats greedy_order packed_sequences sequence_order diversity_metrics",
    "output": "exports curated_output",
    "report": "ordering_animation ordering_report",
}
"""Group -> assets. All others are in "embedding" if the output needs them, else in "evidence"."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages under settings, and their names in a Dagster project.

    key_prefix: first parts of every asset key; joined by underscores, they begin every other name. upstream: asset ->
    what writes its files, as `deps` takes it. specs: asset -> spec. needed: the stages that the output needs.

    Raises:
        SettingsError: upstream names an asset that reads no files of others.
    """

    graph: Graph
    settings: Settings
    key_prefix: tuple[str, ...] = ()
    upstream: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    specs: Mapping[str, dg.AssetSpec] = field(init=False)
    needed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needed", frozenset(self.graph.needed(self.settings)))
        assets = asset_upstream(self.graph, self.settings)
        # Their files, such as those of input.paths, may be written by an asset of the project.
        reading = [name for name in ("raw_docs", "external_embeddings") if name in assets]
        for asset in self.upstream:
            if asset not in reading:
                raise SettingsError(
                    f"upstream names {asset!r}; expected what reads files here: {', '.join(reading)}"
                )
        object.__setattr__(self, "specs", {name: self._spec(name, reads) for name, reads in assets.items()})

    def _spec(self, asset: str, reads: Sequence[str]) -> dg.AssetSpec:
        other = "embedding" if asset in self.needed else "evidence"
        group = next((group for group, assets in GROUPS.items() if asset in assets.split()), other)
        parts = self.graph.step(self.settings, asset)
        return dg.AssetSpec(
            self.key(asset),
            deps=[*map(self.key, reads), *self.upstream.get(asset, ())],
            description=self.graph[asset].description,
            group_name=self.named(group),
            # Parts have no asset of their own, so a change of their settings shows here.
            code_version="+".join(self.graph[part].fingerprint(self.settings) for part in parts),
        )

    @property
    def others(self) -> list[dg.AssetKey]:
        """The assets upstream that are not ours."""
        deps = {dep.asset_key for spec in self.specs.values() for dep in spec.deps}
        return sorted(deps - {spec.key for spec in self.specs.values()})

    def key(self, asset: str) -> dg.AssetKey:
        return dg.AssetKey([*self.key_prefix, asset])

    def named(self, name: str) -> str:
        """The name of a job, sensor, schedule, group or pool, with the prefix."""
        return "_".join([*self.key_prefix, name])
