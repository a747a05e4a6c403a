"""The bytes of every stage on a fixed corpus, beside the code version they belong to.

A test that fails here says: the stage's output has changed. Raise its integer in `settings.CODE_VERSIONS`, so that no
store mixes old results with new, then run `python -m tests.pipeline.test_golden` to renew golden.json. Floating-point
results differ in their last digits between processors; of those something coarse is compared, a rounded mean square.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import xxhash
from dagster_divorder.pipeline.cluster_map import load_map
from dagster_divorder.pipeline.k_calibration import load_table
from dagster_divorder.pipeline.strategy_comparison import load_comparison

from dagster_divorder import run_all, run_stage
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.graph import needed
from dagster_divorder.settings import CODE_VERSIONS, Embedding, Settings
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import View
from tests.conftest import topic_records, write_jsonl

EVIDENCE = ("deep_embeddings", "ari_comparison", "k_calibration", "cluster_map", "strategy_comparison")
DRAWN = ("ordering_report", "ordering_animation")
"""Their output is pictures, whose bytes follow matplotlib and ffmpeg."""

GOLDEN = Path(__file__).with_name("golden.json")


def digest(array: np.ndarray) -> str:
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).tobytes())


def energy(vectors: np.ndarray) -> list[float]:
    """Per dimension the root mean square, to three digits: the same on every processor, another for other vectors."""
    return [round(float(value), 3) for value in np.sqrt((vectors.astype(np.float64) ** 2).mean(axis=0))]


def results(folder: Path) -> dict[str, dict[str, Any]]:
    corpus = write_jsonl(folder / "docs.jsonl", topic_records(40))
    settings = Settings(
        input={"paths": [str(corpus)]},
        store={"path": folder / "store"},
        output={"path": folder / "curated", "plot": False},
        model={"vocab_size": 512, "dim": 8},
        deep={"train_tokens": 8_000, "dtype": "float32"},
        k_calibration={"values": (2, 4, 8)},
        clusters={"k": 4},
        order={"traits": {"cluster": 1.0, "length": 1.0, "source": 1.0}, "length_bins": 5},
        sequence={"length": 128, "batch": 4},
    )
    receipts = run_all(settings, Silent(), [*needed(settings), *EVIDENCE])
    store = LocalStore(settings.store.path)
    view = View.load(store, receipts["raw_docs"].files["view"])

    def column(stage: str, name: str) -> np.ndarray:
        return StageFiles(store, stage, receipts[stage].key).column(view.documents, name)

    vectors = np.random.default_rng(0).normal(size=(len(view), 3)).astype(np.float32)
    np.save(folder / "vectors.npy", vectors)
    external = settings.model_copy(
        update={"embedding": Embedding(kind="external", path=folder / "vectors.npy")}
    )
    receipts["external_embeddings"] = run_stage("external_embeddings", external, Silent())
    charted = load_map(store, receipts["cluster_map"].files["places"])

    fit = store.path(receipts["base_model"].files["fit"])
    metrics = orjson.loads(store.unseal(receipts["diversity_metrics"].files["metrics"]))
    found: dict[str, Any] = {
        "raw_docs": receipts["raw_docs"].version,
        "base_model": xxhash.xxh3_64_hexdigest((fit / "tokenizer.json").read_bytes()),
        "token_counts": [
            digest(column("token_counts", "ids").astype(np.uint32)),
            digest(column("token_counts", "lengths")),
        ],
        "shallow_embeddings": energy(column("shallow_embeddings", "vectors")),
        "deep_embeddings": energy(column("deep_embeddings", "vectors")),
        "external_embeddings": energy(column("external_embeddings", "vectors")),
        "ari_comparison": [receipts["ari_comparison"].report[name] for name in ("chosen", "ari")],
        "k_calibration": [
            [row["k"], round(row["silhouette"], 3)]
            for row in load_table(store, receipts["k_calibration"].files["fit"])
        ],
        "cluster_map": [digest(charted.ids), digest(charted.labels)],
        "clusters": digest(column("clusters", "labels")),
        "greedy_order": digest(np.load(settings.output.path / "order.npy")),
        "packed_sequences": [
            digest(column.to_numpy())
            for column in pq.read_table(settings.output.path / "packed_sequences.parquet").columns
        ],
        "sequence_order": digest(np.load(settings.output.path / "sequence_order.npy")),
        "strategy_comparison": [
            round(row["mean prefix deviation, tokens"], 3)
            for row in load_comparison(store, receipts["strategy_comparison"].files["table"])
        ],
        "diversity_metrics": [round(metrics[name]["prefix"]["mean"], 3) for name in ("curated", "sequences")],
        "curated_output": xxhash.xxh3_64_hexdigest((settings.output.path / "curated.jsonl").read_bytes()),
    }
    return {
        stage: {"code_version": version, "result": found[stage]}
        for stage, version in CODE_VERSIONS.items()
        if stage not in DRAWN
    }


def test_no_stage_changes_its_output_under_the_same_code_version(tmp_path: Path) -> None:
    golden = orjson.loads(GOLDEN.read_bytes())
    found = results(tmp_path)
    assert set(found) == set(golden)
    changed = [stage for stage in golden if found[stage] != golden[stage]]
    assert not changed, (
        f"{changed[0]} is the first stage whose output or code version differs: see this file's top"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        GOLDEN.write_bytes(orjson.dumps(results(Path(made)), option=orjson.OPT_INDENT_2))
