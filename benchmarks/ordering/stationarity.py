"""What drifts along the sequences, by strategy, on features that the order never saw; and how often a shuffle would be
said to drift.

    python benchmarks/ordering/stationarity.py --config divorder.toml [--strategies random balanced f3] [--seeds 0 1 2]
    python benchmarks/ordering/stationarity.py --config divorder.toml --false-alarms 2000

The settings' own store is written to: copy it first, or name another in `store.path`. Batch distances of the clusters,
the sources, the words and the vectors are multiples of those of shuffles of the same sequences; chi2 over its degrees
of freedom of the sequences of one cluster, and of the parts of long documents, over tenths of the order. The second
form draws so many orders at random, measures them once, and then holds draws of one against draws of the shuffles.
"""

import argparse
import time

import numpy as np

from dagster_divorder import run_all
from dagster_divorder.core.measure.stationarity import SHUFFLES, DriftMeasure, drift_of
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.measure.stationarity import features, load_sample, load_stationarity
from dagster_divorder.stages.mix.repeats import load_stream

BATCHES = ("cluster", "clusters of another seed", "source", "words", "shallow vectors", "deep vectors")
TENTHS = ("sequences of one cluster", "parts of long documents")


def strategies(settings: Settings, names: list[str], seeds: list[int]) -> None:
    columns = [f"batch, {name}" for name in BATCHES] + [f"chi2, {name}" for name in TENTHS]
    print(f"| sequences by | seed | {' | '.join(columns)} | drift |")
    print(f"|---|--:|{'--:|' * len(columns)}---|")
    for name in names:
        for seed in seeds:
            sequence = settings.sequence.model_copy(update={"strategy": name})
            made = settings.model_copy(update={"sequence": sequence, "seed": seed})
            run_all(made, Silent(), GRAPH.needed(made, "diversity_metrics"))
            found = load_stationarity(open_run(made))
            by_name = {of.feature: of.measures for of in found.features}
            cells = [
                f"{of.value / of.shuffled:.2f}"
                if (of := by_name.get(what, {}).get("batch")) and of.shuffled
                else "–"
                for what in BATCHES
            ]
            cells += [f"{by_name[what]['tenths'].value:.1f}" if what in by_name else "–" for what in TENTHS]
            drifting = ", ".join(of.feature for of in found.drifting) or "nothing"
            print(f"| {name} | {seed} | {' | '.join(cells)} | {drifting} |", flush=True)


def false_alarms(settings: Settings, number: int) -> None:
    run_all(settings, Silent(), GRAPH.needed(settings, "diversity_metrics"))
    run = open_run(settings)
    stream = load_stream(run)
    sample, *_ = load_sample(run, stream)
    random, one = np.random.default_rng(0), np.zeros(len(sample), np.int64)
    orders = [random.permutation(len(sample)) for _ in range(number)]
    draws = random.integers(0, number, (10 * number, 1 + SHUFFLES))
    alarms = np.zeros(len(draws), bool)
    print("| feature | measure | alarms, % |\n|---|---|--:|")
    for feature in features(run, stream.traits, sample):
        found = [
            drift_of(feature, np.stack([order] * 3), settings.sequence.batch, one).measures
            for order in orders
        ]
        for name in found[0]:
            values = np.array([of[name].value for of in found])
            of_measure = np.array([DriftMeasure.of(values[draw]).drifts for draw in draws])
            alarms |= of_measure
            print(f"| {feature.name} | {name} | {100 * of_measure.mean():.3f} |", flush=True)
    print(f"| any | any | {100 * alarms.mean():.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True)
    parser.add_argument("--strategies", nargs="+", default=["random", "balanced", "f3", "f1", "stratified"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--false-alarms", type=int, metavar="ORDERS")
    options = parser.parse_args()
    begin = time.process_time()
    if options.false_alarms:
        false_alarms(load_settings(options.config), options.false_alarms)
    else:
        strategies(load_settings(options.config), options.strategies, options.seeds)
    print(f"\n{time.process_time() - begin:.1f} s of processor time")


if __name__ == "__main__":
    main()
