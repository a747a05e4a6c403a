"""bin_edges: edges of the bins of lengths, turns and numeric fields, at quantiles of the corpus.

Appended records fall into the same bins. With `refit.bins = "auto"` the edges are cut again if the corpus has doubled,
or if hardly any of its documents are left."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import is_number, plain_array
from dagster_divorder.core.order.traits import column_codes, quantile_edges
from dagster_divorder.pipeline.fit import Fitted, PinnedFit, has_doubled
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.corpus.fields import built_in, coded_traits, fields_read, read_fields
from dagster_divorder.store.arrays import pack, unpack

EDGES = "edges.safetensors"
BINS = 100
"""Quantile bins of lengths and numeric fields."""


def _numbers(run: Run) -> dict[str, pa.ChunkedArray | pa.Array]:
    """Trait -> column that is cut into bins: numeric fields, including those whose numbers are categories, and the
    traits of conversations if they are traits here."""
    fields = fields_read(run.settings)
    table = read_fields(run.store, run.view, run.receipt("fields"), *fields) if fields else pa.table({})
    traits = {*coded_traits(run.settings)}
    columns = {name: table.column(name) for name in table.column_names if name in traits}
    columns = {name: column for name, column in columns.items() if is_number(column.type)}
    computed = [name for name in built_in(run.settings) if name in traits - {"cluster", "length"}]
    return columns | {name: plain_array(computed_numbers(run, name)) for name in computed}


def computed_numbers(run: Run, trait: str) -> np.ndarray:
    """The numbers of a built-in trait of the records, which are cut into bins, (N,)."""
    return run.column("token_counts", "turns" if trait == "turns" else "lengths")


def load_edges(run: Run) -> dict[str, np.ndarray]:
    """Trait -> inner edges of the bins, rising, float64, at most bins - 1."""
    return unpack(run.fit("bin_edges")[EDGES])


def _fit_bin_edges(run: Run) -> Mapping[str, bytes]:
    edges = {"length": quantile_edges(run.column("token_counts", "lengths"), BINS)}
    for trait, column in _numbers(run).items():
        cut = column_codes(column, bins=BINS).edges
        assert cut is not None
        edges[trait] = cut
    return {EDGES: pack(edges)}


def _bin_edges_drift(run: Run, fitted: Fitted) -> str | None:
    why = has_doubled(run, fitted)
    if why or run.planning:
        return why
    new = [trait for trait in _numbers(run) if trait not in unpack(fitted.files[EDGES])]
    return f"{new[0]} is a number now" if new else None


BIN_EDGES = PinnedFit(
    name="bin_edges",
    version=2,
    asset=False,
    description="Edges of the bins of lengths and numeric fields.",
    reads=("raw_docs", "token_counts", "fields"),
    settings=("order", "mixing", "heldout", "selection", "input", "chats"),
    # Other settings of these sections must not cut other bins.
    decided_by=lambda run: {
        "bins": BINS,
        "traits": sorted(coded_traits(run.settings)),
        "columns": [run.receipt(name).key for name in run.graph.reads("bin_edges", run.settings)[1:]],
    },
    doing="cutting lengths and numeric fields into bins",
    compute=_fit_bin_edges,
    refit="bins",
    drift=_bin_edges_drift,
    tentative="a field holds numbers for the first time",
)
