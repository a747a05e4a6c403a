"""set_diversity: how many different things there are in the corpus, in what was chosen, in its parts and in batches.

`groups`: the Vendi score of the corpus, of what is chosen, of each source (`input.source_field`) and of each cluster;
of a source also that of all without it: how much it alone brings. Of equal texts one counts.

With a selection the vectors are those that it goes by. Sums by source are kept, with the ids of what is in them:
appended documents are added to them, and nothing else is read for these scores. `batches`: the score of batches of
training, by tokens, under the order that was made and under others.

Without one the vectors are those that are clustered, no order is needed, and of a large corpus a random sample counts,
SAMPLE_BYTES of vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dagster_divorder.core.measure.packed import runs_in_order
from dagster_divorder.core.measure.vendi import gram, group_diversity, group_grams, vendi, window_scores
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Shown, Table, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.mix.repeats import load_stream, stream_reads
from dagster_divorder.stages.mix.subset_selection import load_selected, selection_reads, vectors_stage
from dagster_divorder.stages.order.greedy_order import load_order
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.topics.centroids import SAMPLE_BYTES
from dagster_divorder.stages.topics.components import STAGE_OF, chosen_kind, space_reads
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.ids import places
from dagster_divorder.store.sample import document_ids, rows_by_id
from dagster_divorder.store.space import Space, map_vectors
from dagster_divorder.store.state import Receipt, load_receipt

MAX_VALUES = 32
"""Sources and clusters with a score of their own: the largest; sums of a source take 8 D^2 bytes. The other sources
count as one."""
SUMS_SIZE = 1 << 25
"""Numbers of the sums of all sources where nothing is selected: of wide vectors fewer sources and clusters have a score
of their own, each of which takes D^3."""
OTHERS = "(other)"


@dataclass(frozen=True, eq=False, slots=True)
class _Measured:
    """The documents that are measured: `records` int64 (n,), their positions, rising; `rows` int64 (n,) of `vectors`
    are theirs. most: sources and clusters with a score of their own."""

    vectors: np.ndarray
    rows: np.ndarray
    records: np.ndarray
    most: int


def _measure_set_diversity(run: Run) -> Made:
    selects = run.settings.selects
    of = _of_selection(run) if selects else _of_corpus(run)
    names, codes = _sources(run, of)
    sums, added = _sums(run, of, names, codes) if selects else (_group_sums(of, names, codes), 0)
    found = group_diversity(sums)
    sizes = np.bincount(codes, minlength=len(names)).tolist()
    groups = [_group("corpus", "all", len(of.rows), found.whole)]
    figures: dict[str, Any] = {"vendi_all": groups[0]["vendi"]}
    if selects:
        chosen = of.rows[load_selected(run)[of.records]]
        groups.append(_group("corpus", "chosen", len(chosen), vendi(gram(of.vectors, chosen))))
        figures |= {"vendi_chosen": groups[1]["vendi"], "added_to_sums": added}
    else:
        figures |= {
            "vectors": chosen_kind(run),
            "dims": of.vectors.shape[1],
            "measured_documents": len(of.rows),
        }
    if run.settings.input.source_field:
        scores = (sizes, found.groups.tolist(), found.without.tolist())
        groups += [_group("source", name, *row) for name, *row in zip(names, *scores, strict=True)]
    labels = run.column("clusters", "labels")[run.view.document_row[of.records]]
    for cluster in np.argsort(-np.bincount(labels), kind="stable")[: of.most].tolist():
        members = of.rows[labels == cluster]
        if len(members):
            groups.append(_group("cluster", str(cluster), len(members), vendi(gram(of.vectors, members))))
    files: dict[str, Any] = {"groups": groups}
    if not selects:
        return Made(files, figures=figures)
    files["batches"] = _batches(run, of.vectors)
    ids = document_ids(run.store, run.view)
    files["sums"] = {"sums": sums, "ids": ids[run.view.document_row[of.records]], "codes": codes}
    vectors_key = run.receipt(vectors_stage(run.settings)).key
    figures |= {f"batches_{row['order'].replace(' ', '_')}": row["mean vendi"] for row in files["batches"]}
    return Made(files, {"names": names, "vectors": vectors_key}, figures)


def _of_selection(run: Run) -> _Measured:
    vectors = map_vectors(run.store, run.view, run.receipt(vectors_stage(run.settings)))
    rows = np.flatnonzero(run.view.copies == np.arange(len(run.view)))
    return _Measured(vectors, rows, rows, MAX_VALUES)


def _of_corpus(run: Run) -> _Measured:
    """A random sample of the documents, each by its first record, or all."""
    view, space = run.view, Space(run.files(STAGE_OF[chosen_kind(run)]), centre=False)
    dims = space.dims(view)
    firsts = np.flatnonzero(view.copies == np.arange(len(view)))
    first_record = np.empty(view.document_rows, np.int64)
    first_record[view.document_row[firsts]] = firsts
    records = np.sort(first_record[rows_by_id(run.store, view, max(1, SAMPLE_BYTES // (4 * dims)))])
    most = min(MAX_VALUES, max(1, SUMS_SIZE // dims**2))
    return _Measured(space.rows(view, view.document_row[records]), np.arange(len(records)), records, most)


def _group(of: str, value: str, documents: int, score: float, without: float | None = None) -> dict[str, Any]:
    left = None if without is None else round(without, 4)
    return {
        "of": of,
        "value": value,
        "documents": documents,
        "vendi": round(score, 4),
        "all without it": left,
    }


def _sources(run: Run, of: _Measured) -> tuple[list[str], np.ndarray]:
    """(names of the sources, the largest by name and OTHERS for the rest, `of.most` in all; the code of each
    document)."""
    field = run.settings.input.source_field
    if field is None:
        return [OTHERS], np.zeros(len(of.rows), np.int64)
    values = load_fields(run, field).column(field).to_pandas().iloc[of.records].astype("str").to_numpy()
    names, codes, sizes = np.unique(values.astype(str), return_inverse=True, return_counts=True)
    if len(names) <= of.most:
        return names.tolist(), codes
    named = of.most - 1
    largest = np.sort(np.argsort(-sizes, kind="stable")[:named])
    code = np.full(len(names), named)
    code[largest] = np.arange(named)
    return [*names[largest].tolist(), OTHERS], code[codes]


def _group_sums(of: _Measured, names: list[str], codes: np.ndarray) -> np.ndarray:
    """Gram sums of the sources, float64 (G, D, D)."""
    return group_grams(of.vectors, of.rows, codes, len(names))


def _sums(run: Run, of: _Measured, names: list[str], codes: np.ndarray) -> tuple[np.ndarray, int]:
    """(Gram sums of the sources, float64 (G, D, D); how many documents were added to those of the last run)."""
    last = load_receipt(run.store, SET_DIVERSITY.name)
    if (
        last is None
        or "sums" not in last.files  # made without a selection
        or last.facts["vectors"] != run.receipt(vectors_stage(run.settings)).key
        or not run.store.exists(last.files["sums"])
    ):
        return _group_sums(of, names, codes), len(of.rows)
    kept, before = unpack(run.store.read_verified(last.files["sums"])), list(last.facts["names"])
    ids = document_ids(run.store, run.view)
    known = places(ids[run.view.document_row[of.records]], kept["ids"])
    was, now = np.array(before)[kept["codes"][known[known >= 0]]], np.array(names)[codes[known >= 0]]
    if len(was) < len(kept["ids"]) or (was != now).any():  # some are gone, or of another source
        return _group_sums(of, names, codes), len(of.rows)
    new = known < 0
    sums = group_grams(of.vectors, of.rows[new], codes[new], len(names))
    for at, name in enumerate(before):
        # A source that has lost its name has no document left in it either.
        if name in names:
            sums[names.index(name)] += kept["sums"][at]
    return sums, int(new.sum())


def _batches(run: Run, vectors: np.ndarray) -> list[dict[str, Any]]:
    """The Vendi score of batches, each document by its tokens in them, a row an order."""
    stream, packed, sequences = load_stream(run), load_packed(run), load_sequence_order(run)[0]
    draw = np.random.default_rng(run.settings.seed)
    items = np.arange(len(stream.view))
    orders = {
        "original order": items,
        "documents shuffled": draw.permutation(items),
        "documents in order": load_order(run),
    }
    runs = {name: (order, stream.traits.tokens[order]) for name, order in orders.items()}
    shuffled = {
        "training sequences shuffled": draw.permutation(sequences),
        "training sequences in order": sequences,
    }
    for name, order in shuffled.items():
        at, _ = runs_in_order(packed.indptr, order)
        runs[name] = packed.document[at], packed.length[at]
    rows, size = [], run.settings.sequence.batch * run.settings.sequence.length
    for name, (of, tokens) in counted(run.progress, "batches", runs.items(), len(runs), "orders"):
        scores = window_scores(vectors, stream.record(of), tokens, size)
        rows.append(
            {
                "order": name,
                "batches": len(scores),
                "mean vendi": round(float(np.mean(scores)), 4),
                "lowest": round(min(scores), 4),
            }
        )
    return rows


def load_groups(run: Run) -> list[dict[str, Any]]:
    """A row a part of the corpus; see `_group`."""
    return run.rows("set_diversity", "groups")


def load_batches(run: Run) -> list[dict[str, Any]]:
    """A row an order; see `_batches`. None without a selection."""
    there = "batches" in run.receipt("set_diversity").files
    return run.rows("set_diversity", "batches") if there else []


def _show_set_diversity(run: Run, receipt: Receipt) -> Shown:
    shown = {"groups": Table(load_groups(run))}
    return shown | ({"batches": Table(batches)} if (batches := load_batches(run)) else {})


def _set_diversity_reads(settings: Settings) -> tuple[str, ...]:
    fields = ["fields"] if settings.input.source_field else []
    if not settings.selects:
        return ("raw_docs", *space_reads(settings), "clusters", *fields)
    return (
        *("raw_docs", "clusters", "traits", vectors_stage(settings), *fields),
        *selection_reads(settings),
        *stream_reads(settings),
        *("greedy_order", "packed_sequences", "sequence_order"),
    )


def _set_diversity_settings(settings: Settings) -> dict[str, Any]:
    if not settings.selects:
        return {"source": settings.input.source_field}
    return {
        "source": settings.input.source_field,
        "batch": [settings.sequence.batch, settings.sequence.length],
        "seed": settings.seed,
    }


SET_DIVERSITY = WholeCorpus(
    name="set_diversity",
    version=2,
    kinds={"numpy"},
    description="How many different things there are in the corpus, in what was chosen, in each source and cluster, "
    "and in batches under several orders (Vendi scores); and what each source alone brings.",
    evidence="how many different things there are in the corpus, in what is chosen and in its parts",
    reads=_set_diversity_reads,
    settings=_set_diversity_settings,
    doing="measuring the diversity of sets",
    compute=_measure_set_diversity,
    show=_show_set_diversity,
)
