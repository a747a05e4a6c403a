"""The input of the report. Letters: C slices of the dataset, J values of a trait, K clusters, N documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.along import Binned
from dagster_divorder.core.measure.stationarity import Stationarity
from dagster_divorder.settings import Settings
from dagster_divorder.view.drawing import OTHERS, by_place, cluster_colours
from dagster_divorder.view.verdict import Verdict

LENGTH_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, eq=False)
class TraitAlong:
    """A trait along the dataset. names: of J values, the largest first. share: of the corpus's tokens, float (J,).
    mixes: by order, shares in C slices of the dataset, float (C, J) (`cluster_mix`)."""

    trait: str
    names: Sequence[str]
    share: NDArray[np.float64]
    mixes: Mapping[str, NDArray[np.float32]]


Example = str | Sequence[tuple[str, bool]]
"""A text of the corpus, unescaped: the page escapes it and shows its beginning. Or a text's parts, each with whether it
is trained on."""
PARTS = 6
"""Most parts of a text that are shown."""


def marked_parts(text: str, spans: Sequence[tuple[int, int]]) -> Example:
    """The first PARTS parts of a text whose characters in `spans`, rising, are trained on."""
    parts, at = [], 0
    for first, last in spans[:PARTS]:
        parts += [(text[at:first], False), (text[first:last], True)]
        at = last
    return [(part, trained) for part, trained in [*parts, (text[at:], False)] if part.strip()][:PARTS]


class Card(NamedTuple):
    """A window or a cell of a comparison. documents: (facts, text) of examples."""

    title: str
    lead: str
    documents: Sequence[tuple[str, Example]]


@dataclass(frozen=True, eq=False)
class MapPoints:
    """Documents on the map, in random order. xy: places, float (N, 2). rows: their clusters' rows in the table of
    clusters, int (N,). documents: of the corpus."""

    xy: NDArray[np.floating]
    rows: NDArray[np.integer]
    documents: int


class Agreement(NamedTuple):
    """Results of ari_comparison: facts of its receipt, tables, and the PNG file of the heatmap."""

    report: Mapping[str, Any]
    pairs: Sequence[Mapping[str, Any]]
    disagreements: Sequence[Mapping[str, Any]]
    heatmap: bytes | None


class Evidence(NamedTuple):
    """Evidence without its own section: stage, `title` and `description`; figures and tables by name; pictures, PNG, by
    content."""

    stage: str
    title: str
    description: str
    figures: Mapping[str, Any]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    pictures: Mapping[str, bytes]


class StageRun(NamedTuple):
    """A stage in its last run. part: it belongs to the previous stage's asset. documents: all documents. computed:
    documents computed in this run. date: of its result, in words."""

    stage: str
    part: bool
    documents: int
    computed: int
    seconds: float
    date: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Numbers:
    """The whole content of the report. Orders have the names of `diversity_metrics`.

    manifest: of the output. tokens: counted tokens of the trained records. trained_tokens: of all records, None if no
    input holds conversations. space: the kind of clustered vectors. distinct: of the sequences, by order. lengths: by
    order, the LENGTH_QUANTILES of the documents' lengths in slices, float (C, 5). clusters: the largest, with their
    numbers, int (n,), and documents. other_clusters: clusters that share the last value, or 0. worst: batches and
    sequences. alone: sequences of one document. Evidence, if it was made: strategies; calibration, its table and notes;
    agreement; map; trained, the summary of training_evidence; diversity, tables of set_diversity by name; others.
    chosen: tables of the selection, by name. missing: stage -> (content of its section, why there is none).
    """

    settings: Settings
    manifest: Mapping[str, Any]
    tokens: int
    trained_tokens: int | None
    space: str
    check: Verdict
    drift: Stationarity
    distinct: Mapping[str, Binned]
    lengths: Mapping[str, NDArray[np.float64]]
    clusters: TraitAlong
    cluster_numbers: NDArray[np.int64]
    cluster_documents: Sequence[int]
    other_clusters: int
    categories: Sequence[TraitAlong]
    worst: Sequence[Card]
    alone: int
    strategies: Sequence[Mapping[str, Any]] | None
    calibration: tuple[Sequence[Mapping[str, Any]], Sequence[str]] | None
    agreement: Agreement | None
    map: MapPoints | None
    trained: Mapping[str, Any] | None
    chosen: Mapping[str, Sequence[Mapping[str, Any]]]
    diversity: Mapping[str, Sequence[Mapping[str, Any]]]
    others: Sequence[Evidence]
    runs: Sequence[StageRun]
    missing: Mapping[str, tuple[str, str]]

    @cached_property
    def stacking(self) -> NDArray[np.int64]:
        """The values of `clusters` in the stacking order of bars, (J,)."""
        return by_place(self.clusters.mixes["original"])

    @cached_property
    def colours(self) -> NDArray[np.float64]:
        """The colour of each value of `clusters`, RGB in [0, 1] (J, 3)."""
        own = cluster_colours(self.manifest["k"])[self.cluster_numbers]
        return np.concatenate([own, [OTHERS]])[: len(self.stacking)]
