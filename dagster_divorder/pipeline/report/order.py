"""What of the report comes from the order itself: what lies where along the dataset, before and after.

Letters: N records, J trait values, C slices of the dataset, S sequences.
Cost: a few passes over the records for each order; O(N log N) for the lengths.
Memory: some 80 bytes a record beside C J numbers; pictures show at most COLOURED clusters and KEPT values of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dagster_divorder.core.metrics import cluster_mix, distinct_clusters
from dagster_divorder.core.metrics.along import binned, quantiles_along
from dagster_divorder.core.metrics.distinct import distinct_in_sequences
from dagster_divorder.core.metrics.largest import Largest, largest
from dagster_divorder.core.metrics.packed import runs_in_order
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.traits import column_codes
from dagster_divorder.pipeline.greedy_order import load_order
from dagster_divorder.pipeline.packed_sequences import load_packed
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.sequence_order import load_sequence_order
from dagster_divorder.pipeline.traits import BUILT_IN, Traits, load_columns, load_traits
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.fits import read_fit
from dagster_divorder.store.view import View

if TYPE_CHECKING:
    from dagster_divorder.view.report.html import Markup
    from dagster_divorder.view.report.section import Section
    from dagster_divorder.view.report.strips import Strips

BAR_COLUMNS, LENGTH_COLUMNS, BINS = 400, 100, 100
"""Slices of the dataset in a bar and in the chart of lengths; bins of sequences."""
STRIP_COLUMNS = (60, 160)
"""Slices of a strip, at least and at most: a batch each, where they are not too few or too many."""
COLOURED = 60
"""Clusters with a colour and a row of their own; all smaller ones share one."""
KEPT = 20
"""Values of any other category with a row of their own."""


@dataclass(frozen=True)
class Ordered:
    """The corpus and its orders; each is loaded when it is asked for, and kept."""

    run: Run
    names: Sequence[str]
    """Of the clusters, as they are shown."""

    @cached_property
    def view(self) -> View:
        return load_view(self.run)

    @cached_property
    def traits(self) -> Traits:
        return load_traits(self.run)

    @cached_property
    def curated(self) -> np.ndarray:
        return load_order(self.run)

    @cached_property
    def packed(self) -> PackedSequences:
        return load_packed(self.run)

    @cached_property
    def epochs(self) -> np.ndarray:
        """Orders of the sequences, int64 (E, S)."""
        return load_sequence_order(self.run)

    @cached_property
    def runs(self) -> tuple[np.ndarray, np.ndarray]:
        """The runs of the packed sequences as a trainer reads them in the first epoch, int64 (Q,), and where each
        sequence begins among them, int64 (S + 1,)."""
        return runs_in_order(self.packed.indptr, self.epochs[0])

    @cached_property
    def edges(self) -> dict[str, np.ndarray]:
        """Inner edges of the bins of every trait that is a number, the length among them."""
        return unpack(read_fit(self.run.store, self.traits.edges)["edges.safetensors"])

    @cached_property
    def categories(self) -> dict[str, tuple[np.ndarray, Sequence[str]]]:
        """The source and the other fields that are balanced, but for numbers: codes int32 (N,), and names by code."""
        traits, settings = self.traits, self.run.settings
        fields = dict.fromkeys([settings.input.source_field, *settings.order.traits])
        found: dict[str, tuple[np.ndarray, Sequence[str]]] = {}
        for field in fields:
            if field is None or field in BUILT_IN or field in self.edges:
                continue
            if field in traits.codes:
                found[field] = traits.codes[field], traits.names[field]
            else:
                table = load_columns(self.run.store, self.view, traits.columns_folder, (field,))
                coded = column_codes(table.column(field), bins=1, name=f"field {field!r}")
                found[field] = coded.codes, coded.names
        return found

    @property
    def original(self) -> np.ndarray:
        return np.arange(len(self.traits.tokens))

    @property
    def shuffled(self) -> np.ndarray:
        """The first of the shuffles that diversity_metrics measures."""
        return np.random.default_rng([self.run.settings.seed, 0]).permutation(len(self.traits.tokens))


@dataclass(frozen=True, eq=False)
class Coloured:
    """The section of the bars; the clusters in it, their colours, RGB in [0, 1] (J, 3), and a small picture of before
      and
    after, PNG."""

    section: Section
    shown: Largest
    colours: np.ndarray
    picture: bytes


def bars(of: Ordered) -> Coloured:
    """The whole dataset in each order."""
    from dagster_divorder.view.report import bars as view

    tokens, clusters = of.traits.tokens, of.traits.sizes()["cluster"]
    shown = largest(tokens, of.traits.codes["cluster"], clusters, COLOURED)
    total = int(tokens.sum())
    columns = max(1, min(BAR_COLUMNS, total))
    mixes = [
        view.Bar(name, cluster_mix(order, tokens, shown.codes, max(1, shown.count), columns))
        for name, order in (
            ("Original order", of.original),
            ("Shuffled", of.shuffled),
            ("Curated documents, as they lie in the output", of.curated),
        )
    ]
    trained = _in_sequences(of, shown.codes, shown.count, columns)
    mixes.append(view.Bar("Curated sequences, as a trainer reads them", trained))
    return Coloured(
        view.section(mixes, total, shown.others, keeps="cluster" not in of.run.settings.order.targets),
        shown,
        view.colours_of(mixes[0].mix),
        view.small_picture(mixes[0].mix, trained),
    )


def clusters(of: Ordered, coloured: Coloured, cloud: Markup | None) -> Section:
    """Names and sizes of the clusters, where each lies, and the map of them if there is one."""
    from dagster_divorder.view.report.clusters import section

    shown = coloured.shown
    names = [of.names[value] for value in shown.values.tolist()]
    sizes = np.array(of.run.receipt("clusters").report["cluster_sizes"])
    documents = sizes[shown.values].tolist()
    if shown.others:
        names.append(f"{shown.others:,} smaller clusters")
        documents.append(int(sizes.sum()) - sum(documents))
    return section(_strips(of, "cluster", names, shown), documents, coloured.colours, len(sizes), cloud)


def distinct(of: Ordered) -> Section:
    """Distinct clusters of every sequence."""
    from dagster_divorder.view.report.distinct import section

    tokens, labels = of.traits.tokens, of.traits.codes["cluster"]
    clusters, length = of.traits.sizes()["cluster"], of.run.settings.sequence.length
    runs, indptr = of.runs
    counts = {
        "original": distinct_clusters(of.original, tokens, labels, length),
        "random": distinct_clusters(of.shuffled, tokens, labels, length),
        "sequences": distinct_in_sequences(indptr, labels[of.packed.document[runs]], clusters),
    }
    return section({name: binned(found, BINS) for name, found in counts.items()}, clusters, length)


def categories(of: Ordered) -> Section | None:
    """Where every source, and every value of another category that is balanced, lies; None without one."""
    from dagster_divorder.view.report.strips import section

    tables = []
    for field, (codes, names) in of.categories.items():
        shown = largest(of.traits.tokens, codes, len(names), KEPT)
        kept = [names[value] for value in shown.values.tolist()]
        kept += [f"{shown.others:,} other values"] * bool(shown.others)
        tables.append(_strips(of, field, kept, shown))
    moving = [trait for trait in of.run.settings.order.targets if trait in of.categories]
    return section(tables, moving) if tables else None


def lengths(of: Ordered) -> Section:
    """Lengths of the documents along the dataset."""
    from dagster_divorder.view.report.lengths import QUANTILES, section

    tokens, (runs, _) = of.traits.tokens, of.runs
    before = quantiles_along(of.original, tokens, tokens, LENGTH_COLUMNS, QUANTILES)
    after = quantiles_along(runs, of.packed.length, tokens[of.packed.document], LENGTH_COLUMNS, QUANTILES)
    return section({"original": before, "sequences": after})


def _strips(of: Ordered, trait: str, names: Sequence[str], shown: Largest) -> Strips:
    from dagster_divorder.view.report.strips import Strips

    tokens = of.traits.tokens
    total = int(tokens.sum())
    sequence = of.run.settings.sequence
    batches = total // (sequence.length * sequence.batch)
    columns = max(1, min(total, int(np.clip(batches, *STRIP_COLUMNS))))
    others = [shown.other_tokens] if shown.others else []
    return Strips(
        trait,
        names,
        np.array([*shown.tokens, *others]) / max(total, 1),
        cluster_mix(of.original, tokens, shown.codes, max(1, shown.count), columns),
        _in_sequences(of, shown.codes, shown.count, columns),
    )


def _in_sequences(of: Ordered, codes: np.ndarray, values: int, columns: int) -> np.ndarray:
    """Shares in slices of the sequences in their order, float (columns, values)."""
    runs, _ = of.runs
    return cluster_mix(runs, of.packed.length, codes[of.packed.document], max(1, values), columns)
