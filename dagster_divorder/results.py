"""Results of the last run for notebooks: tables of documents, their vectors, and measures."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dagster_divorder.core.measure.runs import runs_in_order
from dagster_divorder.errors import MissingStageError
from dagster_divorder.pipeline.published import ORDERS
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import is_url
from dagster_divorder.stages.corpus.fields import read_fields
from dagster_divorder.stages.corpus.ids import read_ids
from dagster_divorder.stages.mix.repeats import items_of
from dagster_divorder.stages.order.sequence_order import output_order
from dagster_divorder.stages.text.loss_mask import mask_of
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.stages.topics.components import STAGE_OF
from dagster_divorder.store.arrays import unpack_parquet
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import hex_ids
from dagster_divorder.store.objects import store_at
from dagster_divorder.store.stages import Reader, embeddings_file, map_vectors
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.store.view import View
from dagster_divorder.view.measures import measures as in_their_order

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, repr=False)
class Results:
    """Results of the last run on a store; each property reads its part on access."""

    store: Store

    def __repr__(self) -> str:
        return f"load_results({str(self.store.place)!r})"

    @property
    def documents(self) -> pd.DataFrame:
        """One row per accepted record in input order.

        Columns: `id` (your own, of `input.id_field`: Int64 if all are whole numbers, else text; None for a record
        without one), `record_id`, `doc_id` (hex), `source`, `tokens`, `trained_tokens` (only if an input holds
        conversations), `cluster`, `cluster_name` (a category), `cluster_distance` (cosine), `position` (the first in
        the curated order; -1 if absent), `repeats` (how often it is in that order), then one per field in
        `order.traits`.
        """
        import pandas as pd

        view = self._last.view
        order = self._last.arrays("greedy_order", "order")["order"]
        made = [receipt for stage in ORDERS if (receipt := load_receipt(self.store, stage))]
        follow = all(later.upstream.get(one.stage) == one.version for one, later in pairwise(made))
        if follow and len(made) == len(ORDERS):
            order = output_order(self._last)
        records = self._stream_records()
        order = order if records is None else records[order]
        repeats = np.bincount(order, minlength=len(view))
        position = np.full(len(view), -1)
        # Keeps the first of several positions.
        position[order[::-1]] = np.arange(len(order) - 1, -1, -1)
        clusters = self._last.files("clusters")
        labels = clusters.column(view.fragments, "labels")
        names = load_names(self._last)
        fields, source, columns = [], None, pa.table({})
        none = pd.Series([None] * len(view), dtype="str")
        if "fields" in self._last.receipt("traits").upstream:
            receipt = self._last.receipt("fields")
            fields, source = receipt.facts["fields"], receipt.facts["source"]
            columns = read_fields(self.store, view, receipt, *fields, categories={source})
        ids = none
        if self._last.receipt("raw_docs").facts.get("id_field"):
            # This type keeps large numbers exact beside missing ones.
            whole = {pa.int64(): pd.Int64Dtype()}.get
            ids = read_ids(self._last.files("ids"), view, np.arange(len(view))).to_pandas(types_mapper=whole)
        counts, trained = self._last.files("token_counts"), {}
        tokens = counts.column(view.fragments, "lengths")
        if train_on := self._last.receipt("token_counts").figures.get("train_on"):
            mask = mask_of(counts, view.fragments, train_on)
            trained["trained_tokens"] = mask.within(np.arange(len(view)), 0, tokens)
        frame = {
            "id": ids,
            "record_id": self._ids(view, "id"),
            "doc_id": self._ids(view, "text"),
            "source": columns.column(source).to_pandas() if source else none,
            "tokens": tokens,
            **trained,
            "cluster": labels,
            "cluster_name": pd.Categorical.from_codes(labels, pd.Index(names)),
            "cluster_distance": clusters.column(view.fragments, "distances"),
            "position": position,
            "repeats": repeats,
        }
        extra = {field: columns.column(field).to_pandas() for field in fields if field not in frame}
        return pd.DataFrame({**frame, **extra})

    @property
    def embeddings(self) -> np.ndarray:
        """The clustered vectors of the accepted records in input order, (N, D), float32, memory-mapped read-only.

        The first access writes them to one file in the store; later ones map it. Raises StoreBusyError: the file
        must be written first, and a run is writing to the store."""
        read = self._last.receipt("clusters").upstream
        chosen = self._last.receipt("ari_comparison").facts["chosen"] if "ari_comparison" in read else None
        kind = chosen or next(kind for kind, stage in STAGE_OF.items() if stage in read)
        return self._vectors(self._last.receipt(STAGE_OF[kind]))

    @property
    def sequences(self) -> pd.DataFrame:
        """One row a run of tokens, in the order of the first epoch, int64.

        Columns: `position` (of the sequence in the epoch), `sequence` (in the plan), `document` (row of `documents`),
        `start` and `length` (tokens of the document that the sequence holds).
        """
        import pandas as pd

        plan = self._last.arrays("packed_sequences", "plan")
        order = self._last.arrays("sequence_order", "order")["order"][0]
        runs, indptr = runs_in_order(plan["indptr"], order)
        position = np.repeat(np.arange(len(order)), np.diff(indptr))
        columns = {name: plan[name][runs] for name in ("document", "start", "length")}
        if (records := self._stream_records()) is not None:
            columns["document"] = records[columns["document"]]
        return pd.DataFrame({"position": position, "sequence": order[position], **columns})

    @property
    def metrics(self) -> pd.DataFrame:
        """The main measures, a row each.

        Columns: `measure`, `unit`, `better` ("more" or "less"), then the value in each order, float64, NaN if missing:
        `sequences` (training sequences in order), `sequences_random` (shuffled), `curated` (documents in order),
        `random` (shuffled), `original` (the input's order); last `about`, a line on the measure.
        """
        import pandas as pd

        orders = {row["order"]: row for row in self._last.receipt("diversity_metrics").figures["summary"]}
        rows = [
            {
                "measure": measure.name,
                "unit": measure.unit,
                "better": measure.better,
                **{order: measure.in_unit(row[name]) for order, row in reversed(orders.items())},
                "about": measure.meaning,
            }
            for name, measure in in_their_order(next(iter(orders.values()))).items()
        ]
        return pd.DataFrame(rows).astype(dict.fromkeys(orders, "float64"))

    @property
    def selection(self) -> pd.DataFrame:
        """The last selection (`selection.method`): one row per accepted record in input order.

        Columns: `record_id` (hex), `weight` (0 if not weighed), `selected`, `reason` (a category).
        """
        return self._table("subset_selection", "selection")

    @property
    def evidence(self) -> pd.DataFrame:
        """One row per training, epoch and source of training_evidence: held-out losses.

        Columns: `order`, `seed`, `learning_rate`, `epoch` (from 1), `source` ("all, equal shares": the mean over
        sources), `loss` (nats a token after that epoch; NaN if the training failed).
        """
        return self._table("training_evidence", "table")

    def _vectors(self, receipt: Receipt) -> np.ndarray:
        present = self.store.exists(embeddings_file(receipt))
        with contextlib.nullcontext() if present else self.store.lock(wait=False):
            return map_vectors(self.store, self._last.view, receipt)

    def _stream_records(self) -> np.ndarray | None:
        """The record of each ordered item; None if the items are the records."""
        if "repeats" not in self._last.receipt("greedy_order").upstream:
            return None
        return items_of(self._last.arrays("repeats", "times")["times"])

    @property
    def _last(self) -> Reader:
        return Reader(self.store)

    def _table(self, stage: str, name: str) -> pd.DataFrame:
        return unpack_parquet(self._last.read(stage, name)).to_pandas()

    def _ids(self, view: View, column: str) -> np.ndarray:
        """Hashes of all records, or of their texts, as hex strings."""
        fragments = Fragments(self.store, self._last.receipt("raw_docs").key)
        return np.array(hex_ids(fragments.column(view.fragments, column)), dtype=object)


def load_results(store_path: str | os.PathLike[str] | Settings) -> Results:
    """Results of the last run on the store at `store_path` (setting `store.path`), or on the store of some settings.
    Raises MissingStageError: on access to a part whose stage has not run on this store. StoreError: the store is
    damaged or from a newer version."""
    store = store_at(store_path.store.path if isinstance(store_path, Settings) else store_path)
    exists = store.open(create=False).id if is_url(store.place) else os.path.isdir(store.place)
    if not exists:
        raise MissingStageError(f"there is no store at {store.place!r}; give the value of store.path")
    return Results(store.open(create=False))
