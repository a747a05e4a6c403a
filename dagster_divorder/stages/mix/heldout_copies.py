"""heldout_copies: which documents are copies of held-out documents, which are not trained on.

Per document fragment: `place` int32 (rows,), the place in `heldout_ids` of the first held-out document whose text
differs in nothing but case and white space (`core.mix.heldout.folded`); -1 if none. A held-out document equals itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from dagster_divorder.chats.document import all_words
from dagster_divorder.core.arrow import plain_array, text_array
from dagster_divorder.core.mix.heldout import folded
from dagster_divorder.corpus.stored import Records, contents
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.stages.corpus.chat_template import template_of
from dagster_divorder.stages.corpus.ids import record_names
from dagster_divorder.stages.mix.consumed import consumed_text_mask
from dagster_divorder.stages.mix.heldout import heldout_ids
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.store.ids import distinct, hash_all, hex_ids, places, to_bytes, words
from dagster_divorder.store.view import Fragment


@dataclass(frozen=True, slots=True, eq=False)
class Heldout:
    """What is kept out of training. ids: of the held-out documents, uint64 (H, 2), rising. For each document row:
    documents bool (rows,), whether it is held out; copies bool (rows,), whether it is a copy of a held-out document;
    both are false if a trainer has consumed it. to int64 (rows,), the place in `ids` of the document that it equals."""

    ids: np.ndarray
    documents: np.ndarray
    copies: np.ndarray
    to: np.ndarray

    @property
    def removed(self) -> np.ndarray:
        """Which documents are not trained on, bool (rows,)."""
        return self.documents | self.copies


def load_heldout(run: Run) -> Heldout:
    """What `heldout` keeps out of training."""
    ids = heldout_ids(run)
    free = ~consumed_text_mask(run)
    place = places(run.index("text"), ids)
    same = place >= 0
    equal = run.column("heldout_copies", "place")
    return Heldout(ids, same & free, (equal >= 0) & ~same & free, np.where(same, place, equal))


def heldout_table(run: Run, heldout: Heldout) -> pa.Table:
    """The documents to validate on, by source and id: `source` (the value of `mixing.trait`), `id` (hex), `text`, and
    its first `record`: a line, or a row as a struct. If an input holds conversations, `text` is what the model reads
    (of a pair with the chosen answer), and `trained` has its trained spans: {first, last}, characters [first, last)."""
    view, traits, trait = run.view, load_traits(run), run.settings.mixed_trait
    first = np.flatnonzero(run.are_first)
    first = first[heldout.documents[first]]
    ids = hex_ids(heldout.ids[heldout.to[first]])
    names = text_array(traits.names[trait])
    record = contents(view.fragments, first, run.records.records)
    # A line is text.
    record = record.cast(pa.large_string()) if pa.types.is_large_binary(record.type) else record
    table = pa.table(
        {
            "source": names.take(plain_array(traits.codes[trait][first])),
            "id": text_array(ids).cast(pa.string()),
            "text": contents(view.fragments, first, run.records.texts),
            "record": record,
        }
    )
    table = table.sort_by([("source", "ascending"), ("id", "ascending")])
    if not run.settings.has_chats:
        return table
    from dagster_divorder.models.chat_tokens import as_read
    from dagster_divorder.models.validation import SPANS, TRAINED

    template, train_on, place = (
        template_of(run),
        run.settings.chats.train_on,
        table.schema.get_field_index("text"),
    )
    read = [as_read(document, template, train_on) for document in table["text"].to_pylist()]
    spans = [[{"first": first, "last": last} for first, last in conversation.spans] for conversation in read]
    texts = pa.array([conversation.text for conversation in read], pa.large_string())
    return table.set_column(place, "text", texts).add_column(place + 1, TRAINED, pa.array(spans, SPANS))


def removed_lines(run: Run, heldout: Heldout) -> bytes:
    """The records that are not trained on because they are copies of held-out documents, a JSON line each, in input
    order: `record` (its position), `id`, and `document` (the id in `heldout_table`)."""
    # The first record of a held-out document is the original, not a copy.
    records = np.flatnonzero(heldout.removed & ~(heldout.documents & run.are_first))
    documents = hex_ids(heldout.ids[heldout.to[records]])
    rows = zip(records.tolist(), record_names(run, records), documents, strict=True)
    return b"".join(
        orjson.dumps(dict(zip(("record", "id", "document"), row, strict=True))) + b"\n" for row in rows
    )


def _folded_ids(texts: pa.Array) -> np.ndarray:
    """Ids of the folded words of texts, uint64 (n, 2)."""
    return words(hash_all([folded(text).encode() for text in all_words(texts).to_pylist()]))


def find_copies(
    records: Records, held: np.ndarray, first: np.ndarray, fragment: Fragment
) -> dict[str, np.ndarray]:
    """`place` of a fragment's documents (module docstring). held: distinct ids of the folded held-out texts, uint64
    (h, 2). first: the place of the first document of each, int64 (h,)."""
    ids = _folded_ids(records.texts(fragment))
    return {"place": np.append(first, -1)[places(ids, held)].astype(np.int32)}


def _find_heldout_copies(run: Run) -> Callable[[Fragment], dict[str, np.ndarray]]:
    rows = places(heldout_ids(run), run.index("text"))
    held = _folded_ids(contents(run.view.fragments, rows, run.records.texts))
    first = distinct(held).first
    return partial(find_copies, run.records, held[first], first)


HELDOUT_COPIES = PerDocument(
    name="heldout_copies",
    version=3,
    asset=False,
    description="Which documents are copies of held-out documents.",
    reads=("raw_docs", "heldout"),
    when=lambda settings: settings.holds_out,
    decided_by=lambda run: {
        "records": run.receipt("raw_docs").key,
        # The version of the fit is not enough: some of its documents may be gone from the corpus.
        "documents": xxhash.xxh3_128_hexdigest(to_bytes(heldout_ids(run))),
    },
    doing="looking for copies of held-out documents",
    compute=_find_heldout_copies,
)
