"""set_diversity: how many different things (Vendi score) the corpus, the selection, their parts and batches hold.

`groups`: the Vendi scores of the corpus, the selection, each source (`input.source_field`) and each cluster; for a
source also the score of the corpus without it, which shows how much only this source adds. Equal texts count once.

With a selection the vectors are the selection's. The sums of the sources are stored with the ids of their documents, so
that an append reads only new documents. `batches`: the scores of training batches, weighted by tokens, under this order
and others.

Without a selection the vectors are the clustered ones, no order is needed, and a random sample with SAMPLE_BYTES of
vectors represents a large corpus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dagster_divorder.core.measure.runs import runs_in_order
from dagster_divorder.core.measure.vendi import gram, group_diversity, group_grams, vendi, window_scores
from dagster_divorder.corpus.sample import records_by_text
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Shown, Table, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.mix.repeats import load_stream, run_counter, stream_reads
from dagster_divorder.stages.mix.subset_selection import VECTORS, load_selected, selection_reads
from dagster_divorder.stages.order.greedy_order import load_order
from dagster_divorder.stages.order.packed_sequences import batch_tokens, load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.topics.components import STAGE_OF, chosen_kind, space_reads
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.ids import places
from dagster_divorder.store.space import SAMPLE_BYTES, Space, map_vectors
from dagster_divorder.store.state import Receipt, load_receipt

MAX_VALUES = 32
"""Most sources and clusters with their own score, the largest ones; all other sources count as one. The sums of a
source take 8 D^2 bytes."""
SUMS_SIZE = 1 << 25
"""Most numbers in the sums of all sources without a selection, so with wide vectors fewer sources and clusters have
their own score. The time of a score grows with D^3."""
OTHERS = "(other)"

Row = dict[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class _Measured:
    """The measured documents. records: int64 (n,), their positions, rising. rows: int64 (n,), their rows of `vectors`.
    most: number of sources and of clusters with their own score."""

    vectors: np.ndarray
    rows: np.ndarray
    records: np.ndarray
    most: int


def _measure_set_diversity(run: Run) -> Made:
    selects = run.settings.selects
    measured = _selection_pool(run) if selects else _corpus_sample(run)
    vectors, rows = measured.vectors, measured.rows
    names, codes = _sources(run, measured)
    sums, added = _sums(run, measured, names, codes) if selects else (_group_sums(measured, names, codes), 0)
    diversity = group_diversity(sums)
    sizes = np.bincount(codes, minlength=len(names)).tolist()
    groups = [_group("corpus", "all", len(rows), diversity.whole)]
    figures: dict[str, Any] = {"vendi_all": groups[0]["vendi"]}
    if selects:
        chosen = rows[load_selected(run)[measured.records]]
        groups.append(_group("corpus", "chosen", len(chosen), vendi(gram(vectors, chosen))))
        figures |= {"vendi_chosen": groups[1]["vendi"], "added_to_sums": added}
    else:
        figures |= {"vectors": chosen_kind(run), "dims": vectors.shape[1], "measured_documents": len(rows)}
    if run.settings.input.source_field:
        scores = (sizes, diversity.groups.tolist(), diversity.without.tolist())
        groups += [_group("source", name, *row) for name, *row in zip(names, *scores, strict=True)]
    labels = run.column("clusters", "labels")[measured.records]
    for cluster in np.argsort(-np.bincount(labels), kind="stable")[: measured.most].tolist():
        members = rows[labels == cluster]
        if len(members):
            groups.append(_group("cluster", str(cluster), len(members), vendi(gram(vectors, members))))
    files: dict[str, Any] = {"groups": groups}
    if not selects:
        return Made(files, figures=figures)
    files["batches"] = _batches(run, vectors)
    files["sums"] = {
        "sums": sums,
        "ids": run.records.text_ids(run.view.fragments)[measured.records],
        "codes": codes,
    }
    vectors_key = run.receipt(VECTORS).key
    figures |= {f"batches_{row['order'].replace(' ', '_')}": row["mean vendi"] for row in files["batches"]}
    return Made(files, {"names": names, "vectors": vectors_key}, figures)


def _selection_pool(run: Run) -> _Measured:
    vectors = map_vectors(run.store, run.view, run.receipt(VECTORS))
    rows = np.flatnonzero(run.are_first)
    return _Measured(vectors, rows, rows, MAX_VALUES)


def _corpus_sample(run: Run) -> _Measured:
    """All documents or a random sample, each at its first record."""
    view, space = run.view, Space(run.files(STAGE_OF[chosen_kind(run)]), centre=False)
    dims = space.dims(view)
    records = np.sort(records_by_text(run.records, view, max(1, SAMPLE_BYTES // (4 * dims))))
    most = min(MAX_VALUES, max(1, SUMS_SIZE // dims**2))
    return _Measured(space.rows(view, records), np.arange(len(records)), records, most)


def _group(part: str, value: str, documents: int, score: float, without: float | None = None) -> Row:
    return {
        "of": part,
        "value": value,
        "documents": documents,
        "vendi": round(score, 4),
        "all without it": None if without is None else round(without, 4),
    }


def _sources(run: Run, measured: _Measured) -> tuple[list[str], np.ndarray]:
    """(names of the largest sources, sorted, and OTHERS for the rest, `measured.most` in all; the code of each
    document)."""
    field = run.settings.input.source_field
    if field is None:
        return [OTHERS], np.zeros(len(measured.rows), np.int64)
    values = load_fields(run, field).column(field).to_pandas().iloc[measured.records].astype("str").to_numpy()
    names, codes, sizes = np.unique(values.astype(str), return_inverse=True, return_counts=True)
    if len(names) <= measured.most:
        return names.tolist(), codes
    named = measured.most - 1
    largest = np.sort(np.argsort(-sizes, kind="stable")[:named])
    code = np.full(len(names), named)
    code[largest] = np.arange(named)
    return [*names[largest].tolist(), OTHERS], code[codes]


def _group_sums(measured: _Measured, names: list[str], codes: np.ndarray) -> np.ndarray:
    """Gram sums of the sources, float64 (G, D, D)."""
    return group_grams(measured.vectors, measured.rows, codes, len(names))


def _sums(run: Run, measured: _Measured, names: list[str], codes: np.ndarray) -> tuple[np.ndarray, int]:
    """(Gram sums of the sources, float64 (G, D, D); the number of documents added to the last run's sums)."""
    last = load_receipt(run.store, SET_DIVERSITY.name)
    if (
        last is None
        or "sums" not in last.files  # made without a selection
        or last.facts["vectors"] != run.receipt(VECTORS).key
        or not run.store.exists(last.files["sums"])
    ):
        return _group_sums(measured, names, codes), len(measured.rows)
    kept, before = unpack(run.store.read_verified(last.files["sums"])), list(last.facts["names"])
    ids = run.records.text_ids(run.view.fragments)
    known = places(ids[measured.records], kept["ids"])
    was, now = np.array(before)[kept["codes"][known[known >= 0]]], np.array(names)[codes[known >= 0]]
    if len(was) < len(kept["ids"]) or (was != now).any():  # documents are gone, or of another source
        return _group_sums(measured, names, codes), len(measured.rows)
    new = known < 0
    sums = group_grams(measured.vectors, measured.rows[new], codes[new], len(names))
    for at, name in enumerate(before):
        # A source without a name now has no documents either.
        if name in names:
            sums[names.index(name)] += kept["sums"][at]
    return sums, int(new.sum())


def _batches(run: Run, vectors: np.ndarray) -> list[Row]:
    """The Vendi score of batches, with documents weighted by their counted tokens, a row an order."""
    stream, packed, sequences = load_stream(run), load_packed(run), load_sequence_order(run)[0]
    draw = np.random.default_rng(run.settings.seed)
    items = np.arange(len(stream.traits.tokens))
    orders = {
        "original order": items,
        "documents shuffled": draw.permutation(items),
        "documents in order": load_order(run),
    }
    runs = {name: (order, stream.traits.counted[order]) for name, order in orders.items()}
    of_runs = run_counter(run, stream.record_of)(packed)
    shuffled = {
        "training sequences shuffled": draw.permutation(sequences),
        "training sequences in order": sequences,
    }
    for name, order in shuffled.items():
        at, _ = runs_in_order(packed.indptr, order)
        runs[name] = packed.document[at], of_runs[at]
    rows, size = [], batch_tokens(run, packed, of_runs)
    for name, (items, tokens) in counted(run.progress, "batches", runs.items(), len(runs), "orders"):
        scores = window_scores(vectors, stream.record_of[items], tokens, size)
        rows.append(
            {
                "order": name,
                "batches": len(scores),
                "mean vendi": round(float(np.mean(scores)), 4),
                "lowest": round(min(scores), 4),
            }
        )
    return rows


def load_groups(run: Run) -> list[Row]:
    """One row per part of the corpus; see `_group`."""
    return run.rows("set_diversity", "groups")


def load_batches(run: Run) -> list[Row]:
    """One row per order; see `_batches`. None without a selection."""
    has_batches = "batches" in run.receipt("set_diversity").files
    return run.rows("set_diversity", "batches") if has_batches else []


def _show_set_diversity(run: Run, receipt: Receipt) -> Shown:
    shown = {"groups": Table(load_groups(run))}
    return shown | ({"batches": Table(batches)} if (batches := load_batches(run)) else {})


def _set_diversity_reads(settings: Settings) -> tuple[str, ...]:
    fields = ["fields"] if settings.input.source_field else []
    if not settings.selects:
        return ("raw_docs", *space_reads(settings), "clusters", *fields)
    return (
        *("raw_docs", "clusters", "traits", VECTORS, *fields),
        *selection_reads(settings),
        *stream_reads(settings),
        *("greedy_order", "packed_sequences", "sequence_order"),
    )


SET_DIVERSITY = WholeCorpus(
    name="set_diversity",
    version=2,
    description="How many different things (Vendi scores) there are in the corpus, the selection, each source and "
    "cluster, and in batches under several orders; and how much only each source adds.",
    reads=_set_diversity_reads,
    settings=("input", "chats", "selection", "sequence", "seed"),
    doing="measuring the diversity of sets",
    compute=_measure_set_diversity,
    show=_show_set_diversity,
)
