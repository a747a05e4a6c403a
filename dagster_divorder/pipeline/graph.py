"""The asset graph: what each stage reads under some settings.

Which vectors are clustered (`embedding.kind`) and whether the number of clusters is calibrated (`clusters.k = "auto"`)
decide what an output needs; the other stages are evidence, and run when they are asked for.
"""

from __future__ import annotations

from dagster_divorder.settings import Settings

OUTPUT = "curated_output"


def upstream(settings: Settings) -> dict[str, tuple[str, ...]]:
    """What each stage reads directly, in an order in which stages can run."""
    compared = tuple(f"{kind}_embeddings" for kind in settings.ari_comparison.spaces)
    kind = settings.embedding.kind
    space = (*compared, "ari_comparison") if kind == "auto" else (f"{kind}_embeddings",)
    calibration = ("k_calibration",) if settings.clusters.k == "auto" else ()
    graph: dict[str, tuple[str, ...]] = {
        "raw_docs": (),
        "base_model": ("raw_docs",),
        "token_counts": ("raw_docs", "base_model"),
        "shallow_embeddings": ("token_counts", "base_model"),
        "deep_embeddings": ("token_counts", "base_model"),
        "external_embeddings": ("raw_docs",),
        "ari_comparison": compared,
        "k_calibration": (*space, "token_counts"),
        "clusters": (*space, *calibration),
        "cluster_map": ("clusters",),
        "greedy_order": ("clusters", "token_counts"),
        "packed_sequences": ("greedy_order", *space),
        "sequence_order": ("packed_sequences", *space),
        "diversity_metrics": ("greedy_order", "sequence_order"),
        OUTPUT: ("greedy_order", "sequence_order", "diversity_metrics", "raw_docs"),
        "strategy_comparison": ("clusters", "token_counts", *space),
        "ordering_animation": (OUTPUT, "greedy_order", "cluster_map"),
        "ordering_report": (
            OUTPUT,
            "strategy_comparison",
            "k_calibration",
            "ari_comparison",
            "cluster_map",
        ),
    }
    if "external_embeddings" not in (*space, *compared):
        del graph["external_embeddings"]
    return graph


def needed(settings: Settings, stage: str = OUTPUT) -> tuple[str, ...]:
    """A stage and all before it, in the order in which they run; by default all that an output needs."""
    graph = upstream(settings)
    found = {stage}
    for name in reversed(graph):
        if name in found:
            found.update(graph[name])
    return tuple(name for name in graph if name in found)
