"""Seconds and peak memory of `divorder.order` on a table of three traits, each kind of table in a process of its own.

Rows have one of 30 topics and 12 sources (text) and a log-normal length. Compile the kernels before:
python -m dagster_divorder.warm

python benchmarks/ordering/tables.py [--rows 1000000] [--kinds Arrow pandas polars Dataset dict]
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def columns(rows: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    names = {"topic": np.array([f"topic {at}" for at in range(30)]), "source": np.array([*"abcdefghijkl"])}
    return {
        **{
            name: of[random.choice(len(of), rows, p=random.dirichlet(np.ones(len(of))))]
            for name, of in names.items()
        },
        "length": np.ceil(random.lognormal(5, 1.5, rows)).astype(np.int64),
    }


def arrow(of: dict[str, Any]) -> Any:
    import pyarrow as pa

    from dagster_divorder.tables.table import to_arrow

    return pa.table([to_arrow(column) for column in of.values()], list(of))


def frame(of: dict[str, Any]) -> Any:
    import pandas as pd

    return pd.DataFrame(of)


def polars(of: dict[str, Any]) -> Any:
    import polars as pl

    return pl.from_arrow(arrow(of))


def dataset(of: dict[str, Any]) -> Any:
    import datasets

    return datasets.Dataset(arrow(of))


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "Arrow": arrow,
    "pandas": frame,
    "polars": polars,
    "Dataset": dataset,
    "dict": lambda of: of,
}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(kind: str, rows: int) -> None:
    table = KINDS[kind](columns(rows))
    before, begin, cpu = peak(), time.perf_counter(), time.process_time()
    import dagster_divorder as divorder

    ranks = divorder.order(table, by=["topic", "source", "length"], tokens="length")
    seconds = time.perf_counter() - begin
    assert len(np.unique(ranks)) == rows
    print(
        f"| {kind} | {rows:,} | {seconds:.1f} | {time.process_time() - cpu:.1f} | {before:,.0f} | {peak():,.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--one", choices=list(KINDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.one, options.rows)
        return
    print(
        "| table | rows | seconds | CPU seconds | peak of the table, MB | peak, MB |\n|---|--:|--:|--:|--:|--:|",
        flush=True,
    )
    for kind in options.kinds:
        subprocess.run([sys.executable, __file__, "--one", kind, "--rows", str(options.rows)], check=True)


if __name__ == "__main__":
    main()
