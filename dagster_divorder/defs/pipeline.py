"""A pipeline in a Dagster project: stages under settings, with their names in the project."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.errors import SettingsError
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.stages import EVIDENCE

REPORT = "ordering_report"
GROUPS = {
    "corpus": {"raw_docs": "parquet json"},
    "embedding": {
        "base_model": "huggingface",
        "token_counts": "huggingface",
        "shallow_embeddings": "numpy",
        "deep_embeddings": "huggingface pytorch",
        "gradient_embeddings": "huggingface pytorch",
        "external_embeddings": "numpy",
        "clusters": "faiss",
    },
    "ordering": {
        "scores": "numpy",
        "subset_selection": "numpy",
        "repeats": "numpy",
        **dict.fromkeys(("greedy_order", "packed_sequences", "sequence_order"), "numpy numba"),
        "diversity_metrics": "numpy numba",
    },
    "output": {"exports": "parquet", "curated_output": "json parquet"},
    "report": {"ordering_animation": "matplotlib", REPORT: "html matplotlib"},
    "evidence": {
        "k_calibration": "faiss",
        "ari_comparison": "faiss scikitlearn",
        "cluster_map": "umap matplotlib",
        "strategy_comparison": "numpy numba",
        "set_diversity": "numpy",
        "gradient_proxy": "huggingface pytorch",
        "training_evidence": "pytorch",
    },
}
"""Group of assets -> asset -> libraries and formats of its result; Dagster shows icons for the names that it knows."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages under settings, and their names in a Dagster project.

    file: the settings file, None without one. key_prefix: first parts of every asset key; joined by underscores, they
    begin every other name. upstream: asset -> the assets of others that write its files. specs: asset -> spec. needed:
    the stages that the output needs.

    Raises:
        SettingsError: a part of the prefix is not a name, or upstream names an asset that reads no files of others.
    """

    graph: Graph
    settings: Settings
    file: Path | None = None
    key_prefix: tuple[str, ...] = ()
    upstream: Mapping[str, Sequence[dg.AssetDep]] = field(default_factory=dict)
    specs: Mapping[str, dg.AssetSpec] = field(init=False)
    needed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        _check_key_prefix(self.key_prefix)
        object.__setattr__(self, "needed", frozenset(self.graph.needed(self.settings)))
        assets = asset_upstream(self.graph, self.settings)
        reading = {name: setting for name, setting in self._reading_files.items() if name in assets}
        for asset in self.upstream:
            if asset not in reading:
                raise SettingsError(
                    f"upstream names {asset!r}, which reads no files of others under these settings; the assets that "
                    f"do are {', '.join(f'{name} ({setting})' for name, setting in reading.items())}"
                )
        object.__setattr__(self, "specs", {name: self._spec(name, reads) for name, reads in assets.items()})

    @property
    def _reading_files(self) -> dict[str, str]:
        """Asset that reads files which others may write -> the setting that names the files."""
        embedding, curriculum = self.settings.embedding.path, self.settings.curriculum.path
        return {
            "raw_docs": "input.paths",
            **({"external_embeddings": "embedding.path"} if embedding else {}),
            **({"scores": "curriculum.path"} if curriculum else {}),
        }

    def _spec(self, asset: str, reads: Sequence[str]) -> dg.AssetSpec:
        places = ((group, kinds[asset]) for group, kinds in GROUPS.items() if asset in kinds)
        group, kinds = next(places, ("evidence", ""))
        if group == "evidence" and asset in self.needed:
            group = "embedding"
        elif group in ("embedding", "ordering") and asset not in self.needed:
            # In the group of the output's assets its edges would cross theirs.
            group = "evidence"
        deps: list[Any] = [*map(self.key, reads), *self.upstream.get(asset, ())]
        parts = self.graph.step(self.settings, asset)
        return dg.AssetSpec(
            self.key(asset),
            deps=deps,
            description=self.graph[asset].description,
            group_name=self.named(group),
            # Parts have no asset of their own, so a change of their settings shows here.
            code_version="+".join(self.graph[part].fingerprint(self.settings) for part in parts),
            kinds=set(kinds.split()),
        )

    def key(self, asset: str) -> dg.AssetKey:
        return dg.AssetKey([*self.key_prefix, asset])

    def named(self, name: str) -> str:
        """The name of a job, sensor, schedule, group or pool, with the prefix."""
        return "_".join([*self.key_prefix, name])


def asset_upstream(graph: Graph, settings: Settings) -> dict[str, tuple[str, ...]]:
    """Asset -> the assets that it or its parts read; for the report also the evidence that it shows.

    An asset A is left out if another one of them is made from A and changes whenever A changes. A fit that an asset
    reads itself is never left out, since only a part of the fit may matter to the other assets.
    """
    upstream = graph.upstream(settings)
    if REPORT in upstream:
        upstream[REPORT] += tuple(stage for stage in EVIDENCE if stage in upstream)
    direct = {
        name: dict.fromkeys(
            read
            for part in graph.parts(settings, name)
            for read in upstream[part]
            if graph[read].asset and read != name
        )
        for name in upstream
        if graph[name].asset
    }
    shown_by: dict[str, set[str]] = {}
    for name, reads in direct.items():
        stage = graph[name]
        # A pinned fit stays when its upstream changes, and named files may come out the same.
        changes = isinstance(stage, PerDocument)
        shown_by[name] = set(reads).union(*(shown_by[read] for read in reads)) if changes else set()
    return {
        name: tuple(
            read
            for read in reads
            if (read in upstream[name] and isinstance(graph[read], PinnedFit))
            or not any(read in shown_by[other] for other in reads)
        )
        for name, reads in direct.items()
    }


def _check_key_prefix(parts: Iterable[str]) -> None:
    """Check that Dagster's assets can have a key prefix.

    Raises:
        SettingsError: a part of the prefix is not a name.
    """
    for number, part in enumerate(parts):
        if not re.fullmatch("[A-Za-z0-9_]+", part) or (number == 0 and part[0].isdigit()):
            raise SettingsError(
                f"key_prefix has the part {part!r}; expected letters, digits and underscores, not starting with a "
                "digit, because it also begins the names of jobs and sensors"
            )
