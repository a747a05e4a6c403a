"""The stages, one a file. A stage is registered here, in an order in which all of them can run.

The module of a stage is imported when the stage is first asked for: a run needs half of them.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module

from dagster_divorder.corpus.peek import recognised
from dagster_divorder.engine.progress import Progress
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.run import Run, run_graph
from dagster_divorder.pipeline.stage import PerDocument, Stage, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.store.objects import store_at
from dagster_divorder.store.state import Receipt

MODULES = {
    "raw_docs": "corpus.raw_docs",
    "ids": "corpus.ids",
    "fields": "corpus.fields",
    "base_model": "text.base_model",
    "token_counts": "text.token_counts",
    "shallow_embeddings": "topics.shallow_embeddings",
    "deep_model": "topics.deep_model",
    "deep_embeddings": "topics.deep_embeddings",
    "gradient_embeddings": "topics.gradient_embeddings",
    "external_embeddings": "topics.external_embeddings",
    "ari_comparison": "topics.ari_comparison",
    "k_calibration": "topics.k_calibration",
    "centroids": "topics.clusters",
    "clusters": "topics.clusters",
    "cluster_names": "topics.cluster_names",
    "map_fit": "topics.cluster_map",
    "cluster_map": "topics.cluster_map",
    "bin_edges": "order.bin_edges",
    "traits": "order.traits",
    "scores": "order.scores",
    "heldout": "mix.heldout",
    "heldout_copies": "mix.heldout_copies",
    "subset_selection": "mix.subset_selection",
    "repeats": "mix.repeats",
    "frozen": "order.frozen",
    "greedy_order": "order.greedy_order",
    "packed_sequences": "order.packed_sequences",
    "sequence_order": "order.sequence_order",
    "stationarity": "measure.stationarity",
    "exports": "output.exports",
    "diversity_metrics": "measure.diversity_metrics",
    "curated_output": "output.curated_output",
    "strategy_comparison": "evidence.strategy_comparison",
    "training_evidence": "evidence.training_evidence",
    "ordering_animation": "output.ordering_animation",
    "ordering_report": "output.ordering_report",
}
"""Stage -> its module in this package, which holds the stage under its name in capitals."""

EVIDENCE = {
    "ari_comparison": "whether two kinds of vectors see the same clusters",
    "k_calibration": "how many clusters the corpus has",
    "cluster_map": "the documents as a map, coloured by cluster",
    "strategy_comparison": "strategies of both levels side by side on this corpus",
    "training_evidence": "what the order does to small models trained in it",
}
"""Evidence -> what the report shows of it. The report shows what exists; `divorder report --all` makes
it, and the job `report` all of it but trainings."""


@cache
def _stage(name: str) -> Stage:
    stage: Stage = getattr(import_module(f"{__name__}.{MODULES[name]}"), name.upper())
    return stage


GRAPH = Graph(MODULES, _stage)


def run_all(
    settings: Settings, progress: Progress | None = None, stages: Iterable[str] | None = None
) -> dict[str, Receipt]:
    """Run stages in order, by default all that an output needs, alone on the store throughout.

    Without new input nothing is computed. A second run on the same store waits for this one.

    Raises:
        DivOrderError: says what is wrong, what was expected and what to do.
    """
    return run_graph(GRAPH, recognised(settings), progress, stages)


def run_stage(stage: str, settings: Settings, progress: Progress | None = None) -> Receipt:
    """Run one stage, with its parts, on the stored results of the stages before it; see `run_all`."""
    return run_all(settings, progress, GRAPH.step(settings, stage))[stage]


def open_run(settings: Settings) -> Run:
    """The results that the last run left in the store of these settings, to read.

    Raises:
        StoreError: the place of the store holds other files, or a store of another version.
    """
    return Run(recognised(settings), store_at(settings.store.path).open(create=False), GRAPH)


def asset_upstream(graph: Graph, settings: Settings) -> dict[str, tuple[str, ...]]:
    """Asset -> the assets that it or its parts read; for the report also the evidence that it shows.

    An asset A is left out if another one of them is made from A and changes whenever A changes. A fit that an asset
    reads itself is never left out, since only a part of the fit may matter to the other assets.
    """
    upstream = graph.upstream(settings)
    if "ordering_report" in upstream:
        upstream["ordering_report"] += tuple(stage for stage in EVIDENCE if stage in upstream)
    direct = {
        name: dict.fromkeys(
            read
            for part in graph.parts(settings, name)
            for read in upstream[part]
            if graph[read].asset and read != name
        )
        for name in upstream
        if graph[name].asset
    }
    shown_by: dict[str, set[str]] = {}
    for name, reads in direct.items():
        stage = graph[name]
        # A pinned fit stays when its upstream changes.
        changes = isinstance(stage, (PerDocument, WholeCorpus))
        shown_by[name] = set(reads).union(*(shown_by[read] for read in reads)) if changes else set()
    return {
        name: tuple(
            read
            for read in reads
            if (read in upstream[name] and isinstance(graph[read], PinnedFit))
            or not any(read in shown_by[other] for other in reads)
        )
        for name, reads in direct.items()
    }
