"""ari_comparison: whether a second space shows other structure than the first (`core.topics.agreement`).

The spaces are `Embedding.compared`: shallow and deep; or, with `embedding.path`, external and one of the two.
`embedding.kind = "auto"` takes the one that the rule of Diversity-Ordered Training names. The result is a pinned fit,
so an append does not change the space. Measured: docs/decisions/clusters.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from dagster_divorder.core.topics.agreement import compare, told_by_words
from dagster_divorder.core.topics.terms import find_words
from dagster_divorder.corpus.stored import beginnings
from dagster_divorder.pipeline.fit import PinnedFit, has_changed
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Text
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_rows
from dagster_divorder.stages.topics.cluster_names import CHARACTERS, sample_size
from dagster_divorder.stages.topics.components import STAGE_OF, load_space
from dagster_divorder.store.stages import SAMPLE_BYTES

USUAL = 30
"""Clusters of each space if `clusters.k` is not a number: the recommended one depends on the space."""
TOLD_SHARE = 0.5
NOISE = "words tell the clusters of {1} vectors far less well ({3:.2f}) than those of {0} ones ({2:.2f})"
"""The note if words tell the chosen second space's clusters less than TOLD_SHARE as well as the first one's."""
INFO = "ari_comparison.json"


def _compare_clusterings(run: Run) -> Mapping[str, bytes]:
    kinds, k = run.settings.embedding.compared, run.settings.clusters.number or USUAL
    spaces = [load_space(run, kind) for kind in kinds]
    most = min(space.most_rows(run.view, SAMPLE_BYTES // 2) for space in spaces)
    rows = fit_rows(run, "ari_comparison", most)
    centre = (spaces[0].centre, spaces[1].centre)
    one, other = (space.rows(run.view, rows) for space in spaces)
    found = compare(one, other, k, seed=run.settings.seed, centre=centre, names=kinds)
    words, _ = find_words(beginnings(run.records, run.view, rows[: sample_size(k)], CHARACTERS))
    told = {
        kind: told_by_words(words, labels[: words.shape[0]])
        for kind, labels in zip(kinds, found.labels, strict=True)
    }
    noise = found.figures["chosen"] == kinds[1] and told[kinds[1]] < TOLD_SHARE * told[kinds[0]]
    note = NOISE.format(*kinds, *told.values()) if noise else None
    info = {"spaces": kinds, "k": k, **found.figures, "told_by_words": told, "note": note}
    return {INFO: orjson.dumps(info)}


ARI_COMPARISON = PinnedFit(
    name="ari_comparison",
    version=15,
    description="Whether deep vectors, or your own, are worth using instead of shallow ones. Both are clustered with "
    'the same number of clusters, and the clusterings compared. With `embedding.kind = "auto"` it picks the vectors.',
    reads=lambda settings: (
        *("raw_docs", *(STAGE_OF[kind] for kind in settings.embedding.compared)),
        "heldout_copies",
    ),
    settings=("embedding", "clusters", "seed"),
    decided_by=lambda run: {
        **{kind: run.receipt(STAGE_OF[kind]).key for kind in run.settings.embedding.compared},
        "seed": run.settings.seed,
        "k": run.settings.clusters.number or USUAL,
        **fit_inputs(run, "ari_comparison"),
    },
    doing="comparing the spaces",
    compute=_compare_clusterings,
    refit="ari_comparison",
    drift=has_changed,
    facts=lambda run, fitted: orjson.loads(fitted.files[INFO]),
    figures=lambda run, receipt: {
        name: value for name, value in receipt.facts.items() if name not in ("reason", "documents", "checked")
    },
    show=lambda run, receipt: {"conclusion": Text(receipt.figures["conclusion"])},
)
