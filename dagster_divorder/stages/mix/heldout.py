"""heldout: the documents that are kept out of training, to validate on.

With a share in `heldout.documents` they are named by their ids: of every value of `mixing.trait` a share of its
documents, a document being of the value of its first record. Appended data leaves them as they are. When the corpus has
doubled since, or a value has none though it has documents enough, others join them, none that a trainer has consumed.
With files there they are the documents of files of their own, kept whole: of equal texts the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dagster_divorder.core.mix.heldout import choose
from dagster_divorder.core.order.traits import column_codes
from dagster_divorder.corpus.blocks import BlockRecords, utf8
from dagster_divorder.corpus.columns import extract, settle
from dagster_divorder.corpus.corpus import Begin, Corpus, End
from dagster_divorder.corpus.find import Found, find_files, own_folders
from dagster_divorder.corpus.inputs import LongRecord
from dagster_divorder.corpus.shapes import shapes_of
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.drift import has_doubled
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Fitted, PinnedFit, load_fitted
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import BUILT_IN, load_fields
from dagster_divorder.stages.mix.consumed import consumed_document_mask
from dagster_divorder.stages.order.bin_edges import bins_of, is_number
from dagster_divorder.stages.order.traits import trait_codes
from dagster_divorder.store.arrays import pack, pack_parquet, row_array, unpack, unpack_parquet
from dagster_divorder.store.ids import distinct, hex_ids, places
from dagster_divorder.store.sample import document_ids, document_sizes, rows_by_id
from dagster_divorder.store.sources import identity, open_source

IDS, DOCUMENTS = "ids.safetensors", "documents.parquet"
MAX_BYTES = 1 << 30
"""Of texts held out, which are in memory at once, with some three times as much that is made of them."""


def heldout_ids(run: Run) -> np.ndarray:
    """Ids of the documents that are held out, uint64 (H, 2), rising; of those that the corpus held once, the ones that
    it holds now."""
    ids = unpack(run.fit("heldout")[IDS])["ids"]
    return ids if run.settings.heldout.paths else ids[np.isin(ids[:, 0], run.corpus.ids())]


def heldout_files(run: Run) -> pa.Table:
    """The documents of the files in `heldout.documents`, in the order of their ids; columns as of `_read_files`."""
    return unpack_parquet(run.fit("heldout")[DOCUMENTS])


_LEARNT_BEFORE: Mapping[str, tuple[str, ...]] = {
    "length": ("base_model", "difficulty_counts"),
    "difficulty": ("base_model", "difficulty_counts"),
    "cluster": (
        *("base_model", "difficulty_counts", "deep_model", "ari_comparison", "centroids"),
        *("shallow_components", "deep_components", "external_components"),
    ),
}
"""The fits that values of a trait (and edges of bins) are made with: a share of each value is drawn after them."""


def leaves_out(settings: Settings, stage: str) -> bool:
    """Whether a stage is made without the documents that are held out and their near copies."""
    if not settings.heldout.share:
        return settings.holds_out
    # A share is not of what a trainer has consumed, which is counted in tokens.
    consumed = ("base_model",) if settings.order.frozen_tokens else ()
    return stage not in (*consumed, *_LEARNT_BEFORE.get(settings.mixing.trait, ()))


def fit_reads(settings: Settings, stage: str) -> tuple[str, ...]:
    """What `fit_rows` needs, beside raw_docs."""
    return ("heldout_copies",) if leaves_out(settings, stage) else ()


def fit_inputs(run: Run, stage: str) -> dict[str, str]:
    """What decides `fit_rows` of a pinned fit: the settings of what is held out, and the files. Documents that join
    later leave the fit as it is, as other appended ones do."""
    if not leaves_out(run.settings, stage):
        return {}
    # Of files as they were when they were read: hashing them takes time.
    return {"heldout": run.receipt("heldout").key if run.settings.heldout.paths else HELDOUT.key(run)}


def held_or_near(run: Run, stage: str) -> np.ndarray | None:
    """Which document rows a stage must not show or learn from, bool (rows,); None where it may from all."""
    # A held-out document is near itself.
    return run.column("heldout_copies", "near") >= 0 if leaves_out(run.settings, stage) else None


def fit_rows(run: Run, stage: str, most: int | None = None) -> np.ndarray:
    """Rows of the documents that a stage learns from, by rising id, int64; the first `most`, or all.

    Raises:
        InputError: there is none.
    """
    rows = rows_by_id(run.store, run.view, most, held_or_near(run, stage))
    if not len(rows):
        raise InputError(
            f"all {run.corpus.documents:,} documents are held out, or near copies of what is; expected one at least to "
            "train on: lower heldout.documents, or take documents out of its files"
        )
    return rows


class _Documents(NamedTuple):
    """The D documents of the corpus in the order of their first records: document rows int64 (D,), ids uint64 (D, 2),
    text sizes int64 (D,) in bytes, codes int (D,) of their values of `mixing.trait`, the names of these, and the
    edges of its bins where it is a number."""

    rows: np.ndarray
    ids: np.ndarray
    sizes: np.ndarray
    codes: np.ndarray
    names: tuple[str, ...]
    edges: np.ndarray | None


def _documents(run: Run, edges: np.ndarray | None) -> _Documents:
    """edges: float64 (bins - 1,), of the bins of a numeric field; None to cut them now."""
    view, trait = run.view, run.settings.mixing.trait
    first = np.flatnonzero(view.copies == np.arange(len(view)))
    rows = view.document_row[first]
    ids, sizes = document_ids(run.store, view), document_sizes(run.store, view)
    fields, own = load_fields(run, *{trait}.difference(BUILT_IN)), None
    if trait not in BUILT_IN:
        # Not the edges of `bin_edges`, whose lengths are in tokens of a model that must not see these documents.
        number = is_number((column := fields.column(trait)).type)
        if number and edges is None:
            edges = column_codes(column, bins=bins_of(run.settings, trait)).edges
        own = {trait: edges} if number and edges is not None else {}
    codes, names = trait_codes(run, trait, fields, own)
    return _Documents(rows, ids[rows], sizes[rows], codes[first], names, edges)


def _chosen(run: Run, documents: _Documents, before: np.ndarray) -> np.ndarray:
    """Which documents are held out, bool (D,), given the ids of those that were."""
    share = run.settings.heldout.share
    assert share is not None
    kept = places(documents.ids, before) >= 0
    barred = consumed_document_mask(run)[documents.rows]
    return choose(documents.ids, documents.codes, share, run.settings.seed, kept, barred)


def _choose_heldout(run: Run) -> Mapping[str, bytes]:
    """
    Raises:
        InputError: no document would be held out, or more than MAX_BYTES of text.
    """
    if run.settings.heldout.paths:
        table, ids = _read_files(run.settings)
        return {IDS: pack({"ids": ids}), DOCUMENTS: pack_parquet(table, "zstd")}
    documents = _documents(run, None)
    fitted = load_fitted(run.store, HELDOUT.name, HELDOUT.key(run))
    before = unpack(fitted.files[IDS])["ids"] if fitted else np.empty((0, 2), np.uint64)
    chosen = _chosen(run, documents, before)
    share = run.settings.heldout.share
    if not chosen.any():
        raise InputError(
            f"heldout.documents = {share} of the documents of each {run.settings.mixing.trait} is less than half a "
            "document everywhere; expected one at least: raise heldout.documents, or name files in it"
        )
    if (size := int(documents.sizes[chosen].sum())) > MAX_BYTES:
        raise _too_large(f"heldout.documents = {share} holds out", size, "lower heldout.documents")
    # Of those that are gone from the corpus too: they may come back.
    ids = np.concatenate([documents.ids[chosen], before])
    ids = ids[distinct(ids).first]
    arrays = {"ids": ids[np.lexsort((ids[:, 1], ids[:, 0]))]}
    return {IDS: pack(arrays if documents.edges is None else arrays | {"edges": documents.edges})}


def _heldout_drift(run: Run, fitted: Fitted) -> str | None:
    if run.settings.heldout.paths:
        return None
    why = has_doubled(run, fitted)
    if why or run.planning:
        return why
    arrays = unpack(fitted.files[IDS])
    documents, before = _documents(run, arrays.get("edges")), arrays["ids"]
    kept, chosen = places(documents.ids, before) >= 0, _chosen(run, documents, before)
    if not kept.any():
        return "nothing of what was held out is in the corpus any more"
    without = np.setdiff1d(documents.codes[chosen], documents.codes[kept])
    if not len(without):
        return None
    return f"no document of {run.settings.mixing.trait} {documents.names[without[0]]} is held out"


def _too_large(what: str, size: int, remedy: str) -> InputError:
    return InputError(
        f"{what} {size:,} bytes; expected {MAX_BYTES:,} at most, since a validation set is read again and again: "
        f"{remedy}"
    )


def _read_files(settings: Settings) -> tuple[pa.Table, np.ndarray]:
    """(`source`: the value of `mixing.trait`, or the file's name without its suffixes; `id`, hex, and `text` of the
    document; `record`: the line, or the row as a struct; and the ids, uint64 (H, 2)) of the documents of
    `heldout.documents`, each once, by rising id.

    Raises:
        InputError: a file cannot be read, holds a record that is none, or they hold no document, or too much.
    """
    found = _find(settings)
    sources, texts, records, ids = [], [], [], []
    size = 0
    for block in Corpus([found], settings.input.max_record_bytes):
        if isinstance(block, Begin | End):
            continue
        if isinstance(block, LongRecord):
            raise _refused(block.path, block.number, f"a record of {block.size:,} bytes or more")
        held = BlockRecords(block, found.shape)
        every = np.arange(len(held.ids))
        of = held.texts(every)
        if len(of.sound) < len(every):
            refusal = next(held.refusals(np.setdiff1d(every, of.sound)))
            raise _refused(block.path, refusal.number, refusal.reason)
        if not len(every):
            continue
        if (size := size + int(of.sizes.sum())) > MAX_BYTES:
            raise _too_large("the texts of heldout.documents are", size, "name fewer files")
        content, _ = held.content(every)
        sources.append(_source_names(content, found.shape.field(settings.mixing.trait), block.path))
        texts.append(utf8(of.held))
        records.append(content)
        ids.append(of.ids)
    if not ids:
        raise InputError(
            f"heldout.documents: {', '.join(settings.heldout.paths)} hold no document; expected one at least"
        )
    every_id = np.concatenate(ids)
    first = distinct(every_id).first
    rows = first[np.lexsort((every_id[first, 1], every_id[first, 0]))]
    table = pa.table(
        {
            "source": pa.concat_arrays(sources).take(row_array(rows)),
            "id": pa.array(hex_ids(every_id[rows]), pa.string()),
            "text": pa.concat_arrays(texts).take(row_array(rows)),
            "record": as_record(pa.concat_arrays(records).take(row_array(rows))),
        }
    )
    return table, every_id[rows]


def _source_names(content: pa.Array, trait: str, path: str) -> pa.Array:
    """large_string (n,)."""
    import pyarrow.compute as pc

    bare = PurePosixPath(path).name.split(".")[0]
    if trait in BUILT_IN:
        return pa.array([bare] * len(content), pa.large_string())
    values = settle(extract(pa.chunked_array([content]), [trait]).column(0)).combine_chunks()
    return pc.fill_null(values.cast(pa.large_string()), bare)


def as_record(content: pa.Array) -> pa.Array:
    """Record content as people read it: lines as text, which they are, rows as they are."""
    return content.cast(pa.large_string()) if pa.types.is_large_binary(content.type) else content


def _refused(path: str, number: int, reason: str) -> InputError:
    return InputError(
        f"heldout.documents: record {number:,} of {path}: {reason}; expected a text to validate on: correct it, or "
        "it out of the file"
    )


def _find(settings: Settings) -> Found:
    try:
        return find_files(
            settings.heldout.paths, own_folders(settings), replace(shapes_of(settings)[0], label="")
        )
    except InputError as error:
        raise InputError(str(error).replace("input.paths", "heldout.documents")) from None


def _inputs(run: Run) -> dict[str, Any]:
    """With files their contents, else whose records the ids are of: neither a corpus nor the traits of its records."""
    if not run.settings.heldout.paths:
        return {"records": run.receipt("raw_docs").key}
    files = _find(run.settings).files
    if (size := sum(int(identity(file)[0]) for file in files)) > MAX_BYTES:
        raise _too_large("the files of heldout.documents are", size, "name fewer files")
    hashes = []
    for file in files:
        with open_source(file) as opened:
            hashes.append(hashlib.file_digest(opened, "sha256").hexdigest())  # type: ignore[arg-type]
    return {"files": hashes}


def _heldout_reads(settings: Settings) -> tuple[str, ...]:
    if settings.heldout.paths:
        return ("raw_docs",)
    if settings.mixing.trait not in BUILT_IN:
        return ("raw_docs", "fields", *(["token_counts"] if settings.order.frozen_tokens else []))
    made = {"cluster": ("centroids", "clusters"), "length": (), "difficulty": ("difficulty",)}
    return ("raw_docs", "token_counts", "bin_edges", *made[settings.mixing.trait])


def _heldout_settings(settings: Settings) -> dict[str, Any]:
    heldout = settings.heldout
    shape = shapes_of(settings)[0]
    of = {"paths": heldout.paths, "text_field": shape.text_field} if heldout.paths else {}
    field = {"source_field": shape.source_field} if heldout.paths and shape.key else {}
    drawn = {"share": heldout.share, "seed": settings.seed} if heldout.share else {}
    return {"trait": settings.mixing.trait, **of, **field, **drawn}


HELDOUT = PinnedFit(
    name="heldout",
    version=1,
    asset=False,
    description="The documents that are kept out of training, to validate on.",
    reads=_heldout_reads,
    settings=_heldout_settings,
    inputs=_inputs,
    doing="choosing what is held out",
    check_settings=lambda run: _find(run.settings) if run.settings.heldout.paths else None,
    pace=(0.02, 0.004),
    compute=_choose_heldout,
    # Nobody asks for others: what is held out stays so.
    drift=_heldout_drift,
    # It looks at the values of mixing.trait too, which other edges and clusters change, and at what is consumed.
    checked_once_per_corpus=False,
    # What was drawn of an earlier corpus; what files hold can be read again.
    outlives=lambda files: not any(name.endswith(DOCUMENTS) for name in files),
    tentative="a value of mixing.trait has documents enough and none held out",
    facts=lambda run, fitted: {"held_out": len(unpack(fitted.files[IDS])["ids"])},
    figures=lambda run, receipt: {"held_out_documents": receipt.facts["held_out"]},
)
