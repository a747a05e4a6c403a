"""clusters_not_degenerate: no cluster is empty, and none holds most of the documents.

Most is more than MOST of them, for a few clusters more than EVEN times their even share, and never more than NEARLY_ALL
unless one cluster was asked for. Balancing by clusters that tell little apart changes little. An empty cluster harms
nothing, but says that the centroids were fitted to other data.
"""

from __future__ import annotations

from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.verify import Finding

MOST = 0.5
EVEN = 3
NEARLY_ALL = 0.95


def look(run: Run) -> Finding:
    report = run.receipt("clusters").report
    sizes: list[int] = report["cluster_sizes"]
    documents, k = sum(sizes), len(sizes)
    largest = max(range(k), key=sizes.__getitem__)
    share = sizes[largest] / documents
    empty = [label for label, size in enumerate(sizes) if not size]
    # One cluster is what was asked for, or all that one document can be in.
    alone = run.settings.clusters.k == 1 or documents == 1
    limit = 1.0 if alone else min(NEARLY_ALL, max(MOST, EVEN / k))
    faults = []
    if empty:
        faults.append(f"{len(empty)} of {k} clusters are empty (the first: {empty[0]})")
    if share > limit:
        faults.append(f"cluster {largest} holds {share:.0%} of the documents, more than {limit:.0%}")
        # Why there are fewer clusters than asked for, where there are.
        faults += [report["note"]] if report["note"] else []
    return Finding(
        passed=not faults,
        text=f"{'; '.join(faults)}."
        if faults
        else f"{k} clusters of {min(sizes):,} to {max(sizes):,} documents; the largest holds {share:.0%}.",
        remedy='fit them again (clusters.refit = "now" for one run), with more clusters where one holds most '
        '(clusters.k, or "auto") and fewer where some are empty; a boilerplate text in most documents also makes one '
        "large cluster: look at its documents in the cluster map, and take such text out of the input; vectors that "
        "are all alike come of a model with damaged weights, or of a tokenizer that knows none of the texts' words",
        figures={"k": k, "empty": len(empty), "largest": sizes[largest], "largest_share": share},
    )
