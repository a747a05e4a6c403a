"""Does a diverse order raise the Vendi score of batches beside a plain shuffle?

Through the pipeline, to `set_diversity`, whose table of orders is shown (16 batches of each order); then over every
whole batch of training sequences: in their order, and in ten shuffles of the same sequences. Vectors are shallow; the
limit is the score of all that is trained on, by tokens. The store is kept for the next time.

    python benchmarks/selection/batches.py /tmp/mixture.jsonl --store /tmp/mixture --tokens 36000000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dagster_divorder import run_all
from dagster_divorder.core.measure.runs import runs_in_order
from dagster_divorder.core.measure.vendi import gram, vendi
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.measure.set_diversity import load_batches
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.space import map_vectors

SHUFFLES = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--tokens", type=int, required=True, help="how many are chosen")
    parser.add_argument("--methods", nargs="+", default=("random", "spokes"))
    parser.add_argument("--lengths", nargs="+", type=int, default=(2048, 8192))
    parser.add_argument("--batch", type=int, default=256)
    given = parser.parse_args()
    for method in given.methods:
        for length in given.lengths:
            settings = Settings(
                input={"paths": [str(given.corpus)]},
                store={"path": given.store},
                selection={"method": method, "tokens": given.tokens},
                sequence={"length": length, "batch": given.batch},
            )
            run_all(settings, Silent(), GRAPH.needed(settings, "set_diversity"))
            measure(
                Run(settings, LocalStore(given.store).open(), GRAPH, Silent()),
                f"{method}, batches of {given.batch} x {length:,}",
            )


def measure(run: Run, name: str) -> None:
    vectors = map_vectors(run.store, run.view, run.receipt("shallow_embeddings"))
    stream, packed, sequences = load_stream(run), load_packed(run), load_sequence_order(run)[0]

    def scores(order: np.ndarray) -> np.ndarray:
        size, found = run.settings.sequence.batch, []
        for first in range(0, len(order) - size + 1, size):
            at, _ = runs_in_order(packed.indptr, order[first : first + size])
            found.append(
                vendi(gram(vectors, stream.record_of[packed.document[at]], packed.length[at].astype(float)))
            )
        return np.array(found)

    tokens = stream.traits.tokens.astype(float)
    whole = vendi(gram(vectors, stream.record_of, tokens))
    figures = run.receipt("set_diversity").figures
    print(
        f"\n{name}: {len(sequences):,} sequences; by documents {figures['vendi_all']:.2f}, chosen "
        f"{figures['vendi_chosen']:.2f}; chosen by tokens {whole:.2f}"
    )
    for row in load_batches(run):
        print(
            f"  {row['order']:28} mean {row['mean vendi']:6.2f}, lowest {row['lowest']:6.2f}, of {row['batches']}"
        )
    ordered = scores(sequences)
    draw = np.random.default_rng(0)
    shuffled = [scores(draw.permutation(sequences)) for _ in range(SHUFFLES)]
    means, lowest = [of.mean() for of in shuffled], [of.min() for of in shuffled]
    print(f"  all {len(ordered)} batches: in order mean {ordered.mean():.2f}, lowest {ordered.min():.2f}")
    print(
        f"  {SHUFFLES} shuffles of the sequences: mean {np.mean(means):.2f} ({min(means):.2f} to {max(means):.2f}), "
        f"lowest {np.mean(lowest):.2f} ({min(lowest):.2f} to {max(lowest):.2f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
