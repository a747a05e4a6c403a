"""The pipeline on real files: what comes out, and what a second run computes."""

from __future__ import annotations

import gzip
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all, run_stage
from dagster_divorder.core.measure.tables import ORDERS
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, MissingStageError
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store import sample
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.output_manifests import is_whole
from dagster_divorder.store.view import View
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
PER_DOCUMENT = ("token_counts", "shallow_embeddings", "clusters")


def run(settings: Settings) -> dict[str, dict[str, Any]]:
    return {stage: receipt.figures for stage, receipt in run_all(settings, Silent()).items()}


def output_bytes(settings: Settings) -> dict[str, bytes]:
    """Every output file but the manifest, whose times differ."""
    return {
        path.name: path.read_bytes()
        for path in settings.output.path.iterdir()
        if path.name != "curated_meta.json"
    }


def meta(settings: Settings) -> dict[str, Any]:
    return orjson.loads((settings.output.path / "curated_meta.json").read_bytes())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records())


def test_jsonl_comes_out_byte_for_byte_in_the_order(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    reports = run(settings)
    lines = corpus.read_bytes().splitlines(keepends=True)
    order = np.load(settings.output.path / "order.npy")
    assert sorted(order.tolist()) == list(range(len(lines)))
    assert order.dtype == np.int64
    assert (settings.output.path / "curated.jsonl").read_bytes() == b"".join(lines[at] for at in order)
    assert (settings.output.path / "rejects.jsonl").read_bytes() == b""
    for stage, report in reports.items():
        figures = {"documents", "new_documents", "reused_documents", "seconds", "documents_per_second"}
        assert figures <= set(report), stage
    assert is_whole(settings.output.path, meta(settings)["files"])


def test_the_manifest_says_what_was_made(corpus: Path, make_settings: Make) -> None:
    # A seed with which k-means finds the four topics of this small corpus.
    settings = make_settings(seed=2)
    run(settings)
    written = meta(settings)
    assert written["counts"] == {"records": 240, "documents": 240, "rejected_records": 0, "partial_lines": 0}
    assert written["delta"] == {"new_documents": 240, "reused_documents": 0, "dropped_documents": 0}
    assert sum(written["cluster_sizes"]) == 240
    assert written["k"] == 4
    assert list(written["diversity"]) == list(ORDERS)
    assert written["cosine_similarity"]["rows"] == 240
    assert set(written["files"]) == {
        "curated.jsonl",
        "order.npy",
        "packed_sequences.parquet",
        "rejects.jsonl",
        "sequence_order.npy",
    }
    original, curated = (written["diversity"][name]["split"]["mean"] for name in ("original", "curated"))
    assert curated > original + 1


def test_edit_delete_and_duplicate_are_only_a_new_view(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings)
    records = topic_records()
    records[3]["text"] += " edited"
    kept = [*records[:100], *records[110:], *records[20:40]]
    write_jsonl(corpus, kept)
    reports = run(settings)
    for stage in PER_DOCUMENT:
        assert (reports[stage]["new_documents"], reports[stage]["reused_documents"]) == (1, 229), stage
    assert meta(settings)["delta"] == {"new_documents": 1, "reused_documents": 229, "dropped_documents": 11}
    written = (settings.output.path / "curated.jsonl").read_bytes().splitlines()
    assert Counter(written) == Counter(corpus.read_bytes().splitlines())


def test_gzip_and_folders_read_alike(tmp_path: Path, make_settings: Make) -> None:
    records = topic_records(20)
    plain = write_jsonl(tmp_path / "plain/docs.jsonl", records)
    data = plain.read_bytes()
    half = data.index(b"\n", len(data) // 2) + 1
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/1.jsonl.gz").write_bytes(gzip.compress(data[:half]))
    with pa.CompressedOutputStream(str(tmp_path / "parts/2.jsonl.zst"), "zstd") as stream:
        stream.write(data[half:])
    one = make_settings(input={"paths": [str(tmp_path / "plain")]})
    two = make_settings(
        input={"paths": [str(tmp_path / "parts")]},
        output={"path": tmp_path / "out2"},
        store={"path": tmp_path / "store2"},
    )
    run(one)
    run(two)
    assert output_bytes(one) == output_bytes(two)


def test_parquet_comes_out_as_parquet_row_for_row(tmp_path: Path, make_settings: Make) -> None:
    table = pa.Table.from_pylist([{**record, "tags": [record["source"]]} for record in topic_records(30)])
    pq.write_table(table, tmp_path / "docs.parquet")
    settings = make_settings(
        input={"paths": [str(tmp_path / "docs.parquet")], "source_field": "source"},
        order={"traits": {"cluster": 1.0, "score": 1.0, "checked": 1.0}},
        output={"shard_bytes": 4000},
    )
    run(settings)
    order = np.load(settings.output.path / "order.npy")
    shards = sorted(settings.output.path.glob("curated-*.parquet"))
    assert len(shards) > 2
    assert pa.concat_tables([pq.read_table(shard) for shard in shards]).equals(
        table.take(pa.array(order)).combine_chunks()
    )
    reports = run(settings)
    assert reports["raw_docs"]["new_records"] == 0
    as_json = make_settings(
        **{
            **settings.model_dump(),
            "output": {**settings.output.model_dump(), "format": "jsonl", "shard_bytes": 1 << 30},
        }
    )
    run(as_json)
    assert sorted(path.suffix for path in settings.output.path.glob("curated*")) == [".json", ".jsonl"]
    rows = [orjson.loads(one) for one in (settings.output.path / "curated.jsonl").read_bytes().splitlines()]
    assert rows == table.take(pa.array(order)).to_pylist()


def test_parquet_output_of_jsonl_input_is_refused(corpus: Path, make_settings: Make) -> None:
    with pytest.raises(InputError, match="needs Parquet input"):
        run(make_settings(output={"format": "parquet"}))


def test_sidecars_have_a_row_per_record_in_input_order(corpus: Path, make_settings: Make) -> None:
    settings = make_settings(output={"sidecars": ("arrays",)})
    run(settings)
    results = load_results(settings.store.path)
    tokens = np.load(settings.output.path / "token_counts.npy")
    assert tokens.tolist() == results.documents["tokens"].tolist()
    assert np.array_equal(np.load(settings.output.path / "embeddings.npy"), results.embeddings)


def test_results_for_notebooks(corpus: Path, make_settings: Make) -> None:
    settings = make_settings(
        input={"source_field": "source"}, order={"traits": {"cluster": 1.0, "score": 1.0}}
    )
    run(settings)
    results = load_results(settings.store.path)
    documents = results.documents
    assert list(documents.columns) == [
        "id",
        "record_id",
        "doc_id",
        "source",
        "tokens",
        "cluster",
        "cluster_name",
        "cluster_distance",
        "position",
        "repeats",
        "score",
    ]
    assert documents["repeats"].tolist() == [1] * 240
    assert documents["source"].tolist() == [record["source"] for record in topic_records()]
    order = np.load(settings.output.path / "order.npy")
    assert documents["position"].to_numpy()[order].tolist() == list(range(240))
    assert documents["record_id"].str.len().unique().tolist() == [32]
    assert isinstance(results.embeddings, np.memmap)
    assert results.embeddings.shape == (240, 16)
    assert np.allclose(np.linalg.norm(results.embeddings, axis=1), 1, atol=1e-5)
    metrics = results.metrics.set_index("measure")
    assert list(metrics)[:2] == ["unit", "better"] and set(ORDERS) < set(metrics)
    held = metrics.loc["clusters in a sequence, mean"]
    assert (
        held["better"] == "more"
        and held["sequences"]
        == orjson.loads((settings.output.path / "curated_meta.json").read_bytes())["diversity"]["sequences"][
            "split"
        ]["mean"]
    )
    assert metrics.loc["every cluster seen after", "unit"] == "%" and metrics["about"].str.len().min() > 10
    assert {"trait", "window", "measure", *ORDERS} <= set(results.measures)
    assert "240 documents" in repr(results) and "<td>evidence</td><td>not made</td>" in results._repr_html_()
    assert load_results(settings.store.path).embeddings.filename == results.embeddings.filename


def test_a_damaged_output_is_written_again(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings)
    before = output_bytes(settings)
    (settings.output.path / "curated.jsonl").write_bytes(before["curated.jsonl"][:-1])
    assert run(settings)["curated_output"]["written"]
    assert output_bytes(settings) == before


def test_stages_alone_need_the_ones_before_them_up_to_date(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    with pytest.raises(MissingStageError, match=r"raw_docs has no result.*'\*raw_docs' selects"):
        run_stage("base_model", settings, Silent())
    run(settings)
    with pytest.raises(
        MissingStageError, match=r"centroids was last made with other settings.*'\*clusters' selects"
    ):
        run_stage("greedy_order", make_settings(clusters={"k": 3}), Silent())
    write_jsonl(corpus, topic_records(30))
    run_stage("raw_docs", settings, Silent())
    with pytest.raises(MissingStageError, match="was made for an earlier state of raw_docs"):
        run_stage("clusters", settings, Silent())


def test_a_part_is_made_with_one_asset_alone() -> None:
    """Else a fit that is asked for would be made with every asset that reads it."""
    settings = Settings(embedding={"kind": "auto", "pca": 3}, clusters={"k": "auto"})
    needed = GRAPH.needed(settings)
    made = [part for stage in needed if GRAPH[stage].asset for part in GRAPH.step(settings, stage)]
    assert Counter(made) == Counter(needed)


def test_every_stage_runs_alone(corpus: Path, make_settings: Make) -> None:
    """Also those that an asset before makes with itself, such as the names of the clusters."""
    settings = make_settings()
    made = run_all(settings, Silent())
    for stage, receipt in made.items():
        assert run_stage(stage, settings, Silent()).version == receipt.version


def test_a_trait_no_record_has_is_an_error(corpus: Path, make_settings: Make) -> None:
    with pytest.raises(InputError, match="no record has the field 'langauge'"):
        run(make_settings(order={"traits": {"cluster": 1.0, "langauge": 1.0}}))


@pytest.mark.parametrize(
    "records", [topic_records(1)[:1], topic_records(1)[:1] * 50], ids=["one", "identical"]
)
def test_tiny_corpora_work(tmp_path: Path, make_settings: Make, records: list[dict[str, Any]]) -> None:
    write_jsonl(tmp_path / "docs.jsonl", records)
    settings = make_settings(clusters={"k": 10}, output={"sidecars": ("plot",)})
    reports = run(settings)
    assert reports["raw_docs"]["documents"] == 1
    assert reports["curated_output"]["records"] == len(records)
    assert (settings.output.path / "curated.jsonl").read_bytes() == (tmp_path / "docs.jsonl").read_bytes()


def test_a_checkpoint_directory_as_base_model(tmp_path: Path, corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    run(settings)
    (made,) = settings.store.path.glob("fits/base_model/*")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(made / name, checkpoint / name)
    other = make_settings(model={"base": str(checkpoint)})
    reports = run(other)
    assert reports["base_model"]["base"] == str(checkpoint)
    # The tokenizer has the same bytes, so the tokens are the same and none is made again.
    assert reports["token_counts"]["new_documents"] == 0
    assert run(other)["base_model"]["fitted"].startswith("no: kept")
    tokenizer = checkpoint / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
    assert run(other)["base_model"]["fitted"] == "what it reads has changed"


def test_a_corpus_smaller_than_a_batch_says_nothing_about_batches(corpus: Path, make_settings: Make) -> None:
    summary = run(make_settings(sequence={"length": 1 << 20}))["diversity_metrics"]["summary"]
    assert [row["batch TV, clusters"] for row in summary] == [None] * len(ORDERS)
    assert all(row["distinct clusters a sequence"] > 0 for row in summary)


@pytest.mark.parametrize(
    ("k", "said"),
    [
        (4, "fitted to 240 documents, 60 a cluster; the further below 256, the more"),
        (300, "300 clusters are asked for, but there were only 240 documents"),
    ],
)
def test_clusters_say_on_how_few_documents_they_were_fitted(
    corpus: Path, make_settings: Make, k: int, said: str
) -> None:
    settings = make_settings(clusters={"k": k})
    receipts = run_all(settings, Silent(), GRAPH.needed(settings, "clusters"))
    assert said in receipts["clusters"].figures["note"]


def test_a_sample_of_texts_is_the_first_by_id_up_to_its_bytes_and_its_documents(
    corpus: Path, make_settings: Make
) -> None:
    settings = make_settings()
    receipt = run_stage("raw_docs", settings, Silent())
    store = LocalStore(settings.store.path)
    view = View.load(store, receipt.files["view"])
    rows = sample.rows_by_id(store, view)
    texts = sample.sample_texts(store, view, rows, 1 << 20)
    assert len(texts) == receipt.figures["documents"]
    assert sample.sample_texts(store, view, sample.rows_by_id(store, view, 7), 1 << 20) == texts[:7]
    assert sample.sample_texts(store, view, rows, len(texts[0].encode())) == texts[:1]
