"""Whether the recommended number of clusters survives the loss of 5 % of the documents.

python benchmarks/clustering/k_stability.py ../shared/data/newsgroups.jsonl.gz
python benchmarks/clustering/k_stability.py ../shared/data/mixture.jsonl.gz --documents 20000

The corpus is calibrated whole, then --times with a twentieth of its lines left out at random, in one store, so that the
vectors of the others stay as they are. `first fit` is what the rule would say of one fit of each number.
Asked for: always the same number within one of those tried, or that none is clear.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np
from k_calibration import calibrated, taken

from dagster_divorder import Settings
from dagster_divorder.core.topics.k_calibration import recommended
from dagster_divorder.stages.topics.k_calibration import load_table
from dagster_divorder.store.local import LocalStore


def apart(found: list[int | None]) -> str:
    """How many pairs of answers that name a number are more than a step apart; found: places among the values."""
    pairs = list(combinations([at for at in found if at is not None], 2))
    return f"{sum(abs(a - b) > 1 for a, b in pairs)} of {len(pairs)} pairs more than a step apart"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--times", type=int, default=8)
    options = parser.parse_args()
    lines = np.array(taken(options.corpus, options.documents), dtype=object)
    single: list[int | None] = []
    clear: list[int | None] = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        settings = Settings(
            input={"paths": [str(corpus)]},
            store={"path": f"{folder}/store"},
        ).refitting("k_calibration")
        values = settings.clusters.tried
        for number in range(options.times + 1):
            kept = np.ones(len(lines), bool)
            if number:
                kept[np.random.default_rng(number).choice(len(lines), len(lines) // 20, replace=False)] = (
                    False
                )
            corpus.write_bytes(b"".join(lines[kept]))
            receipt, _ = calibrated(settings)
            rows = load_table(LocalStore(settings.store.path), receipt.files["fit"])
            alone = np.repeat([[row["silhouette, as clustered"]] for row in rows], 2, axis=1)
            first, _ = recommended(values, alone)
            single.append(first)
            clear.append(next((at for at, row in enumerate(rows) if row["recommended"]), None))
            cells = " ".join(f"{row['silhouette']:.3f}±{row['spread']:.3f}" for row in rows)
            print(
                f"{'less 5 %' if number else 'whole':9} {receipt.figures['recommended']!s:>16}, "
                f"first fit {values[first]:>3}   {cells}   {receipt.figures['seconds']:.1f} s",
                flush=True,
            )
    print(f"first fit: {apart(single)}")
    print(f"recommended: {apart(clear)}; no clear number {clear.count(None)} of {len(clear)} times")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
