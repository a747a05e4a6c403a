"""What it costs to order a corpus in shards: deviations against one order of all, and against other ways to deal.

    python benchmarks/ordering/shards.py [--documents 400000] [--clusters 1000] [--shards 8 64]      synthetic
    python benchmarks/ordering/shards.py --config divorder.toml [--shards 8]      the pipeline's own, on a real corpus
    python benchmarks/ordering/shards.py --memory [--documents 10000000]      seconds and bytes a document of the deal

Synthetic: documents of log-normal length (mean 900 tokens, sigma 1.1) in clusters of uneven size, each of which draws
its documents from 20 sources in its own proportions; ordered by clusters and 100 length bins, packed into sequences of
2048 tokens, and these ordered again. Prefix: mean L2 deviation over clusters and length bins at sequence ends, in
tokens; seams: the same over the ends of shards, largest. TV: total variation between a batch of 256 sequences and the
corpus; sources, which no order sees, tell whether anything else goes astray. The second form writes to the settings'
own store, so copy it first or name another; its columns of drift are batch distances as multiples of shuffles.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagster_divorder import load_settings, run_all
from dagster_divorder.core.measure.packed import measure_packed, runs_in_order
from dagster_divorder.core.measure.prefix import squares_in_stream
from dagster_divorder.core.order import order
from dagster_divorder.core.order.deal import shard_of_each
from dagster_divorder.core.order.items import document_items
from dagster_divorder.core.order.traits import Traits, bin_codes, quantile_edges
from dagster_divorder.core.packing import PackedSequences, Pieces, join, pack, sequence_counts
from dagster_divorder.engine.memory import with_peak_memory
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.measure.stationarity import load_stationarity

MEAN, SIGMA, BINS, SOURCES, LENGTH, BATCH = 900, 1.1, 100, 20, 2048, 256
TRAITS = {"cluster": 1.0, "length": 1.0}
UNSEEN = ("source", "words", "clusters of another seed", "shallow vectors")


def corpus(documents: int, clusters: int) -> Traits:
    random = np.random.default_rng(0)
    tokens = np.ceil(random.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, documents)).astype(np.int64)
    sizes = random.gamma(1.0, size=clusters)
    cluster = random.choice(clusters, documents, p=sizes / sizes.sum()).astype(np.int32)
    ends = np.cumsum(random.dirichlet(np.full(SOURCES, 0.3), clusters), axis=1)
    drawn = random.random(documents)
    source = np.zeros(documents, np.int32)
    for at in range(SOURCES - 1):
        source += drawn > ends[cluster, at]
    codes = {
        "cluster": cluster,
        "length": bin_codes(tokens, quantile_edges(tokens, BINS)),
        "source": source,
    }
    return Traits(tokens, codes, {name: tuple(map(str, range(of.max() + 1))) for name, of in codes.items()})


def by_cell(traits: Traits, shards: int) -> NDArray[np.int64]:
    """Documents of one cluster and length bin in turn to the shards."""
    cell = np.lexsort((traits.tokens, traits.codes["length"], traits.codes["cluster"]))
    shard = np.empty(len(cell), np.int64)
    shard[cell] = np.arange(len(cell)) % shards
    return shard


def in_shards(traits: Traits, shard: NDArray[np.integer], seen: dict[str, NDArray[np.int32]]) -> str:
    """The row of an order whose documents are of these shards."""
    begin, plans, orders = time.perf_counter(), [], []
    for number in range(int(shard.max()) + 1):
        members = np.flatnonzero(shard == number)
        items = document_items(
            traits.tokens[members], {name: of[members] for name, of in seen.items()}, TRAITS
        )
        made = members[order(items.counts, items.groups, weights=items.weights)]
        plans.append(pack(Pieces(made, np.zeros_like(made), traits.tokens[made]), sequence_length=LENGTH))
        orders.append(order(*sequence_counts(plans[-1], seen, traits.sizes())))
    seconds = time.perf_counter() - begin
    bounds = np.cumsum([0, *map(len, plans)])
    made = np.concatenate([first + of for first, of in zip(bounds[:-1], orders, strict=True)])
    return row(traits, join(*plans), made, bounds, seconds)


def row(
    traits: Traits, plan: PackedSequences, made: NDArray[np.int64], bounds: NDArray[np.int64], seconds: float
) -> str:
    found = measure_packed(plan, made[np.newaxis], traits.codes, traits.sizes(), batch=BATCH)
    runs, _ = runs_in_order(plan.indptr, made)
    squares = sum(
        squares_in_stream(
            plan.length[runs], traits.codes[name][plan.document[runs]], traits.sizes()[name], LENGTH
        )
        for name in TRAITS
    )
    l2 = np.sqrt(squares)
    seams = l2[bounds[1:-1] - 1]
    tv = " | ".join(f"{found.batch_shares[name].mean_tv:.4f}" for name in ("cluster", "length", "source"))
    return f"{l2.mean():,.0f} | {l2.max():,.0f} | {seams.max(initial=0):,.0f} | {tv} | {seconds:.0f}"


def synthetic(documents: int, clusters: int, numbers: list[int]) -> None:
    traits = corpus(documents, clusters)
    seen = {name: traits.codes[name] for name in TRAITS}
    print(f"{documents:,} documents, {clusters:,} clusters, sequences of {LENGTH} tokens")
    print(
        "| shards | documents dealt | prefix | largest | seams | TV clusters | lengths | sources | seconds |\n"
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|"
    )
    random = np.random.default_rng(0)
    shuffled = random.permutation(documents)
    plan = pack(Pieces(shuffled, np.zeros_like(shuffled), traits.tokens[shuffled]), sequence_length=LENGTH)
    print(
        f"| 1 | shuffled | {row(traits, plan, random.permutation(len(plan)), np.array([0, len(plan)]), 0)} |"
    )
    print(f"| 1 | one order | {in_shards(traits, np.zeros(documents, np.int64), seen)} |", flush=True)
    for shards in numbers:
        ways: dict[str, Callable[[], NDArray[np.integer]]] = {
            "at random": lambda: random.permutation(documents) % shards,  # noqa: B023
            "in turn inside a cluster and length": lambda: by_cell(traits, shards),  # noqa: B023
            "`deal`": lambda: shard_of_each(traits, TRAITS, shards),  # noqa: B023
        }
        for name, shard in ways.items():
            print(f"| {shards} | {name} | {in_shards(traits, shard(), seen)} |", flush=True)


def of_pipeline(settings: Settings, numbers: list[int]) -> None:
    print(f"| shards | prefix | TV clusters | lengths | {' | '.join(UNSEEN)} | drifts |")
    print(f"|--:|--:|--:|--:|{'--:|' * len(UNSEEN)}---|")
    shards_of = settings.order.shards_of
    for shards in (1, *numbers):
        order_ = settings.order.model_copy(update={"shards_of": shards_of})
        made = settings.model_copy(update={"order": order_})
        run_all(made, Silent())
        run = open_run(made)
        rows = {one["order"]: one for one in run.receipt("diversity_metrics").figures["summary"]}
        for name in ("sequences_random", "sequences") if shards == 1 else ("sequences",):
            found = rows[name]
            drift = load_stationarity(run)
            measures = {
                one.feature: one.measures["batch"] for one in drift.features if "batch" in one.measures
            }
            ours = name == "sequences"
            cells = [
                f"{of.value / of.shuffled:.2f}" if ours else "1" for of in map(measures.get, UNSEEN) if of
            ]
            drifting = ", ".join(of.feature for of in drift.drifting) or "nothing"
            print(
                f"| {shards if ours else 'shuffled'} | {found['mean prefix deviation, tokens']:,.0f} "
                f"| {found['batch TV, clusters']:.4f} | {found['batch TV of length']:.4f} | {' | '.join(cells)} "
                f"| {drifting if ours else ''} |",
                flush=True,
            )
        if numbers:
            shards_of = -(-len(run.view) // numbers.pop(0))


def memory(documents: int, shards: int) -> None:
    traits, few = corpus(documents, 1000), corpus(3000, 5)
    shard_of_each(few, TRAITS, 2)
    in_shards(few, np.zeros(3000, np.int64), {name: few.codes[name] for name in TRAITS})

    def timed(function: Callable[[], object]) -> str:
        begin = time.process_time()
        _, peak = with_peak_memory(function)
        seconds = time.process_time() - begin
        return f"| {1e6 * seconds / documents:.2f} | {(peak or 0) / documents:.0f} |"

    def ordered(members: NDArray[np.int64]) -> None:
        items = document_items(
            traits.tokens[members], {name: traits.codes[name][members] for name in TRAITS}, TRAITS
        )
        order(items.counts, items.groups, weights=items.weights)

    shard = shard_of_each(traits, TRAITS, shards)
    print(f"{documents:,} documents, 16 bytes each given")
    print("| | CPU-microseconds a document | peak, bytes more |\n|---|--:|--:|")
    print(f"| deal to {shards} shards {timed(lambda: shard_of_each(traits, TRAITS, shards))}", flush=True)
    print(f"| order them as one {timed(lambda: ordered(np.arange(documents)))}", flush=True)
    print(
        f"| order {shards} shards, one after another "
        f"{timed(lambda: [ordered(np.flatnonzero(shard == number)) for number in range(shards)])}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=400_000)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--shards", type=int, nargs="+", default=[8])
    parser.add_argument("--config", type=Path)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.config:
        of_pipeline(load_settings(options.config), options.shards)
    elif options.memory:
        memory(options.documents, options.shards[0])
    else:
        synthetic(options.documents, options.clusters, options.shards)


if __name__ == "__main__":
    main()
