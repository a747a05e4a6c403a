"""traits: one code a record for each trait that an order balances: cluster, length, traits of
conversations, fields of the input; the record's tokens, and those of them that shares count."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.core.arrow import is_number, plain_array
from dagster_divorder.core.order.traits import Traits, bin_codes, column_codes
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import (
    built_in,
    coded_traits,
    fields_read,
    load_fields,
    trait_name,
)
from dagster_divorder.stages.order.bin_edges import BINS, computed_numbers, load_edges
from dagster_divorder.stages.text.loss_mask import counted_tokens


def load_traits(run: Run) -> Traits:
    """The traits whose codes are stored (`stored_traits`)."""
    arrays = run.arrays("traits", "codes")
    names = {trait: tuple(values) for trait, values in orjson.loads(run.read("traits", "names"))}
    codes = {trait: arrays[f"code {trait}"] for trait in names}
    return Traits(arrays["tokens"], arrays["counted"], codes, names)


def stored_traits(settings: Settings) -> list[str]:
    """The traits whose codes are stored: first the cluster, because every table shows its diversity, then
    `coded_traits`."""
    return list(dict.fromkeys(["cluster", *coded_traits(settings)]))


def trait_codes(
    run: Run, trait: str, fields: pa.Table, edges: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(codes of a trait of the records, int (N,), in input order; the names of its values). fields: a table with the
    trait's column, if it is a field (`load_fields`). edges: of the bins, by trait."""
    if trait == "cluster":
        labels = run.column("clusters", "labels")
        return labels, tuple(map(str, range(run.receipt("centroids").facts["k"])))
    if trait == "length":
        codes = bin_codes(computed_numbers(run, trait), edges[trait])
        return codes, tuple(f"bin {at}" for at in range(len(edges[trait]) + 1))
    column = (
        plain_array(computed_numbers(run, trait)) if trait in built_in(run.settings) else fields.column(trait)
    )
    name, number = trait_name(run.settings, trait), is_number(column.type)
    if number and trait not in edges:
        raise InputError(
            f"{name} is a number, but was not when the pinned bins were cut; run divorder run "
            "--refit bins to cut them again"
        )
    coded = column_codes(column, bins=BINS, edges=edges[trait] if number else None, name=name, balanced=True)
    return coded.codes, coded.names


def _code_traits(run: Run) -> Made:
    fields, edges = load_fields(run, *fields_read(run.settings)), load_edges(run)
    arrays: dict[str, np.ndarray] = {
        "tokens": run.column("token_counts", "lengths"),
        "counted": counted_tokens(run),
    }
    names: list[tuple[str, tuple[str, ...]]] = []
    for trait in stored_traits(run.settings):
        arrays[f"code {trait}"], values = trait_codes(run, trait, fields, edges)
        names.append((trait, values))
    return Made({"codes": arrays, "names": File(orjson.dumps(names), "json")})


TRAITS = WholeCorpus(
    name="traits",
    version=3,
    asset=False,
    description="The traits that orders balance, as one code a record.",
    reads=("raw_docs", "token_counts", "centroids", "clusters", "bin_edges", "fields"),
    settings=("input", "chats", "order", "mixing", "heldout", "selection", "packing", "sequence.length"),
    compute=_code_traits,
)
