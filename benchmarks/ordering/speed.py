"""Seconds of every strategy on synthetic documents: 30 clusters, 100 length bins, log-normal lengths, compiled before.

python benchmarks/ordering/speed.py [--documents 64000 1000000] [--strategies balanced ...]
"""

import argparse
import resource
import time

import numpy as np

from dagster_divorder.core.order import STRATEGIES, Order, order
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.traits import bin_codes, quantile_edges


def corpus(documents: int) -> Items:
    random = np.random.default_rng(0)
    tokens = np.ceil(random.lognormal(5, 1.5, documents)).astype(np.int64)
    clusters = random.choice(30, documents, p=random.dirichlet(np.ones(30))).astype(np.int32)
    return document_items(
        tokens, {"cluster": clusters, "length": bin_codes(tokens, quantile_edges(tokens, 100))}
    )


def run(items: Items, strategy: str) -> Order:
    return order(items, strategy=strategy)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="+", default=[64_000, 1_000_000])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=list(STRATEGIES))
    options = parser.parse_args()
    for strategy in options.strategies:
        run(corpus(100), strategy)
    print("| documents | strategy | seconds | CPU seconds | peak memory, MB |\n|--:|---|--:|--:|--:|")
    for documents in options.documents:
        items = corpus(documents)
        for strategy in options.strategies:
            begin, begin_cpu = time.perf_counter(), time.process_time()
            run(items, strategy)
            seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"| {documents:,} | {strategy} | {seconds:.2f} | {cpu:.2f} | {peak:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
