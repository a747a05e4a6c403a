"""near_duplicates: groups of records whose texts are equal or share most of their shingles.

`near`: group int64 (N,), the position of the first record of the group; similarity float32 (N,) of a text's shingles to
the first text's, 1 if the texts are equal. `groups`, Parquet: the largest groups, with the beginning of their first
text. `sources`, Parquet, if `input.source_field` is set: near copies by source.
Signatures are kept by fragment (`minhash`); each run makes the groups again. Temporary files hold all signatures, 512
bytes a document, and the shingles of documents that may be near copies, 8 bytes a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder.pipeline.per_fragment import by_size
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Shown, Table, WholeCorpus, versions
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.corpus.ids import record_names
from dagster_divorder.stages.mix.heldout import fit_reads, held_or_near
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import read_words
from dagster_divorder.store.sample import first_lines
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import Fragment, spans

SHOWN = 50
"""Most groups in the table."""


def load_copies(run: Run) -> np.ndarray:
    """A number for each record, int64 (N,), equal for copies: the first position of its text, or of its group with
    `order.separate_copies = "near"`."""
    if run.settings.copies_apart != "near":
        return run.view.copies
    return run.arrays("near_duplicates", "near")["group"]


def near_reads(settings: Settings) -> tuple[str, ...]:
    """The stages besides raw_docs that `load_copies` reads."""
    return ("near_duplicates",) if settings.copies_apart == "near" else ()


def _find_shingles(store: Store, rows_of_fragment: tuple[Fragment, np.ndarray]) -> list[np.ndarray]:
    """The shingles of some rows of a fragment."""
    from dagster_divorder.core.text.minhash import shingles

    fragment, rows = rows_of_fragment
    return shingles(read_words(store, fragment.file).take(row_array(rows)).combine_chunks())


def _group_near_duplicates(run: Run) -> Made:
    from dagster_divorder.core.text.near_duplicates import candidate_pairs, group

    view = run.view
    # Documents in input order, each at its first record.
    record = np.flatnonzero(view.copies == np.arange(len(view)))
    rows, documents = view.document_row[record], len(record)
    index = np.full(view.document_rows, -1)
    index[rows] = np.arange(documents)
    first, similarity = np.arange(documents), np.ones(documents)
    with run.store.scratch(512 * documents, "comparing signatures and shingles") as folder:
        pairs = candidate_pairs(_signatures(run, index, documents, folder))
        candidates, pairs = np.unique(pairs, return_inverse=True)
        if len(candidates):
            shingles = _shingles(run, record[candidates], folder)
            firsts, similarity[candidates] = group(pairs.reshape(-1, 2), *shingles)
            first[candidates] = candidates[firsts]
    document = index[view.document_row]
    tokens = run.column("token_counts", "lengths")[rows].astype(np.int64)
    copies = first != np.arange(documents)
    sizes = np.bincount(first, minlength=documents)
    figures = {
        "near_copies": int(copies.sum()),
        "near_copy_tokens": int(tokens[copies].sum()),
        "groups": int((sizes > 1).sum()),
        "largest_group": int(sizes.max(initial=0)),
        "compared_pairs": len(pairs),
    }
    largest = np.lexsort((np.arange(documents), -sizes))
    largest = largest[sizes[largest] > 1]
    if (left_out := held_or_near(run, "near_duplicates")) is not None:
        largest = largest[~left_out[rows[largest]]]
    largest = largest[:SHOWN]
    files: dict[str, Any] = {
        "near": {
            "group": record[first[document]],
            "similarity": similarity[document].astype(np.float32),
        },
        "groups": _rows(
            {
                "documents": sizes[largest].tolist(),
                "records": np.bincount(first[document], minlength=documents)[largest].tolist(),
                "tokens": np.bincount(first, tokens, documents)[largest].astype(np.int64).tolist(),
                "least similarity to the first": [similarity[first == place].min() for place in largest],
                "first": record_names(run, record[largest]),
                "begins": first_lines(run.store, view, rows[largest]),
            }
        ),
    }
    if source := run.settings.input.source_field:
        files["sources"] = _by_source(run, source, record, tokens, copies)
    return Made(files, {}, figures)


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _signatures(run: Run, index: np.ndarray, documents: int, folder: Path) -> np.ndarray:
    """Signatures of all documents, uint32 (documents, P), in a file. index: int64 (rows,), the place of each row."""
    from dagster_divorder.core.text.minhash import SLOTS

    signed = np.lib.format.open_memmap(
        folder / "signatures.npy", mode="w+", dtype=np.uint32, shape=(documents, SLOTS)
    )
    fragments = run.view.documents
    signatures = run.files("minhash").mapped(fragments, "signature")
    for rows, signature in zip(spans(fragments), signatures, strict=True):
        place = index[rows]
        signed[place[place >= 0]] = signature[place >= 0]
    return signed


def _shingles(run: Run, records: np.ndarray, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """(shingles of n records' documents, uint64 (S,), rising in each document, in a file; begin and end of each
    record's shingles, int64 (n, 2))."""
    fragments, places, rows = zip(*run.view.by_fragment(records), strict=True)
    sizes: list[int] = []
    file = folder / "shingles"
    with file.open("wb") as out, run.progress("comparing documents", len(records), "documents") as advance:
        items = list(zip(fragments, rows, strict=True))
        for shingles in run.engine.each(partial(_find_shingles, run.store), items, **by_size(run, fragments)):
            sizes += map(len, shingles)
            out.writelines(document.data for document in shingles)
            advance(len(shingles))
    ends = np.cumsum(sizes, dtype=np.int64)
    bounds = np.empty((len(records), 2), np.int64)
    bounds[np.concatenate(places)] = np.stack([ends - sizes, ends], axis=1)
    return np.memmap(file, np.uint64, "r"), bounds


def _by_source(
    run: Run, field: str, record: np.ndarray, tokens: np.ndarray, copies: np.ndarray
) -> list[dict[str, Any]]:
    """Documents and near copies, a row a source. record: int64 (n,), first record of each document, which has its
    source. tokens: int64 (n,). copies: bool (n,), whether a document is a near copy of an earlier one."""
    source = load_fields(run, field).column(field).combine_chunks().dictionary_encode("encode")
    names = ["(missing)" if name is None else str(name) for name in source.dictionary.to_pylist()]
    codes = np.from_dlpack(source.indices)[record]
    counted = {
        "documents": None,
        "tokens": tokens,
        "near copies": copies,
        "tokens of near copies": copies * tokens,
    }
    columns = {
        name: np.bincount(codes, weights, len(names)).astype(np.int64).tolist()
        for name, weights in counted.items()
    }
    rows = _rows({"source": names, **columns})
    return sorted((row for row in rows if row["documents"]), key=lambda row: tuple(row.values()))


def _show_near_duplicates(run: Run, receipt: Receipt) -> Shown:
    names = [name for name in ("sources", "groups") if name in receipt.files]
    return {name: Table(run.rows("near_duplicates", name)) for name in names}


NEAR_DUPLICATES = WholeCorpus(
    name="near_duplicates",
    version=2,
    group="ordering",
    kinds={"numpy", "numba"},
    description="Which records are near copies of others. Groups of texts that share most of their shingles.",
    evidence="which texts are near copies of others",
    reads=lambda settings: (
        *("raw_docs", "token_counts", "minhash"),
        *(["fields"] if settings.input.source_field else []),
        *(["ids"] if settings.input.id_field else []),
        *fit_reads(settings, "near_duplicates"),
    ),
    settings=lambda settings: {"source": settings.input.source_field, "id": settings.input.id_field},
    # Fields are left out of the key: sources follow from the records.
    inputs=lambda run: versions(
        *(run, "raw_docs", "token_counts", "minhash"), *fit_reads(run.settings, "near_duplicates")
    ),
    content=("near",),
    quotes=("groups",),
    doing="looking for near copies",
    compute=_group_near_duplicates,
    show=_show_near_duplicates,
)
