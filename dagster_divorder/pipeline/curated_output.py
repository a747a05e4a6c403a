"""curated_output: the corpus in its new order, in the input's own format, and everything that says how it came about.

Written to `output.path`: curated.jsonl (or curated-00000.jsonl ..., or .parquet), order.npy, packed_sequences.parquet,
sequence_order.npy, rejects.jsonl, ordering_comparison.png, on request token_counts.npy and embeddings.npy, and
curated_meta.json, the manifest, last (docs/curated_meta.md). An output that is whole and up to date is left untouched.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import numpy as np
import pyarrow as pa

from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.cluster_names import load_names
from dagster_divorder.pipeline.diversity_metrics import load_metrics
from dagster_divorder.pipeline.graph import needed
from dagster_divorder.pipeline.greedy_order import load_order
from dagster_divorder.pipeline.packed_sequences import load_packed, runs_of
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sample import document_index, rows_by_id
from dagster_divorder.pipeline.sequence_order import load_sequence_order
from dagster_divorder.pipeline.space import chosen_space, chosen_vectors, map_vectors
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.settings import Settings
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.curated import (
    OutputFolder,
    is_whole,
    read_manifest,
    tidy,
    write_columns,
    write_json_rows,
    write_jsonl,
    write_parquet,
)
from dagster_divorder.store.fragments import records_folder
from dagster_divorder.store.gather import BUCKET_BYTES, gather
from dagster_divorder.store.ids import IdIndex
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.view import View

META_VERSION = 2
USES = ("raw_docs", "greedy_order", "sequence_order", "diversity_metrics")
SIMILARITY_SAMPLE = 5_000
PACKED = (
    "sequences",
    "last_sequence_tokens",
    "padding",
    "cut_documents",
    "documents_per_sequence",
    "clusters_per_sequence",
)
SPACE = ("vectors", "pca", "explained_variance")
PACKAGES = ("dagster-divorder", "numpy", "pyarrow", "faiss-cpu", "tokenizers", "gigatoken", "numba", "torch")


def run(run: Run) -> Receipt:
    settings = run.settings
    view = load_view(run)
    folder = settings.output.path
    uses = {name: run.receipt(name).version for name in USES}
    names = run.receipt("clusters").files["names"]
    key = output_key(settings, uses, run.receipt("raw_docs").report, names)
    manifest = read_manifest(folder)
    written = manifest is None or manifest.get("key") != key or not is_whole(folder, manifest["files"])
    if written:
        manifest = _write(run, view, key, manifest)
    assert manifest is not None
    tidy(run.store, folder, manifest["files"])
    delta = manifest["delta"]
    documents = int(view.used_documents().sum())
    return Receipt(
        stage="curated_output",
        recipe=settings.recipe("curated_output"),
        key=key,
        version=content_hash({name: entry["sha256"] for name, entry in manifest["files"].items()}),
        uses=uses,
        files={"ids": manifest["ids"]},
        report={
            "documents": documents,
            "new_documents": delta["new_documents"] if written else 0,
            "reused_documents": delta["reused_documents"] if written else documents,
            "dropped_documents": delta["dropped_documents"] if written else 0,
            "records": len(view),
            "written": written,
            "folder": str(folder),
            "files": manifest["files"],
            "bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
        },
    )


def output_key(
    settings: Settings, uses: Mapping[str, str], input_report: Mapping[str, Any], names: str
) -> str:
    """Key of an output: the manifest also names the input's files, the settings of the orders and the clusters (`names`
    is the folder of their names), which can change while the bytes do not."""
    facts = [input_report[name] for name in ("files", "file_bytes", "partial_lines")]
    recipes = [settings.recipe(name) for name in ("greedy_order", "packed_sequences", "sequence_order")]
    return content_hash(settings.recipe("curated_output"), uses, recipes, facts, names)


def _write(run: Run, view: View, key: str, before: dict[str, Any] | None) -> dict[str, Any]:
    order = load_order(run)
    sizes = _record_sizes(run, view)
    records = int(sizes[view.record_row].sum())
    # A large output also passes through the gather's bucket files.
    expected = (2 if records > BUCKET_BYTES else 1) * records + order.nbytes
    with (
        OutputFolder(run.store, run.settings.output.path, expected) as output,
        # Arithmetic that needs none of what is written meanwhile.
        ThreadPoolExecutor(1, thread_name_prefix="divorder-similarity") as aside,
    ):
        similarity = aside.submit(_similarity, run, view)
        _stage_records(run, view, order, sizes, output)
        output.stage("order.npy", lambda file: _save_npy(file, order))
        output.stage("packed_sequences.parquet", lambda file: write_columns(file, runs_of(load_packed(run))))
        output.stage("sequence_order.npy", lambda file: _save_npy(file, load_sequence_order(run)))
        rejects = run.store.unseal(run.receipt("raw_docs").files["rejects"])
        output.stage("rejects.jsonl", lambda file: file.write(rejects))
        if run.settings.output.sidecars:
            _stage_sidecars(run, view, output)
        if run.settings.output.plot:
            picture = run.store.unseal(run.receipt("diversity_metrics").files["picture"])
            output.stage("ordering_comparison.png", lambda file: file.write(picture))
        ids = document_index(run.store, view)[0][view.used_documents()]
        file = run.store.seal("stages/curated_output", key, pack({"ids": ids}), "safetensors")
        about = _manifest(run, view, key) | {
            "cosine_similarity": similarity.result(),
            "ids": file,
            "delta": _delta(run, ids, before),
        }
        manifest = output.commit(about)
    if before and before.get("ids", file) != file:
        run.store.delete(before["ids"])
    return manifest


def _stage_records(run: Run, view: View, order: np.ndarray, sizes: np.ndarray, output: OutputFolder) -> None:
    settings = run.settings.output
    kind = view.kind if settings.format == "auto" else settings.format
    if kind == "parquet" and view.kind == "jsonl":
        raise InputError(
            "output.format = 'parquet' needs Parquet input: JSONL lines have no schema; "
            "use output.format = 'auto', or convert the input to Parquet first"
        )
    limits = _shard_limits(sizes[view.record_row[order]], settings.shard_bytes)
    with (
        run.progress("writing records", len(view), "records") as advance,
        contextlib.closing(gather(run.store, view, order, sizes, settings.path, advance)) as parts,
    ):
        writers: Iterator[Callable[[IO[bytes]], None]]
        if kind == "parquet":
            schema = pa.ipc.read_schema(
                pa.py_buffer(run.store.unseal(run.receipt("raw_docs").files["schema"]))
            )
            writers = write_parquet(parts, limits, schema)
        elif view.kind == "parquet":
            writers = write_json_rows(parts, limits)
        else:
            writers = write_jsonl(parts, limits)
        for number, writer in enumerate(writers):
            name = f"curated.{kind}" if len(limits) == 1 else f"curated-{number:05d}.{kind}"
            output.stage(name, writer)


def _shard_limits(sizes: np.ndarray, shard_bytes: int) -> list[int]:
    """Output positions at which shards end: each holds about `shard_bytes`, at least one record."""
    ends = np.cumsum(sizes)
    shards = -(-int(ends[-1]) // shard_bytes)
    limits = np.searchsorted(ends, np.arange(1, shards) * shard_bytes, side="right")
    return [*np.unique(limits[(limits > 0) & (limits < len(sizes))]).tolist(), len(sizes)]


def _record_sizes(run: Run, view: View) -> np.ndarray:
    """Bytes of every record row of the view, int64."""
    present = run.store.sealed(f"{records_folder(run.receipt('raw_docs').key)}/index")
    return np.concatenate(
        [unpack(run.store.unseal(present[fragment.name]))["size"] for fragment in view.records]
    )


def _stage_sidecars(run: Run, view: View, output: OutputFolder) -> None:
    lengths = token_files(run).column(view.documents, "lengths")[view.document_row]
    output.stage("token_counts.npy", lambda file: _save_npy(file, lengths))
    vectors = map_vectors(run.store, view, chosen_vectors(run))
    output.stage("embeddings.npy", lambda file: _save_npy(file, vectors))


def _save_npy(file: IO[bytes], array: np.ndarray) -> None:
    np.lib.format.write_array(file, array, allow_pickle=False)


def _manifest(run: Run, view: View, key: str) -> dict[str, Any]:
    settings = run.settings
    stages = needed(settings)
    reports = {stage: receipt.report for stage in stages if (receipt := load_receipt(run.store, stage))}
    raw_docs, clusters, model = reports["raw_docs"], reports["clusters"], reports["base_model"]
    packed = reports["packed_sequences"]
    metrics = load_metrics(run.store, run.receipt("diversity_metrics").files["metrics"])
    return {
        "meta_version": META_VERSION,
        "key": key,
        "input": {"files": raw_docs["files"], "bytes": raw_docs["file_bytes"], "kind": raw_docs["kind"]},
        "counts": {
            "records": len(view),
            "documents": raw_docs["documents"],
            "rejected_records": raw_docs["rejected_records"],
            "partial_lines": raw_docs["partial_lines"],
        },
        "tokens": reports["token_counts"]["tokens"],
        "model": {
            name: model[name] for name in ("base", "vocabulary", "dim", "engine", "table", "tokenizer")
        },
        "space": {name: clusters[name] for name in SPACE if name in clusters},
        "k": clusters["k"],
        "strategy": settings.order.strategy,
        "frozen_tokens": settings.order.frozen_tokens,
        "traits": settings.order.traits,
        "targets": settings.order.targets,
        "sequence": settings.sequence.model_dump(),
        "packing": {**settings.packing.model_dump(), **{name: packed[name] for name in PACKED}},
        "seed": settings.seed,
        "diversity": {name: _without_curves(figures) for name, figures in metrics.items()},
        "cluster_names": load_names(run),
        "cluster_sizes": clusters["cluster_sizes"],
        "seconds": {
            stage: reports[stage]["seconds"]
            for stage in stages
            if stage in reports and stage != "curated_output"
        },
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
    }


def _without_curves(figures: dict[str, Any]) -> dict[str, Any]:
    prefix = {name: value for name, value in figures["prefix"].items() if name in ("mean", "max")}
    return {name: value for name, value in figures.items() if name != "curves"} | {"prefix": prefix}


def _similarity(run: Run, view: View) -> dict[str, Any]:
    """Pairwise cosine similarities of up to SIMILARITY_SAMPLE documents, by rising id."""
    from dagster_divorder.core.similarity import cosine_statistics

    ids, _ = document_index(run.store, view)
    rows = np.sort(rows_by_id(ids, view)[:SIMILARITY_SAMPLE])
    return dict(cosine_statistics(chosen_space(run).rows(view, rows)))


def _delta(run: Run, now: np.ndarray, before: dict[str, Any] | None) -> dict[str, int]:
    """Distinct documents, by their ids, compared with the output that this one replaces.

    Its ids are kept apart from its view, whose fragments merging and pruning take away.
    """
    old = np.empty((0, 2), dtype=np.uint64)
    name = (before or {}).get("ids")
    if name and run.store.exists(name):
        old = unpack(run.store.unseal(name))["ids"]
    index = IdIndex()
    index.add(old)
    reused = int((index.find(now) >= 0).sum())
    return {
        "new_documents": len(now) - reused,
        "reused_documents": reused,
        "dropped_documents": len(old) - reused,
    }
