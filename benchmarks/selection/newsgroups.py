"""What does choosing a tenth of 20 Newsgroups by each method hold: how diverse, how even over the labels, how long?

Through the pipeline: gradient (bootstrap proxy), deep and shallow vectors, then every method under one budget, measured
in each of the spaces; the overlap of what each space would have chosen; labels of unequal size; and on a sample, the
baselines of pyversity (pip install pyversity). The store is kept for the next time.

    python benchmarks/selection/newsgroups.py ../shared/data/newsgroups.jsonl.gz --store /tmp/newsgroups
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import orjson

from dagster_divorder import run_all
from dagster_divorder.core.measure.vendi import gram, vendi
from dagster_divorder.core.mix.selection import choose, semdedup, spokes
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import map_vectors

KINDS = ("gradient", "deep", "shallow")
SAMPLE = 4_000


def entropy(labels: np.ndarray) -> float:
    """exp of the entropy of the labels: how many of them, evenly."""
    shares = np.bincount(labels) / len(labels)
    return float(np.exp(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--documents", type=int, help="of the corpus, drawn at random; by default all")
    parser.add_argument("--proxy", help="directory of a causal model for gradient and deep vectors")
    parser.add_argument("--only-choices", action="store_true")
    given = parser.parse_args()
    with gzip.open(given.corpus) as file:
        lines = list(file)
    corpus = given.store.parent / f"{given.store.name}.jsonl"
    some = np.sort(np.random.default_rng(1).permutation(len(lines))[: given.documents])
    corpus.write_bytes(b"".join(lines[at] for at in some.tolist()))
    records = [orjson.loads(lines[at]) for at in some.tolist()]
    settings = Settings(
        input={"paths": [str(corpus)]},
        store={"path": given.store},
        output={"path": given.store.parent / f"{given.store.name}-out"},
        clusters={"k": 20},
        deep={"model": given.proxy},
    )
    stages = [f"{kind}_embeddings" for kind in given.kinds]
    run_all(settings, Silent(), GRAPH.needed(settings, *stages))
    run = Run(settings, LocalStore(given.store).open(), GRAPH, Silent())
    names, labels = np.unique([record["label"] for record in records], return_inverse=True)
    tokens = run.column("token_counts", "lengths").astype(np.int64)
    words = [record["text"].split() for record in records]
    quality = np.array([len(set(of)) / max(1, len(of)) for of in words])
    spaces = {
        kind: np.array(map_vectors(run.store, run.view, run.receipt(stage)), np.float32)
        for kind, stage in zip(given.kinds, stages, strict=True)
    }
    there = np.all([np.einsum("nd,nd->n", of, of) > 0.5 for of in spaces.values()], axis=0)
    rows = np.flatnonzero(there & (run.view.copies == np.arange(len(run.view))))
    budget, ones = round(given.share * len(rows)), np.ones(len(rows), np.int64)
    print(f"{len(records):,} records, {len(rows):,} candidates, {budget:,} chosen, {len(names)} labels")

    def scores(vectors: np.ndarray) -> np.ndarray:
        return spokes(vectors, rows, steps=given.steps).weights

    chosen = {f"random, seed {seed}": np.random.default_rng(seed).random(len(rows)) for seed in range(3)}
    chosen["quality"] = quality[rows]
    for kind, vectors in spaces.items():
        chosen[f"semdedup, {kind}"] = semdedup(vectors, rows)
        chosen[f"spokes, {kind}"] = scores(vectors)
    masks = {"all": ones > 0, **{name: choose(of, ones, budget) for name, of in chosen.items()}}
    print(
        f"\n| choice | {' | '.join(f'Vendi, {kind}' for kind in spaces)} | labels, even | mean tokens | quality |"
    )
    print(f"|---|{'--:|' * (len(spaces) + 3)}")
    for name, mask in masks.items():
        of = rows[mask]
        cells = [f"{vendi(gram(vectors, of)):.1f}" for vectors in spaces.values()]
        cells += [f"{entropy(labels[of]):.2f}", f"{tokens[of].mean():,.0f}", f"{quality[of].mean():.3f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\noverlap of what the spaces choose:")
    for one in spaces:
        shares = [(masks[f"spokes, {one}"] & masks[f"spokes, {other}"]).sum() / budget for other in spaces]
        print(f"  {one:10s}", *(f"{share:.3f}" for share in shares))
    if given.only_choices:
        return

    kind, vectors = next(iter(spaces.items()))
    # Label r keeps every r-th of its documents, so that there is an unevenness that a choice can even out.
    rank = np.arange(len(names))[np.random.default_rng(4).permutation(len(names))]
    skewed = np.flatnonzero(np.random.default_rng(6).random(len(rows)) < 1 / (1 + rank[labels[rows]]))
    of_skewed, few = rows[skewed], round(given.share * len(skewed))
    all_skewed = np.ones(len(skewed), np.int64)
    print(
        f"\nlabels in proportion to 1, 1/2, 1/3, ...: {len(skewed):,} documents, {few} chosen; Vendi, labels even"
    )
    by = {
        "all": all_skewed.astype(float),
        "random": np.random.default_rng(0).random(len(skewed)),
        "quality": quality[of_skewed],
        "semdedup": semdedup(vectors, of_skewed),
        "spokes": spokes(vectors, of_skewed, steps=given.steps).weights,
    }
    for name, of in by.items():
        picked = of_skewed[choose(of, all_skewed, len(skewed) if name == "all" else few)]
        print(f"  {name:16s} {vendi(gram(vectors, picked)):.1f} {entropy(labels[picked]):.2f}", flush=True)

    print("\noverlap with what all dims choose, by the first k dims, at a share of 0.1 and of 0.5:")
    for dims in (32, 64, 128, 256, 512):
        if dims < vectors.shape[1]:
            fewer = vectors[:, :dims] / np.maximum(np.linalg.norm(vectors[:, :dims], axis=1), 1e-9)[:, None]
            by_fewer, by_all = scores(fewer), scores(vectors)
            shares = []
            for share in (0.1, 0.5):
                size = round(share * len(rows))
                shares.append((choose(by_fewer, ones, size) & choose(by_all, ones, size)).sum() / size)
            print(f"  {dims:5d} {shares[0]:.3f} {shares[1]:.3f}", flush=True)

    try:
        from pyversity import Strategy, diversify
    except ImportError:
        print("\npyversity is not installed: no comparison on a sample")
        return
    some = rows[np.sort(np.random.default_rng(5).permutation(len(rows))[:SAMPLE])]
    few, all_of = round(given.share * len(some)), np.ones(len(some), np.int64)
    print(f"\non a sample of {len(some):,}, {few} chosen, Vendi ({kind}) and labels:")
    picks = {
        "random": some[:: len(some) // few][:few],
        "spokes": some[choose(spokes(vectors, some, steps=given.steps).weights, all_of, few)],
        "semdedup": some[choose(semdedup(vectors, some), all_of, few)],
    }
    for strategy in (Strategy.MMR, Strategy.COVER, Strategy.DPP):
        found = diversify(
            embeddings=vectors[some],
            scores=np.ones(len(some), np.float32),
            k=few,
            strategy=strategy,
            diversity=1.0,
        )
        picks[f"pyversity {strategy.value}"] = some[found.indices]
    for name, of in picks.items():
        print(f"  {name:16s} {vendi(gram(vectors, of)):.1f} {entropy(labels[of]):.2f}", flush=True)


if __name__ == "__main__":
    main()
