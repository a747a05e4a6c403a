"""heldout_copies: finds near copies of held-out documents, which are not trained on.

Per document fragment: `near` int32 (rows,), the place in `heldout_ids` of the nearest held-out document, -1 if none is
near; `similarity` float32 (rows,) of their shingles. A held-out document counts as near itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from dagster_divorder.chats.document import all_words
from dagster_divorder.core.arrow import plain_array, text_array
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.chat_template import template_of
from dagster_divorder.stages.corpus.ids import record_names
from dagster_divorder.stages.mix.consumed import consumed_document_mask
from dagster_divorder.stages.mix.heldout import as_record, heldout_files, heldout_ids
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import read_words
from dagster_divorder.store.ids import hex_ids, places, to_bytes
from dagster_divorder.store.sample import contents, document_ids
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment

if TYPE_CHECKING:
    from dagster_divorder.core.text.near_duplicates import Index


@dataclass(frozen=True, slots=True, eq=False)
class Heldout:
    """What is kept out of training. ids: of the held-out documents, uint64 (H, 2), rising. For each document row:
    documents bool (rows,), whether it is held out; near bool (rows,), whether it is near a held-out document; both are
    false if a trainer has consumed it. to int64 (rows,), the place in `ids` of the document that it equals or is near;
    similarity float32 (rows,)."""

    ids: np.ndarray
    documents: np.ndarray
    near: np.ndarray
    to: np.ndarray
    similarity: np.ndarray

    @property
    def removed(self) -> np.ndarray:
        """Which documents are not trained on, bool (rows,)."""
        return self.documents | self.near


def load_heldout(run: Run) -> Heldout:
    """What `heldout` keeps out of training.

    Raises:
        InputError: nothing of a value of `mixing.trait` would be trained on.
    """
    ids, view = heldout_ids(run), run.view
    near, similarity = run.files("heldout_copies").columns(view.documents, "near", "similarity")
    free = view.used_documents() & ~consumed_document_mask(run)
    place = places(document_ids(run.store, view), ids)
    same = place >= 0
    heldout = Heldout(ids, same & free, (near >= 0) & ~same & free, np.where(same, place, near), similarity)
    traits, trait = load_traits(run), run.settings.mixing.topic
    trained = np.unique(traits.codes[trait][~heldout.removed[view.document_row]])
    lost = np.setdiff1d(traits.codes[trait], trained)
    if len(lost):
        rows = view.document_row[traits.codes[trait] == lost[0]]
        held_out = int(heldout.documents[rows].sum())
        raise InputError(
            f"nothing of {trait} {traits.names[trait][lost[0]]} is left to train on: {held_out:,} of its "
            f"{len(rows):,} records are held out, and {len(rows) - held_out:,} are near copies of them; expected at "
            "least one: lower heldout.documents, or remove this value from its files or from the input"
        )
    return heldout


def heldout_table(run: Run, heldout: Heldout) -> pa.Table:
    """The documents to validate on, by source and id: `source` (the value of `mixing.trait`), `id` (hex), `text`, and
    its first `record`: a line, or a row as a struct. If an input holds conversations, `text` is what the model reads
    (of a pair with the chosen answer), and `trained` has its trained spans: {first, last}, characters [first, last)."""
    if run.settings.heldout.paths:
        table = heldout_files(run)
    else:
        view, traits, trait = run.view, load_traits(run), run.settings.mixing.topic
        first = np.flatnonzero(view.copies == np.arange(len(view)))
        first = first[heldout.documents[view.document_row[first]]]
        ids = hex_ids(heldout.ids[heldout.to[view.document_row[first]]])
        names = text_array(traits.names[trait])
        table = pa.table(
            {
                "source": names.take(plain_array(traits.codes[trait][first])),
                "id": text_array(ids).cast(pa.string()),
                "text": contents(run.store, view.documents, view.document_row[first]),
                "record": as_record(contents(run.store, view.records, view.record_row[first])),
            }
        )
    table = table.sort_by([("source", "ascending"), ("id", "ascending")])
    return _as_read(run, table) if run.settings.masked else table


def _as_read(run: Run, table: pa.Table) -> pa.Table:
    """The table with the texts that the model reads, and their trained spans."""
    from dagster_divorder.models.chat_tokens import as_read
    from dagster_divorder.models.validation import SPANS, TRAINED

    read = [
        as_read(document, template_of(run), run.settings.chats.train_on)
        for document in table["text"].to_pylist()
    ]
    place = table.schema.get_field_index("text")
    spans = [[{"first": first, "last": last} for first, last in conversation.spans] for conversation in read]
    return table.set_column(
        place, "text", pa.array([conversation.text for conversation in read], pa.large_string())
    ).add_column(place + 1, TRAINED, pa.array(spans, SPANS))


def removed_lines(run: Run, heldout: Heldout) -> bytes:
    """The records that are not trained on because they are copies of held-out documents, a JSON line each, in input
    order: `record` (its position), `id`, `document` (the id in `heldout_table`), `similarity`, and `copy`: exact or
    near."""
    view = run.view
    removed = heldout.removed[view.document_row]
    if not run.settings.heldout.paths:
        # The first record of a held-out document is the original, not a copy.
        removed &= ~(heldout.documents[view.document_row] & (view.copies == np.arange(len(view))))
    records = np.flatnonzero(removed)
    rows = view.document_row[records]
    columns = (
        records.tolist(),
        record_names(run, records),
        hex_ids(heldout.ids[heldout.to[rows]]),
        heldout.similarity[rows].astype(np.float64).round(4).tolist(),
        heldout.documents[rows].tolist(),
    )
    return b"".join(
        orjson.dumps(
            {
                "record": record,
                "id": name,
                "document": document,
                "similarity": similarity,
                "copy": "exact" if exact else "near",
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )
        for record, name, document, similarity, exact in zip(*columns, strict=True)
    )


def heldout_reads(settings: Settings) -> tuple[str, ...]:
    """The stages besides raw_docs and traits that `load_heldout` reads."""
    return ("heldout", "heldout_copies") if settings.holds_out else ()


def find_copies(
    store: Store, signatures: StageFiles, index: Index, fragment: Fragment
) -> dict[str, np.ndarray]:
    """`near` and `similarity` of a fragment's documents (module docstring). index: of the held-out documents."""
    signed = signatures.read(fragment)["signature"]
    near, similarity = np.full(fragment.rows, -1, np.int32), np.zeros(fragment.rows, np.float32)
    if len(rows := index.candidates(signed)):
        texts = read_words(store, fragment.file).take(row_array(rows)).combine_chunks()
        near[rows], similarity[rows] = index.nearest(texts, signed[rows])
    return {"near": near, "similarity": similarity}


def _find_heldout_copies(run: Run) -> Callable[[Fragment], dict[str, np.ndarray]]:
    from dagster_divorder.core.text.near_duplicates import Index

    if run.settings.heldout.paths:
        texts = all_words(heldout_files(run).column("text")).chunks
    else:
        rows = places(heldout_ids(run), document_ids(run.store, run.view))
        texts = [contents(run.store, run.view.documents, rows, all_words)]
    return partial(find_copies, run.store, run.files("minhash").listed(), Index.of(texts))


HELDOUT_COPIES = PerDocument(
    name="heldout_copies",
    version=1,
    asset=False,
    description="Which documents are near copies of held-out documents.",
    reads=("raw_docs", "minhash", "heldout"),
    inputs=lambda run: {
        "signatures": run.receipt("minhash").key,
        # The version of the fit is not enough: some of its documents may be gone from the corpus.
        "documents": xxhash.xxh3_128_hexdigest(to_bytes(heldout_ids(run))),
    },
    doing="looking for copies of held-out documents",
    compute=_find_heldout_copies,
)
