"""heldout: the documents that are kept out of training, to validate on.

If `heldout.documents` is a share, this share of the documents of every value of `mixing.trait` is held out, stored as
ids; a document has the value of its first record. Appended data leaves them unchanged. Documents are added when the
corpus has doubled, or when a value has enough documents and none is held out; never a document that a trainer has
consumed. If `heldout.documents` names files, their documents are held out, stored whole; of equal texts the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import binary_array, is_number
from dagster_divorder.core.mix.heldout import choose
from dagster_divorder.core.order.traits import column_codes
from dagster_divorder.corpus.columns import extract, settle
from dagster_divorder.corpus.find import Found, find_files, own_folders
from dagster_divorder.corpus.ingest import content_of
from dagster_divorder.corpus.inputs import Block, read_lines, read_rows, read_schema
from dagster_divorder.corpus.records import NOT_JSON, parse_block
from dagster_divorder.corpus.sample import records_by_text
from dagster_divorder.corpus.shapes import shapes_of
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.fit import Fitted, PinnedFit, has_doubled, load_fitted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.chat_template import template_of
from dagster_divorder.stages.corpus.fields import CHAT_TRAITS, built_in, load_fields
from dagster_divorder.stages.mix.consumed import consumed_text_mask
from dagster_divorder.stages.order.bin_edges import BINS
from dagster_divorder.stages.order.traits import trait_codes
from dagster_divorder.store.arrays import pack, pack_parquet, row_array, unpack, unpack_parquet
from dagster_divorder.store.ids import distinct, hash_all, hex_ids, places, words
from dagster_divorder.store.sources import RemoteFile, Source, identity, open_source

IDS, DOCUMENTS = "ids.safetensors", "documents.parquet"
MAX_BYTES = 1 << 30
"""Most bytes of held-out texts. All are in memory at once."""


def heldout_ids(run: Run) -> np.ndarray:
    """Ids of the held-out documents, uint64 (H, 2), rising. With `heldout.share`, only documents still in the
    corpus."""
    ids = unpack(run.fit("heldout")[IDS])["ids"]
    return ids if run.settings.heldout.paths else ids[np.isin(ids[:, 0], run.corpus.ids())]


def heldout_files(run: Run) -> pa.Table:
    """The documents of the files in `heldout.documents`, by rising id; see `_read_files` for the columns."""
    return unpack_parquet(run.fit("heldout")[DOCUMENTS])


_LEARNT_BEFORE = {
    "cluster": ("base_model", "deep_model", "ari_comparison", "centroids"),
    **dict.fromkeys(("length", *CHAT_TRAITS), ("base_model",)),
}
"""Built-in trait -> the fits that decide its values and bins. They run before a share of each value is drawn."""


def leaves_out(settings: Settings, stage: str) -> bool:
    """Whether a stage must not see the held-out documents and their copies."""
    if not settings.heldout.share:
        return settings.holds_out
    # The draw leaves out what a trainer has consumed, and counting that needs tokens and the base model.
    consumed = ("base_model",) if settings.order.frozen_tokens else ()
    trait = settings.mixed_trait
    return stage not in (*consumed, *(_LEARNT_BEFORE[trait] if trait in built_in(settings) else ()))


def fit_reads(settings: Settings, stage: str) -> tuple[str, ...]:
    """The stages besides raw_docs that `fit_rows` reads."""
    return ("heldout_copies",) if leaves_out(settings, stage) else ()


def fit_inputs(run: Run, stage: str) -> dict[str, str]:
    """What decides `fit_rows` of a pinned fit: the settings of `heldout`, and its files. Documents that are held out
    later leave the fit unchanged, as appended documents do."""
    if not leaves_out(run.settings, stage):
        return {}
    # With files, the last key of `heldout`: a new key would hash the files again.
    return {"heldout": run.receipt("heldout").key if run.settings.heldout.paths else HELDOUT.key(run)}


def held_out_places(run: Run) -> np.ndarray:
    """The place in `heldout_ids` of the first held-out document with the folded text of each document row, int32
    (rows,); -1 if none. A held-out document equals itself."""
    return run.column("heldout_copies", "place")


def held_out_rows(run: Run, stage: str) -> np.ndarray | None:
    """The document rows that a stage must not show or learn from, bool (rows,); None if it may use all."""
    return held_out_places(run) >= 0 if leaves_out(run.settings, stage) else None


def fit_rows(run: Run, stage: str, most: int | None = None) -> np.ndarray:
    """Rows of the documents that a stage learns from, by rising id, int64; the first `most`, or all.

    Raises:
        InputError: no document is left.
    """
    rows = records_by_text(run.records, run.view, most, held_out_rows(run, stage))
    if not len(rows):
        raise InputError(
            f"all {run.corpus.records:,} documents are held out, or copies of held-out ones; expected at least "
            "one to train on: lower heldout.documents, or remove documents from its files"
        )
    return rows


class _Documents(NamedTuple):
    """The D different texts of the corpus in the order of their first records. records: these, int64 (D,). ids: uint64
    (D, 2). sizes: bytes of text, int64 (D,). codes: values of `mixing.trait`, int (D,). names: by code."""

    records: np.ndarray
    ids: np.ndarray
    sizes: np.ndarray
    codes: np.ndarray
    names: tuple[str, ...]


def _documents(run: Run) -> _Documents:
    view, trait = run.view, run.settings.mixed_trait
    first = np.flatnonzero(run.are_first)
    ids = run.records.text_ids(view.fragments)
    sizes = run.records.fragments.column(view.fragments, "text_size")
    bins = None
    fields = load_fields(run, *{trait}.difference(built_in(run.settings)))
    if trait not in built_in(run.settings):
        # `bin_edges` cannot be used: it needs tokens of a model that must not see held-out documents.
        column = fields.column(trait)
        edges = column_codes(column, bins=BINS).edges if is_number(column.type) else None
        bins = {} if edges is None else {trait: edges}
    codes, names = trait_codes(run, trait, fields, bins)
    return _Documents(first, ids[first], sizes[first], codes[first], names)


def _chosen(run: Run, documents: _Documents, before: np.ndarray) -> np.ndarray:
    """The documents to hold out, bool (D,). before: ids of the documents held out so far, uint64 (H, 2)."""
    share = run.settings.heldout.share
    assert share is not None
    kept = places(documents.ids, before) >= 0
    barred = consumed_text_mask(run)[documents.records]
    return choose(documents.ids, documents.codes, share, run.settings.seed, kept, barred)


def _choose_heldout(run: Run) -> Mapping[str, bytes]:
    if run.settings.heldout.paths:
        table, ids = _read_files(run)
        return {IDS: pack({"ids": ids}), DOCUMENTS: pack_parquet(table, "zstd")}
    documents = _documents(run)
    fitted = load_fitted(run.store, HELDOUT.name, HELDOUT.key(run))
    before = unpack(fitted.files[IDS])["ids"] if fitted else np.empty((0, 2), np.uint64)
    chosen = _chosen(run, documents, before)
    share = run.settings.heldout.share
    if not chosen.any():
        raise InputError(
            f"heldout.documents = {share} is less than half a document of every {run.settings.mixed_trait}; "
            "expected at least one document: raise heldout.documents, or set it to files"
        )
    if (size := int(documents.sizes[chosen].sum())) > MAX_BYTES:
        raise _too_large(f"heldout.documents = {share} holds out", size, "lower heldout.documents")
    # Documents that are gone from the corpus stay held out, since they may come back.
    ids = np.concatenate([documents.ids[chosen], before])
    ids = ids[distinct(ids).first]
    return {IDS: pack({"ids": ids[np.lexsort((ids[:, 1], ids[:, 0]))]})}


def _heldout_drift(run: Run, fitted: Fitted) -> str | None:
    if run.settings.heldout.paths:
        return None
    why = has_doubled(run, fitted)
    if why or run.planning:
        return why
    documents, before = _documents(run), unpack(fitted.files[IDS])["ids"]
    kept, chosen = places(documents.ids, before) >= 0, _chosen(run, documents, before)
    if not kept.any():
        return "no held-out document is in the corpus any more"
    without = np.setdiff1d(documents.codes[chosen], documents.codes[kept])
    if not len(without):
        return None
    return f"no document of {run.settings.mixed_trait} {documents.names[without[0]]} is held out"


def _too_large(subject: str, size: int, remedy: str) -> InputError:
    return InputError(
        f"{subject} {size:,} bytes; expected at most {MAX_BYTES:,}, since a validation set is read many times: {remedy}"
    )


def _read_files(run: Run) -> tuple[pa.Table, np.ndarray]:
    """The documents of the files in `heldout.documents`, each once, by rising id: (a table, the ids uint64 (H, 2)).
    Columns: `source`, the value of `mixing.trait`, or the file's name without its suffixes; `id`, hex; `text`;
    `record`, the line, or the row as a struct."""
    settings = run.settings
    files, trait = _find(run), settings.mixed_trait
    field = None if trait in built_in(settings) else files.shape.field(trait)
    sources, texts, records, ids = [], [], [], []
    size = 0
    for path, number, block in _blocks(files):
        at = np.flatnonzero(~block.blank)
        parsed = parse_block(block, at, files.shape, path)
        for place, reason in zip(at.tolist(), parsed, strict=True):
            if isinstance(reason, str):
                raise _refused(str(path), number + place + 1, reason)
        if not len(at):
            continue
        found = [document for document in parsed if isinstance(document, bytes)]
        if (size := size + sum(map(len, found))) > MAX_BYTES:
            raise _too_large("the texts of heldout.documents are", size, "name fewer files")
        content, _ = content_of(block, at, files.shape)
        sources.append(_source_names(content, field, str(path)))
        texts.append(binary_array(found).view(pa.large_string()))
        records.append(content)
        ids.append(words(hash_all(found)))
    if not ids:
        raise InputError(
            f"heldout.documents: {', '.join(settings.heldout.paths)} hold no document; expected at least one"
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


def _blocks(files: Found) -> Iterator[tuple[Source, int, Block]]:
    """(file, lines before the block, block) of all files."""
    schema = None
    for path in files.files:
        number = 0
        if files.kind == "parquet":
            schema = read_schema(path, schema)
        with files.shape.naming():
            for block in read_lines(path) if files.kind == "jsonl" else read_rows(path, schema):
                if block.unfinished:
                    raise _refused(str(path), number + 1, f"{NOT_JSON}: the file ends in the middle of it")
                yield path, number, block
                number += len(block)


def _source_names(content: pa.Array, field: str | None, path: str) -> pa.Array:
    """The source of each record, large_string (n,). field: the field that names it; None for computed traits."""
    import pyarrow.compute as pc

    bare = PurePosixPath(path).name.split(".")[0]
    if field is None:
        return pa.array([bare] * len(content), pa.large_string())
    column = extract(pa.chunked_array([content]), [field]).column(0)
    values = settle(column, categories=True).combine_chunks()
    return pc.fill_null(values.cast(pa.large_string()), bare)


def as_record(content: pa.Array) -> pa.Array:
    """Records in a readable form: JSON lines as text, rows as structs."""
    return content.cast(pa.large_string()) if pa.types.is_large_binary(content.type) else content


def _refused(path: str, number: int, reason: str) -> InputError:
    return InputError(
        f"heldout.documents: record {number:,} of {path}: {reason}; expected a text to validate on: correct it, or "
        "remove it from the file"
    )


def _find(run: Run) -> Found:
    """The files; their records must have the form of the first input."""
    settings = run.settings
    shape = replace(shapes_of(settings)[0], label="", chat_template=template_of(run))
    try:
        return find_files(settings.heldout.paths, own_folders(settings), shape)
    except InputError as error:
        raise InputError(str(error).replace("input.paths", "heldout.documents")) from None


def _decided_by(run: Run) -> dict[str, Any]:
    """The contents of the files, or the tags of files at URLs; with a share, what decides records' ids, but neither the
    corpus nor its traits."""
    heldout, trait = run.settings.heldout, run.settings.mixed_trait
    if not heldout.paths:
        share = {"share": heldout.share, "seed": run.settings.seed}
        return {"trait": trait, **share, "records": run.receipt("raw_docs").key}
    files = _find(run).files
    if (size := sum(int(identity(file)[0]) for file in files)) > MAX_BYTES:
        raise _too_large("the files of heldout.documents are", size, "name fewer files")
    hashes = []
    for file in files:
        if isinstance(file, RemoteFile):
            hashes.append(file.tag)
            continue
        with open_source(file) as opened:
            hashes.append(hashlib.file_digest(opened, "sha256").hexdigest())
    block = run.settings.input.each[0]
    read_as = [block.text_field, block.source_field, block.form]
    return {"trait": trait, "files": hashes, "read_as": read_as}


def _heldout_reads(settings: Settings) -> tuple[str, ...]:
    if settings.heldout.paths:
        return ("raw_docs",)
    if settings.mixed_trait not in built_in(settings):
        return ("raw_docs", "fields", *(["token_counts"] if settings.order.frozen_tokens else []))
    clusters = ("centroids", "clusters") if settings.mixed_trait == "cluster" else ()
    return ("raw_docs", "token_counts", "bin_edges", *clusters)


HELDOUT = PinnedFit(
    name="heldout",
    rechecked=True,
    version=1,
    asset=False,
    description="The documents that are kept out of training, to validate on.",
    reads=_heldout_reads,
    settings=("mixing", "heldout", "input", "seed"),
    decided_by=_decided_by,
    doing="choosing what is held out",
    check=lambda run: _find(run) if run.settings.heldout.paths else None,
    compute=_choose_heldout,
    # No `refit`: held-out documents stay held out.
    drift=_heldout_drift,
    # A draw from an earlier corpus cannot be repeated, but files can be read again.
    outlives=lambda files: not any(name.endswith(DOCUMENTS) for name in files),
    tentative="a value of mixing.trait has enough documents and none is held out",
    facts=lambda run, fitted: {"held_out": len(unpack(fitted.files[IDS])["ids"])},
    figures=lambda run, receipt: {"held_out_documents": receipt.facts["held_out"]},
)
