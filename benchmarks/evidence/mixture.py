"""Does the order help? Small models trained on real text in eight orders or more, and what is beyond noise.

    python benchmarks/evidence/mixture.py --store /tmp/evidence             mixture, validated on mixture_eval
    python benchmarks/evidence/mixture.py --store /tmp/news --corpus ../shared/data/newsgroups.jsonl.gz
    python benchmarks/evidence/mixture.py --store /tmp/evidence --model 50M --tokens 60000000     with a GPU

The stage `training_evidence` itself, through the pipeline: tables, verdict and picture as a user sees them. The store
is kept: what is trained is not trained again, so that orders can be added. --length and --batch are of the plan and of
the trainings alike.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import time
from pathlib import Path

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Log
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.training_evidence import load_evidence
from dagster_divorder.store.local import LocalStore
from dagster_divorder.view.evidence import order_rows, source_rows

DATA = Path("../shared/data")
ORDERS = (
    "original",
    "random_documents",
    "random_sequences",
    "curated",
    "stratified/original",
    "curated/f3",
    "within_shard/original",
    "cluster_packed",
)


def unpacked(file: Path, into: Path) -> str:
    """The file without its compression."""
    path = into / file.name.removesuffix(".gz")
    if not path.exists():
        with gzip.open(file) as source, path.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    return str(path)


def table(rows: list[dict[str, str]]) -> str:
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([row.get(name, "") for name in head] for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=DATA / "mixture.jsonl.gz")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4_000_000)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rates", type=float, nargs="*", default=[])
    parser.add_argument("--vocabulary", type=int, default=2048, help="of the bootstrap tokenizer")
    parser.add_argument("--orders", nargs="+", default=ORDERS)
    given = parser.parse_args()
    folder = given.store.parent / f"{given.store.name}-files"
    folder.mkdir(parents=True, exist_ok=True)
    mixture = given.corpus.name.startswith("mixture.")
    trait = "source" if mixture else "label"
    held = given.corpus.with_name("mixture_eval.jsonl.gz")
    settings = Settings(
        input={"paths": [unpacked(given.corpus, folder)], "source_field": trait},
        store={"path": given.store},
        output={"path": folder / "out"},
        model={"vocab_size": given.vocabulary, "dim": 64},
        mixing={"trait": trait},
        heldout={"paths": [unpacked(held, folder)]} if mixture else {"share": 0.03},
        order={"traits": {"cluster": 1.0, "length": 1.0, trait: 1.0}},
        sequence={"length": given.length, "batch": given.batch},
        evidence={
            "tokens": given.tokens,
            "orders": given.orders,
            "model": given.model,
            "batch": given.batch,
            "seeds": given.seeds,
            "learning_rates": given.rates,
        },
    )
    begin = time.perf_counter()
    run_all(
        settings, Log(lambda line: print(line, flush=True), 60), GRAPH.needed(settings, "training_evidence")
    )
    run = Run(settings, LocalStore(given.store).open())
    summary = load_evidence(run)
    print(
        f"\n{time.perf_counter() - begin:,.0f} s; {summary['weights']:,} weights, {summary['steps']:,} steps an epoch"
    )
    print("\n".join(["", *summary["verdict"], *summary["notes"], ""]))
    print(table(order_rows(summary)))
    print(f"\n{table(source_rows(summary))}\n* beyond noise")
    picture = folder / "training_evidence.png"
    picture.write_bytes(run.read("training_evidence", "picture"))
    print(picture)


if __name__ == "__main__":
    main()
