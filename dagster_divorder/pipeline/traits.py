"""Traits: what an order balances, as one code a record: cluster, length, difficulty, and any field of the input.

Fields are extracted once a record fragment. Edges of bins (length, difficulty, numeric fields) are a pinned fit, so
appended documents fall into the bins that are there, until hardly any of the documents that it was made on are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.core.traits import bin_codes, column_codes, quantile_edges
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.clusters import cluster_files
from dagster_divorder.pipeline.difficulty import Difficulty, measure_difficulty
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.refresh import corpus_sketch, reason_of_another_corpus, sketch_file
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.store.arrays import pack, pack_table, row_array, unpack, unpack_table
from dagster_divorder.store.columns import concat, extract, settle
from dagster_divorder.store.fits import Fit, pin, pinned, read_fit
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.view import View

CODE_VERSION = 2
BUILT_IN = ("cluster", "length", "difficulty")
"""Traits that are no field of the input; of an input with a field of such a name the field is not used."""

DIFFICULTY_BINS = 16


@dataclass(frozen=True, slots=True)
class Traits:
    """Traits of N records in input order.

    `tokens` int64 (N,); `codes[trait]` int32 (N,) in [0, len(names[trait])); `version` hashes what they come from.
    """

    tokens: np.ndarray
    codes: dict[str, np.ndarray]
    names: dict[str, tuple[str, ...]]
    version: str
    fields: tuple[str, ...]
    """Fields of the input that are extracted, the source among them, in `columns_folder` of the store."""
    columns_folder: str
    edges: Fit
    difficulty: Difficulty | None
    """Where `difficulty` is a trait."""

    def sizes(self) -> dict[str, int]:
        """Number of values of each trait."""
        return {trait: len(names) for trait, names in self.names.items()}


def load_traits(run: Run) -> Traits:
    """Traits of `order.traits`, and always `cluster`, whose diversity every table shows."""
    view = load_view(run)
    tokens_by_document = token_files(run).column(view.documents, "lengths")
    clusters = run.receipt("clusters")
    wanted = list(dict.fromkeys(["cluster", *run.settings.order.traits]))
    source = run.settings.input.source_field
    fields = tuple(
        sorted({trait for trait in wanted if trait not in BUILT_IN} | ({source} if source else set()))
    )
    folder = fill_columns(run, view, fields)
    table = load_columns(run.store, view, folder, fields)
    columns: dict[str, Any] = {field: table.column(field) for field in fields if field not in BUILT_IN}
    tokens = tokens_by_document[view.document_row]
    difficulty = measure_difficulty(run, view) if "difficulty" in wanted else None
    if difficulty:
        columns["difficulty"] = pa.array(difficulty.bits[view.document_row])
    edges, edges_fit = _edges(run, view, tokens_by_document, columns, difficulty)
    labels = cluster_files(run).column(view.documents, "labels")[view.document_row]
    codes: dict[str, np.ndarray] = {}
    names: dict[str, tuple[str, ...]] = {}
    for trait in wanted:
        if trait == "cluster":
            codes[trait], names[trait] = labels, tuple(str(label) for label in range(clusters.report["k"]))
        elif trait == "length":
            codes[trait] = bin_codes(tokens, edges[trait])
            names[trait] = tuple(f"bin {number}" for number in range(len(edges[trait]) + 1))
        else:
            coded = column_codes(
                columns[trait],
                bins=_bins(run, trait),
                edges=edges.get(trait),
                name=f"order.traits: field {trait!r}",
            )
            codes[trait], names[trait] = coded.codes, coded.names
    version = content_hash(
        run.receipt("raw_docs").version,
        clusters.version,
        run.receipt("token_counts").version,
        edges_fit.hash,
        wanted,
        *([difficulty.fit.hash] if difficulty else []),
    )
    return Traits(tokens, codes, names, version, fields, folder, edges_fit, difficulty)


def fill_columns(run: Run, view: View, fields: tuple[str, ...]) -> str:
    """Extract fields from every record fragment that has none yet under these fields; return their folder."""
    folder = f"stages/traits/{content_hash(CODE_VERSION, run.receipt('raw_docs').key, fields)}"
    present = run.store.sealed(folder) if fields else {}
    missing = [fragment for fragment in view.records if fragment.name not in present] if fields else []
    with run.progress("reading traits", sum(fragment.rows for fragment in missing), "records") as advance:
        for fragment in missing:
            table = extract(read_content(run.store, fragment.file), fields)
            run.store.seal(folder, fragment.name, pack_table(table), "arrow")
            advance(fragment.rows)
    return folder


def load_columns(store: LocalStore, view: View, folder: str, fields: tuple[str, ...]) -> pa.Table:
    """Extracted fields of the records, in input order.

    Raises:
        InputError: no record has one of the fields.
    """
    if not fields:
        return pa.table({})
    present = store.sealed(folder)
    parts = [unpack_table(store.unseal(present[f.name])) for f in view.records]
    rows = row_array(view.record_row)
    columns = {field: settle(concat([part.column(field) for part in parts]).take(rows)) for field in fields}
    for field, column in columns.items():
        if column.null_count == len(column):
            raise InputError(
                f"no record has the field {field!r}, which order.traits or input.source_field names; "
                "expected a field of the input, `cluster`, `length` or `difficulty`"
            )
    return pa.table(columns)


def _edges(
    run: Run,
    view: View,
    tokens_by_document: np.ndarray,
    columns: dict[str, Any],
    difficulty: Difficulty | None,
) -> tuple[dict[str, np.ndarray], Fit]:
    """Pinned bin edges of the length and of the numeric columns."""
    bins = run.settings.order.length_bins
    numeric = sorted(name for name, column in columns.items() if _is_number(column.type))
    recipe = content_hash(
        CODE_VERSION,
        bins,
        run.receipt("token_counts").key,
        numeric,
        *([difficulty.fit.hash, DIFFICULTY_BINS] if difficulty else []),
    )
    found = pinned(run.store, "traits", recipe)
    reason = (
        reason_of_another_corpus(run, view, found, "greedy_order") if found else "first run with these traits"
    )
    if reason:
        run.progress.note(f"cutting lengths and numeric fields into bins ({reason})")
        edges = {"length": quantile_edges(tokens_by_document[view.document_row], bins)}
        for name in numeric:
            cut = column_codes(columns[name], bins=_bins(run, name)).edges
            assert cut is not None
            edges[name] = cut
        files = {"edges.safetensors": pack(edges), **sketch_file(corpus_sketch(run, view))}
        found = pin(run.store, "traits", recipe, files, reason)
    assert found is not None
    return unpack(read_fit(run.store, found)["edges.safetensors"]), found


def _bins(run: Run, trait: str) -> int:
    return DIFFICULTY_BINS if trait == "difficulty" else run.settings.order.length_bins


def _is_number(of: pa.DataType) -> bool:
    return pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_decimal(of)
