"""set_diversity: how many different things there are in the corpus, in what was chosen, in its parts and in batches.

`groups`: the Vendi score of the corpus, of what is chosen, of each source (`input.source_field`) and of each cluster;
of a source also that of all without it: how much it alone brings. Of equal texts one counts. Sums by source are kept,
with the ids of what is in them: appended documents are added to them, and nothing else is read for these scores.
`batches`: the score of batches of training, by tokens, under the order that was made and under others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dagster_divorder.core.metrics.packed import runs_in_order
from dagster_divorder.core.vendi import gram, group_diversity, group_grams, vendi, window_scores
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Shown, Table, WholeCorpus
from dagster_divorder.stages.fields import load_fields
from dagster_divorder.stages.greedy_order import load_order
from dagster_divorder.stages.packed_sequences import load_packed
from dagster_divorder.stages.repeats import load_stream, stream_reads
from dagster_divorder.stages.sequence_order import load_sequence_order
from dagster_divorder.stages.subset_selection import load_selected, selection_reads, vectors_stage
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.ids import places
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.sample import document_ids
from dagster_divorder.store.space import map_vectors

MAX_VALUES = 32
"""Sources and clusters with a score of their own: the largest; sums of a source take 8 D^2 bytes. The other sources
count as one."""
OTHERS = "(other)"


def _compute(run: Run) -> Made:
    vectors = map_vectors(run.store, run.view, run.receipt(vectors_stage(run.settings)))
    rows = np.flatnonzero(run.view.copies == np.arange(len(run.view)))
    chosen = rows[load_selected(run)[rows]]
    names, codes = _sources(run, rows)
    sums, added = _sums(run, vectors, rows, names, codes)
    found = group_diversity(sums)
    sizes = np.bincount(codes, minlength=len(names)).tolist()
    groups = [_group("corpus", "all", len(rows), found.whole)]
    groups.append(_group("corpus", "chosen", len(chosen), vendi(gram(vectors, chosen))))
    if run.settings.input.source_field:
        of = (sizes, found.groups.tolist(), found.without.tolist())
        groups += [_group("source", name, *scores) for name, *scores in zip(names, *of, strict=True)]
    labels = run.column("clusters", "labels")[run.view.document_row[rows]]
    for cluster in np.argsort(-np.bincount(labels), kind="stable")[:MAX_VALUES].tolist():
        members = rows[labels == cluster]
        if len(members):
            groups.append(_group("cluster", str(cluster), len(members), vendi(gram(vectors, members))))
    batches = _batches(run, vectors)
    ids = document_ids(run.store, run.view)
    kept = {"sums": sums, "ids": ids[run.view.document_row[rows]], "codes": codes}
    vectors_key = run.receipt(vectors_stage(run.settings)).key
    figures = {
        "vendi_all": groups[0]["vendi"],
        "vendi_chosen": groups[1]["vendi"],
        "added_to_sums": added,
        **{f"batches_{row['order'].replace(' ', '_')}": row["mean vendi"] for row in batches},
    }
    return Made(
        {"groups": groups, "batches": batches, "sums": kept},
        {"names": names, "vectors": vectors_key},
        figures,
    )


def _group(of: str, value: str, documents: int, score: float, without: float | None = None) -> dict[str, Any]:
    left = None if without is None else round(without, 4)
    return {
        "of": of,
        "value": value,
        "documents": documents,
        "vendi": round(score, 4),
        "all without it": left,
    }


def _sources(run: Run, rows: np.ndarray) -> tuple[list[str], np.ndarray]:
    """(names of the sources, the largest MAX_VALUES - 1 by name and OTHERS for the rest; the code of each row)."""
    field = run.settings.input.source_field
    if field is None:
        return [OTHERS], np.zeros(len(rows), np.int64)
    values = load_fields(run, field).column(field).to_pandas().iloc[rows].astype("str").to_numpy()
    names, codes, sizes = np.unique(values.astype(str), return_inverse=True, return_counts=True)
    if len(names) <= MAX_VALUES:
        return names.tolist(), codes
    largest = np.sort(np.argsort(-sizes, kind="stable")[: MAX_VALUES - 1])
    code = np.full(len(names), MAX_VALUES - 1)
    code[largest] = np.arange(MAX_VALUES - 1)
    return [*names[largest].tolist(), OTHERS], code[codes]


def _sums(
    run: Run, vectors: np.ndarray, rows: np.ndarray, names: list[str], codes: np.ndarray
) -> tuple[np.ndarray, int]:
    """(Gram sums of the sources, float64 (G, D, D); how many documents were added to those of the last run)."""
    last = load_receipt(run.store, SET_DIVERSITY.name)
    if (
        last is None
        or last.facts["vectors"] != run.receipt(vectors_stage(run.settings)).key
        or not run.store.exists(last.files["sums"])
    ):
        return group_grams(vectors, rows, codes, len(names)), len(rows)
    kept, before = unpack(run.store.read_verified(last.files["sums"])), list(last.facts["names"])
    ids = document_ids(run.store, run.view)
    known = places(ids[run.view.document_row[rows]], kept["ids"])
    was, now = np.array(before)[kept["codes"][known[known >= 0]]], np.array(names)[codes[known >= 0]]
    if len(was) < len(kept["ids"]) or (was != now).any():  # some are gone, or of another source
        return group_grams(vectors, rows, codes, len(names)), len(rows)
    new = known < 0
    sums = group_grams(vectors, rows[new], codes[new], len(names))
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
    """A row an order; see `_batches`."""
    return run.rows("set_diversity", "batches")


def _show(run: Run, receipt: Receipt) -> Shown:
    return {"groups": Table(load_groups(run)), "batches": Table(load_batches(run))}


SET_DIVERSITY = WholeCorpus(
    name="set_diversity",
    version=2,
    kinds=lambda settings: {"numpy"},
    description="How many different things there are in the corpus, in what was chosen, in each source and cluster, "
    "and in batches under several orders (Vendi scores); and what each source alone brings.",
    reads=lambda settings: (
        *("raw_docs", "clusters", "traits", vectors_stage(settings)),
        *(["fields"] if settings.input.source_field else []),
        *selection_reads(settings),
        *stream_reads(settings),
        *("greedy_order", "packed_sequences", "sequence_order"),
    ),
    settings=lambda settings: {
        "source": settings.input.source_field,
        "batch": [settings.sequence.batch, settings.sequence.length],
        "seed": settings.seed,
    },
    when=lambda settings: settings.selects,
    doing="measuring the diversity of sets",
    compute=_compute,
    show=_show,
)
