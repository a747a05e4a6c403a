"""set_diversity: how many different things (Vendi score) the corpus, the selection and their parts hold.

A row for the corpus, the selection, each source (`input.source_field`; also the corpus without it, which shows how much
only this source adds) and each cluster. Equal texts count once. With a selection the vectors are the selection's;
without one they are the clustered ones, and a random sample with SAMPLE_BYTES of vectors represents a large corpus.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dagster_divorder.core.measure.vendi import gram, vendi, vendi_of_groups
from dagster_divorder.corpus.sample import records_by_text
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Table, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.mix.subset_selection import VECTORS, load_selected, selection_reads
from dagster_divorder.stages.topics.components import STAGE_OF, chosen_kind, space_reads
from dagster_divorder.store.space import SAMPLE_BYTES, Space, map_vectors

MAX_VALUES = 32
"""Most sources and clusters with their own score, the largest ones; all other sources count as one."""
SUMS_SIZE = 1 << 25
"""Most numbers in the sums of all sources, so with wide vectors fewer sources and clusters have their own score."""
OTHERS = "(other)"


def load_groups(run: Run) -> list[dict[str, Any]]:
    """One row per part of the corpus; see `_row`."""
    return run.rows("set_diversity", "groups")


def _measure_set_diversity(run: Run) -> Made:
    field, view = run.settings.input.source_field, run.view
    if run.settings.selects:
        vectors = map_vectors(run.store, view, run.receipt(VECTORS))
        records = rows = np.flatnonzero(run.are_first)
        most, figures = MAX_VALUES, dict[str, Any]()
    else:
        # All documents or a random sample, each at its first record.
        space = Space(run.files(STAGE_OF[chosen_kind(run)]), centre=False)
        dims = space.dims(view)
        records = np.sort(records_by_text(run.records, view, max(1, SAMPLE_BYTES // (4 * dims))))
        vectors, rows = space.rows(view, records), np.arange(len(records))
        most = min(MAX_VALUES, max(1, SUMS_SIZE // dims**2))
        figures = {"vectors": chosen_kind(run), "dims": dims, "measured_documents": len(rows)}

    def score(part: str, value: str, rows: np.ndarray) -> dict[str, Any]:
        return _row(part, value, len(rows), vendi(gram(vectors, rows)))

    groups = [score("corpus", "all", rows)]
    figures["vendi_all"] = groups[0]["vendi"]
    if run.settings.selects:
        groups.append(score("corpus", "chosen", rows[load_selected(run)[records]]))
        figures["vendi_chosen"] = groups[1]["vendi"]
    if field:
        values = load_fields(run, field).column(field).to_pandas().iloc[records].astype("str").to_numpy()
        names, codes = _largest_sources(values.astype(str), most)
        sizes = np.bincount(codes, minlength=len(names)).tolist()
        scores = vendi_of_groups(vectors, rows, codes, len(names))
        groups += [_row("source", *row) for row in zip(names, sizes, *scores, strict=True)]
    labels = run.column("clusters", "labels")[records]
    for cluster in np.argsort(-np.bincount(labels), kind="stable")[:most].tolist():
        if len(members := rows[labels == cluster]):
            groups.append(score("cluster", str(cluster), members))
    return Made({"groups": groups}, figures=figures)


def _row(part: str, value: str, documents: int, score: float, without: float | None = None) -> dict[str, Any]:
    return {
        "of": part,
        "value": value,
        "documents": documents,
        "vendi": round(float(score), 4),
        "all without it": None if without is None else round(float(without), 4),
    }


def _largest_sources(values: np.ndarray, most: int) -> tuple[list[str], np.ndarray]:
    """(names of the largest sources, sorted, and OTHERS for the rest, `most` in all; each document's code)."""
    names, codes, sizes = np.unique(values, return_inverse=True, return_counts=True)
    if len(names) <= most:
        return names.tolist(), codes
    largest = np.sort(np.argsort(-sizes, kind="stable")[: most - 1])
    code = np.full(len(names), most - 1)
    code[largest] = np.arange(most - 1)
    return [*names[largest].tolist(), OTHERS], code[codes]


def _set_diversity_reads(settings: Settings) -> tuple[str, ...]:
    fields = ["fields"] if settings.input.source_field else []
    vectors = [VECTORS, *selection_reads(settings)] if settings.selects else space_reads(settings)
    return ("raw_docs", "clusters", *fields, *vectors)


SET_DIVERSITY = WholeCorpus(
    name="set_diversity",
    version=3,
    description="How many different things (Vendi scores) there are in the corpus, the selection, each source and "
    "cluster; and how much only each source adds.",
    reads=_set_diversity_reads,
    settings=("input", "chats", "selection", "seed"),
    doing="measuring the diversity of sets",
    compute=_measure_set_diversity,
    show=lambda run, receipt: {"groups": Table(load_groups(run))},
)
