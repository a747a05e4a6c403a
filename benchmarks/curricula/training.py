"""What do curricula do to a small model? Every shape with its windows shuffled and balanced, beside shuffled sequences.

    python benchmarks/curricula/training.py mixture.jsonl.gz WORK --heldout mixture_eval.jsonl.gz
    python benchmarks/curricula/training.py mixture.jsonl.gz WORK --heldout mixture_eval.jsonl.gz --table

The tiny preset on the beginning of a stationary plan, one epoch, sequences of 256 in batches of 16. WORK keeps every
training: a run that was stopped goes on, and the first seed of all orders comes first. `--table` prints what is done.
Differences are paired by seed; intervals are Student's at 95 %.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dagster_divorder import Settings, run_all
from dagster_divorder.core.evidence.training_evidence import estimate
from dagster_divorder.engine.progress import Log
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.evidence import training_evidence as stage

SHAPES = ("rise", "fold", "zigzag", "stair", "saw")
ORDERS = ("curated", *SHAPES, *(f"{shape}_balanced" for shape in SHAPES))
WEIGHTS = ("last", "averaged", "exponential")


def settings_of(given: argparse.Namespace) -> Settings:
    return Settings(
        input={"paths": [str(given.corpus)], "source_field": given.source},
        heldout={"documents": [str(given.heldout)]},
        advanced={"vocab_size": 2048, "token_dims": 64},
        mixing={"trait": given.source},
        order={"traits": {"cluster": 1.0, "length": 1.0, given.source: 1.0}},
        sequence={"length": 256, "batch": 16},
        # The plan itself follows nothing.
        curriculum={"score": given.score, "strength": 0.0},
        engine={"workers": 1, "device": "cpu"},
        store={"path": given.work / "store"},
        output={"path": given.work / "out"},
        evidence={
            "tokens": given.tokens,
            "batch": 16,
            "epochs": 1,
            "seeds": given.seeds,
            "schedule": given.schedules,
            "orders": ORDERS,
        },
    )


def losses(settings: Settings) -> dict[tuple[str, str], dict[int, np.ndarray]]:
    """By order and schedule, and by seed, the held-out losses of trainings that are done, mean over sources, float64
    (3,), as WEIGHTS names them."""
    run = open_run(settings)
    folder = f"stages/{stage.STAGE}/{stage.TRAINING_EVIDENCE.key(run)}"
    prepared, stored = stage._Prepared.of(run, folder), run.store.hashed(folder)
    done: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for each in prepared.trainings():
        if each.name in stored:
            trained = stage._unpack(run.store.read_verified(stored[each.name]))
            values = np.vstack([trained.heldout[-1], trained.averaged]).mean(axis=1)
            done.setdefault((each.order, each.schedule), {})[each.seed] = values
    size = prepared.tokens.size
    print(
        f"{sum(map(len, done.values()))} of {len(prepared.trainings())} trainings; {size.steps} steps of {size.batch} "
        f"sequences of {prepared.tokens.length} tokens; score {settings.curriculum.score}"
    )
    return done


def shown(differences: list[float]) -> str:
    figure = estimate(differences)
    if figure["mean"] is None:
        return "–"
    if figure["low"] is None:
        return f"{figure['mean']:+.4f} (one seed)"
    star = " *" if figure["low"] > 0 or figure["high"] < 0 else ""
    return f"{figure['mean']:+.4f} ({figure['low']:+.4f} to {figure['high']:+.4f}){star}"


def print_table(settings: Settings) -> None:
    done = losses(settings)
    for schedule in settings.evidence.schedules:
        shuffled = done.get((stage.REFERENCE, schedule), {})
        print(f"\nlearning rate: {schedule}")
        print("order | seeds | " + " | ".join(f"{name} weights | less shuffled" for name in WEIGHTS))
        for order in (stage.REFERENCE, *ORDERS):
            own = done.get((order, schedule), {})
            pairs = [(own[seed], shuffled[seed]) for seed in own if seed in shuffled]
            cells = [
                f"{np.mean([ours[at] for ours, _ in pairs]):.4f} | {shown([ours[at] - its[at] for ours, its in pairs])}"
                for at in range(len(WEIGHTS))
                if pairs
            ]
            print(f"{order} | {len(pairs)} | " + " | ".join(cells))
        print("windows balanced less windows shuffled")
        for shape in SHAPES:
            ours, theirs = (done.get((name, schedule), {}) for name in (f"{shape}_balanced", shape))
            both = [seed for seed in ours if seed in theirs]
            cells = [
                shown([ours[seed][at] - theirs[seed][at] for seed in both]) for at in range(len(WEIGHTS))
            ]
            print(f"{shape} | {len(both)} | " + " | ".join(cells))
        both = [
            [
                np.mean(
                    [
                        done[f"{shape}_balanced", schedule][seed][at] - done[shape, schedule][seed][at]
                        for shape in SHAPES
                    ]
                )
                for seed in shuffled
                if all(seed in done.get((name, schedule), {}) for name in ORDERS)
            ]
            for at in range(len(WEIGHTS))
        ]
        print(f"mean of all shapes | {len(both[0])} | " + " | ".join(map(shown, both)))
    base = done.get((stage.REFERENCE, "cosine"), {})
    print("\nless shuffled sequences on a cosine with their last weights")
    for (order, schedule), own in done.items():
        both = [seed for seed in own if seed in base]
        cells = [shown([own[seed][at] - base[seed][0] for seed in both]) for at in range(len(WEIGHTS))]
        print(f"{order}, {schedule} | {len(both)} | " + " | ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--source", default="source", help="the field of the sources")
    parser.add_argument("--score", default="length")
    parser.add_argument("--tokens", type=int, default=4_000_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--schedules", nargs="+", default=["cosine", "constant"])
    parser.add_argument("--table", action="store_true", help="print what is done, and train nothing")
    given = parser.parse_args()
    settings = settings_of(given)
    if not given.table:
        run_all(settings, Log(lambda line: print(line, flush=True)), GRAPH.needed(settings, stage.STAGE))
    print_table(settings)


if __name__ == "__main__":
    main()
