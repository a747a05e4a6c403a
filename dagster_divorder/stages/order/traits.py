"""traits: what an order balances, as one code a record: cluster, length, difficulty, and any field of the input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.core.order.traits import Traits, bin_codes, column_codes
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import category_fields, coded_traits, fields_read, load_fields
from dagster_divorder.stages.order.bin_edges import bins_of, is_number, load_edges

TOKENS = "tokens"


def load_traits(run: Run) -> Traits:
    """Traits of `order.traits`, always `cluster`, whose diversity every table shows, and what is mixed."""
    arrays = run.arrays("traits", "codes")
    names = {trait: tuple(of) for trait, of in orjson.loads(run.read("traits", "names"))}
    return Traits(arrays[TOKENS], {trait: arrays[f"code {trait}"] for trait in names}, names)


def stored_traits(settings: Settings) -> list[str]:
    """The traits whose codes are stored, the cluster first."""
    return list(dict.fromkeys(["cluster", *coded_traits(settings)]))


def trait_codes(
    run: Run, trait: str, fields: pa.Table, edges: Mapping[str, np.ndarray] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(codes of a trait of the records, int (N,), in input order; the names of its values). fields: the trait's column,
    if it is one (`load_fields`). edges: of the bins, by trait; by default those of `bin_edges`."""
    view, edges = run.view, load_edges(run) if edges is None else edges
    if trait == "cluster":
        labels = run.column("clusters", "labels")[view.document_row]
        return labels, tuple(map(str, range(run.receipt("centroids").facts["k"])))
    if trait == "length":
        tokens = run.column("token_counts", "lengths")[view.document_row]
        return bin_codes(tokens, edges[trait]), tuple(f"bin {at}" for at in range(len(edges[trait]) + 1))
    difficulty = trait == "difficulty"
    column = (
        pa.array(run.column("difficulty", "bits")[view.document_row]) if difficulty else fields.column(trait)
    )
    number = is_number(column.type)
    if number and trait not in edges:
        raise InputError(
            f"order.traits: field {trait!r} is a number, and was none when the bins that are kept were cut; "
            "divorder run --refit bins cuts them anew"
        )
    found = column_codes(
        column,
        bins=bins_of(run.settings, trait),
        edges=edges[trait] if number else None,
        name=f"order.traits: field {trait!r}",
    )
    return found.codes, found.names


def _code_traits(run: Run) -> Made:
    fields = load_fields(run, *fields_read(run.settings))
    arrays: dict[str, np.ndarray] = {TOKENS: run.column("token_counts", "lengths")[run.view.document_row]}
    names: list[tuple[str, tuple[str, ...]]] = []
    for trait in stored_traits(run.settings):
        arrays[f"code {trait}"], of = trait_codes(run, trait, fields)
        names.append((trait, of))
    return Made({"codes": arrays, "names": File(orjson.dumps(names), "json")})


TRAITS = WholeCorpus(
    name="traits",
    version=2,
    asset=False,
    description="What orders balance, as one code a record.",
    reads=lambda settings: (
        "raw_docs",
        "token_counts",
        "centroids",
        "clusters",
        "bin_edges",
        *(["fields"] if fields_read(settings) else []),
        *(["difficulty"] if "difficulty" in coded_traits(settings) else []),
    ),
    settings=lambda settings: {
        "traits": stored_traits(settings),
        "bins": settings.order.length_bins,
        "categories": sorted(category_fields(settings).intersection(stored_traits(settings))),
    },
    content=("codes", "names"),
    pace=(0.02, 0.0002),
    compute=_code_traits,
)
