"""Does the order help? Trains small decoders on real corpora in several orders, over as many sittings as it takes.

    .venv/bin/python benchmarks/evidence/prove.py CASE [--minutes 60] [--store FOLDER]    train what is missing
    .venv/bin/python benchmarks/evidence/prove.py                                        print what was found

Each training is a line of results.jsonl beside this file: the tokens that it read, held-out loss by source, the jump of
the loss and the gradient at the seam, and stable ranks. Seeds are fixed by the case; orders are compared by seed, which
fixes the initial weights. Trainings are those of the stage `training_evidence`, in the width of the case.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder import load_settings
from dagster_divorder.core.evidence.training_evidence import (
    HELD_OUT,
    JUMP,
    SPIKE_SIZE,
    by_source,
    compare,
    figures_of,
    with_interval,
)
from dagster_divorder.models import training
from dagster_divorder.settings.sections import trained_order
from dagster_divorder.stages import open_run, run_all
from dagster_divorder.stages.evidence import training_evidence
from dagster_divorder.stages.order.packed_sequences import load_bounds

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
RESULTS = Path(__file__).with_name("results.jsonl")
ORDERS = ("original", "buffer/original", "random_documents", "random_sequences", "curated")
SHUFFLED = "random_sequences"
IN_PHASES = "random_sequences in each phase"
LEARNING_RATE = 0.003


@dataclass(frozen=True)
class Case:
    """What is trained. width: of the decoder. seeds: trainings of each order. phases: shares of the sources by
    phase."""

    corpus: str
    tokens: int
    width: int = 64
    seeds: int = 5
    orders: tuple[str, ...] = ORDERS
    phases: tuple[dict[str, Any], ...] = ()


CASES = {
    "mixture-4M": Case("mixture", 4_000_000),
    "mixture-1M-wide": Case("mixture", 1_000_000, width=160, seeds=3),
    "newsgroups-1M": Case("newsgroups", 1_000_000),
    "mixture-1M-phases": Case(
        "mixture",
        1_000_000,
        orders=(IN_PHASES, "curated"),
        phases=({"until": 0.5, "weights": "uniform"}, {"weights": "natural"}),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", nargs="?", choices=CASES)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no training begins")
    parser.add_argument("--store", type=Path, help="folder that keeps the plan between sittings")
    options = parser.parse_args()
    if options.case is None:
        for name in CASES:
            report(name)
        return
    with tempfile.TemporaryDirectory() as folder:
        train_missing(options.case, options.store or Path(folder), time.monotonic() + 60 * options.minutes)
    report(options.case)


def train_missing(name: str, folder: Path, until: float) -> None:
    """Trains what results.jsonl lacks, one seed after the other."""
    case, done = CASES[name], {(each["seed"], each["order"]) for each in results(name)}
    missing = [(seed, each) for seed in range(case.seeds) for each in case.orders if (seed, each) not in done]
    training.WIDTH, training.INNER = case.width, 3 * case.width
    settings = load_settings(
        {
            "input": {"paths": [str(DATA / f"{case.corpus}.jsonl.gz")]},
            "store": {"path": str(folder / "store")},
            "output": {"path": str(folder / "out"), "sidecars": []},
            "heldout": {"documents": 0.01},
            "advanced": {"vocab_size": 2048, "token_dims": 64},
            "mixing": {"phase": case.phases, "total_tokens": case.tokens} if case.phases else {},
            "order": {"traits": {"cluster": 1.0, "length": 1.0, "source": 1.0}},
            "sequence": {"length": 256, "batch": 16},
            "evidence": {"tokens": case.tokens},
        }
    )
    run_all(settings)
    run = open_run(settings)
    sequences = training_evidence.Sequences.of(run)
    task = training_evidence.make_task(run, sequences, [])
    for seed, order in missing:
        if time.monotonic() > until:
            break
        started = time.process_time()
        read = rows_in(sequences, order, seed)
        trained = training.train(task, read, seed, LEARNING_RATE)
        result = {
            "case": name,
            "order": order,
            "seed": seed,
            "tokens": int(read["epochs"].size * read["ids"].shape[1]),
            "processor_seconds": round(time.process_time() - started, 1),
            "epochs": trained.heldout.mean(axis=1).round(6).tolist(),
            "figures": figures_of(trained, sequences.steps, task.heldout.sources, training.KINDS),
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{name}, seed {seed}, {order}: {result['figures'][HELD_OUT]:.4f}", flush=True)


def rows_in(sequences: training_evidence.Sequences, order: str, seed: int) -> dict[str, np.ndarray]:
    """What a training reads, as `training.train` takes it."""
    if order != IN_PHASES:
        return sequences.read_in(trained_order(order), seed)
    phases = np.searchsorted(load_bounds(sequences.run)[1], sequences.numbers[: sequences.rows], side="right")
    rng = np.random.default_rng([seed, 1])
    epochs = [np.lexsort((rng.random(sequences.rows), phases)) for _ in range(training_evidence.EPOCHS)]
    return {**sequences.tokens(sequences.plan, np.arange(sequences.rows)), "epochs": np.stack(epochs)}


def results(name: str) -> list[dict[str, Any]]:
    """The trainings of a case that are done."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [each for each in map(json.loads, lines) if each["case"] == name]


def report(name: str) -> None:
    """Prints the figures of a case: means over the seeds that all orders have, and differences from shuffling."""
    case, trained = CASES[name], {(each["order"], each["seed"]): each["figures"] for each in results(name)}
    seeds = [seed for seed in range(case.seeds) if all((order, seed) in trained for order in case.orders)]
    if not seeds:
        return
    baseline = SHUFFLED if SHUFFLED in case.orders else IN_PHASES
    print(f"\n{name}: {len(seeds)} of {case.seeds} seeds\n")
    figures = (HELD_OUT, JUMP, SPIKE_SIZE, *(key for key in trained[baseline, seeds[0]] if "rank" in key))
    print(f"| order | {' | '.join(f'{figure} | less {baseline}' for figure in figures)} |")
    print("|---" * (1 + 2 * len(figures)) + "|")
    compared = {
        order: compare([trained[order, seed] for seed in seeds], [trained[baseline, seed] for seed in seeds])
        for order in case.orders
    }
    for order, of in compared.items():
        cells = (
            f"{of[each]['value']['mean']:.4f} | {with_interval(of[each]['less shuffled'])}"
            for each in figures
        )
        print(f"| {order} | {' | '.join(cells)} |")
    sources = [figure for figure in trained[baseline, seeds[0]] if figure.startswith(by_source(""))]
    print(f"\n| source | {' | '.join(case.orders)} |")
    print("|---" * (1 + len(case.orders)) + "|")
    for source in sources:
        cells = (f"{compared[order][source]['value']['mean']:.3f}" for order in case.orders)
        print(f"| {source.removeprefix(by_source(''))} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
