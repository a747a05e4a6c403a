"""Does training notice the order? A decoder of 0.75M parameters is trained twice over on 1M tokens, order by order.

    python benchmarks/training/tiny.py                            original, shuffled, the defaults; three seeds
    python benchmarks/training/tiny.py --quick --orders f1 f3     one seed, and other strategies for the sequences
    python benchmarks/training/tiny.py --variant 'clusters alone: order.traits = {cluster = 1.0}'
    python benchmarks/training/tiny.py --corpus ../shared/data/newsgroups.jsonl.gz --source-field label

Documents are drawn from every source, as many bytes of each, and the pipeline itself, under its defaults and the
settings of a variant, makes tokens, sequences of 256 and their order. Batches are 16 consecutive sequences. All orders
of one seed start from the same weights and see the same tokens. Two runs go side by side, of one thread each.

held out: nats a token on documents that no order holds, mean over sources. seam: the mean loss of the first twentieth
of the second epoch's batches less that of the last twentieth of the first's, less the same of the shuffled order (mean
over the seeds). Under one fixed model, trained once on a shuffle, so that only the order differs: spread, the standard
deviation of batch losses, and trend, the loss of the first tenth of the first epoch less that of the last.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from corpus import Ordered, draw, order, read_by_source, settings_of, tokenised

DATA = Path("../shared/data")
SHUFFLED, DEFAULTS = "shuffled", "balanced"
HELD_OUT_SEQUENCES = 32
"""Of each source at most."""

SEAM = 20
"""The seam is measured over this part of an epoch's batches on either side."""

LARGE_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
"""Memory of one step is kept for the next one: a third less time."""


@dataclass(frozen=True)
class Result:
    """Of one order and one seed; a trend is the loss by tenths of the first epoch, under the fixed model."""

    order: str
    seed: int
    held_out: float
    seam: float
    spread: float
    trend: list[float]
    seconds: float


def variants(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Settings by name of the order."""
    found: dict[str, dict[str, Any]] = {SHUFFLED: both("random")}
    for name in options.orders:
        if name != SHUFFLED:
            found[name] = both(name) if name == "original" else {"sequence": {"strategy": name}}
    for text in options.variant:
        name, _, changes = text.partition(":")
        found[name.strip()] = tomllib.loads("\n".join(changes.split(";")))
    return found


def both(strategy: str) -> dict[str, Any]:
    """Settings under which documents and sequences are ordered by one strategy."""
    return {"order": {"strategy": strategy}, "sequence": {"strategy": strategy}}


def train_fixed(shuffled: Ordered, batch: int, seed: int, into: Path) -> None:
    """The fixed model of a seed: once over the shuffled sequences in still another order, so that none has just been
    seen."""
    import torch
    from model import train

    stream = np.random.default_rng([seed, 1]).permutation(shuffled.epochs[0])
    torch.save(train(stream, shuffled.vocabulary, batch, seed)[0].state_dict(), into)


def measure(
    name: str,
    ordered: Ordered,
    held_out: dict[str, np.ndarray],
    fixed: Path,
    options: argparse.Namespace,
    seed: int,
) -> Result:
    import torch
    from model import Decoder, evaluate, train

    start = time.perf_counter()
    batch = options.batch
    per_epoch = len(ordered.epochs[0]) // batch
    epochs = [
        ordered.epochs[epoch % len(ordered.epochs)][: per_epoch * batch] for epoch in range(options.epochs)
    ]
    model, losses = train(np.concatenate(epochs), ordered.vocabulary, batch, seed)
    near = max(1, per_epoch // SEAM)
    later = losses[per_epoch : per_epoch + near].mean() if options.epochs > 1 else np.nan
    outside = float(np.mean([evaluate(model, rows).mean() for rows in held_out.values()]))
    decoder = Decoder(ordered.vocabulary, options.length)
    decoder.load_state_dict(torch.load(fixed))
    under = evaluate(decoder, epochs[0])
    return Result(
        order=name,
        seed=seed,
        held_out=outside,
        seam=float(later - losses[per_epoch - near : per_epoch].mean()),
        spread=float(under.reshape(per_epoch, batch).mean(1).std()),
        trend=[float(tenth.mean()) for tenth in np.array_split(under, 10)],
        seconds=time.perf_counter() - start,
    )


def run(options: argparse.Namespace, work: Path) -> list[Result]:
    drawn = draw(options.corpus, options.tokens, options.source_field, work / "corpus.jsonl")
    texts = read_by_source(options.held_out, options.source_field) if options.held_out else drawn
    os.environ.update(LARGE_BLOCKS)
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        ready = []
        for seed in range(1 if options.quick else options.seeds):
            ordered: dict[str, Ordered] = {}
            for name, changes in variants(options).items():
                settings = settings_of(work, seed, options.length, options.batch, changes)
                ordered[name] = order(settings)
            print(f"seed {seed}: {len(ordered[SHUFFLED].epochs[0]):,} sequences an epoch", flush=True)
            fixed = work / f"fixed-{seed}.pt"
            trained = pool.submit(train_fixed, ordered[SHUFFLED], options.batch, seed, fixed)
            ready.append((seed, ordered, tokenised(settings, texts, HELD_OUT_SEQUENCES), fixed, trained))
        waiting = []
        for seed, ordered, held_out, fixed, trained in ready:
            trained.result()
            for name, one in ordered.items():
                waiting.append(pool.submit(measure, name, one, held_out, fixed, options, seed))
        results = []
        for each in as_completed(waiting):
            print(each.result(), flush=True)
            results.append(each.result())
    return sorted(results, key=lambda result: result.seed)


def table(results: list[Result], variants: Iterable[str]) -> str:
    by_order: dict[str, list[Result]] = {name: [] for name in variants}
    for result in results:
        by_order[result.order].append(result)
    shuffled = by_order[SHUFFLED]
    level = np.mean([one.seam for one in shuffled])
    lines = [
        "| order | held out | less shuffled | each seed | seam | spread | trend | seconds |",
        "|---|--:|--:|---|--:|--:|--:|--:|",
    ]
    for name, ones in by_order.items():
        held_out = np.array([one.held_out for one in ones])
        less = held_out - [one.held_out for one in shuffled]
        trend = [one.trend[0] - one.trend[-1] for one in ones]
        lines.append(
            f"| {name} | {held_out.mean():.3f} | {less.mean():+.3f} | {', '.join(f'{loss:.3f}' for loss in held_out)} "
            f"| {np.mean([one.seam for one in ones]) - level:+.3f} | {np.mean([one.spread for one in ones]):.4f} "
            f"| {np.mean(trend):+.3f} | {np.mean([one.seconds for one in ones]):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=DATA / "mixture.jsonl.gz")
    parser.add_argument(
        "--held-out", type=Path, help="JSONL; default: of mixture its own, else documents not drawn"
    )
    parser.add_argument("--source-field", default="source")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument(
        "--orders", nargs="*", default=["original", DEFAULTS], help="strategies of the sequences"
    )
    parser.add_argument("--variant", action="append", default=[], help="NAME: section.key = value; ...")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.held_out is None and options.corpus.name.startswith("mixture."):
        options.held_out = options.corpus.with_name("mixture_eval.jsonl.gz")
    with tempfile.TemporaryDirectory() as work:
        results = run(options, Path(work))
    print(table(results, variants(options)))


if __name__ == "__main__":
    main()
