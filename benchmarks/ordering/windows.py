"""Seconds that the measures of an order take.

    python benchmarks/ordering/windows.py [--documents 1000000 10000000]

Documents of log-normal length in three traits of 30, 100 and 16 values, packed into sequences of 8192 tokens, in
batches of 256. CPU seconds, compiled before, and the
process's peak memory so far, inputs included.
"""

import argparse
import resource
import time

import numpy as np

from dagster_divorder.core.measure import measure, packed_counts
from dagster_divorder.core.packing import Pieces, pack

TRAITS = (30, 100, 16)


def measured(documents: int, random: np.random.Generator) -> str:
    tokens, order = np.ceil(random.lognormal(5, 1.5, documents)).astype(np.int64), np.arange(documents)
    packed = pack(Pieces(order, np.zeros_like(order), tokens), sequence_length=8192)
    codes = {str(values): random.integers(0, values, documents).astype(np.int32) for values in TRAITS}
    counts = packed_counts(packed, codes, {str(values): values for values in TRAITS})
    begin = time.process_time()
    measure(counts, np.arange(len(packed)), batch=256)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"| {documents:,} | {len(packed):,} | {time.process_time() - begin:.2f} | {peak:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="*", default=[1_000_000, 10_000_000])
    options = parser.parse_args()
    random = np.random.default_rng(1)
    measured(1000, random)
    print("| documents, 3 traits | sequences | CPU seconds | peak memory, MB |\n|--:|--:|--:|--:|")
    for documents in options.documents:
        print(measured(documents, random), flush=True)


if __name__ == "__main__":
    main()
