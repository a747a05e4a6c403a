"""curated_output: the corpus in its new order, in the input's own format, with files that document how it was made.

Written to `output.path`: curated.jsonl (or curated-00000.jsonl ..., or .parquet), order.npy, packed_sequences.parquet,
sequence_order.npy, rejects.jsonl, ordering_comparison.png, and last the manifest, curated_meta.json
(docs/curated_meta.md). An output that is complete and up to date stays unchanged.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from dagster_divorder.core.arrow import plain_array
from dagster_divorder.errors import InputError, MissingStageError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.published import ORDERS, record_plan
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import (
    RUN_FIGURES,
    Check,
    File,
    Finding,
    Link,
    Made,
    Shown,
    Table,
    WholeCorpus,
    content_hash,
    versions,
)
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Output
from dagster_divorder.stages.corpus.chat_template import reading
from dagster_divorder.stages.corpus.raw_docs import found_inputs, load_multiset
from dagster_divorder.stages.measure.diversity_metrics import load_metrics
from dagster_divorder.stages.mix.consumed import refuse_to_reorder
from dagster_divorder.stages.mix.heldout_copies import heldout_table, load_heldout, removed_lines
from dagster_divorder.stages.mix.repeats import item_records, load_sources
from dagster_divorder.stages.mix.subset_selection import left_out
from dagster_divorder.stages.order.packed_sequences import load_packed, runs_of
from dagster_divorder.stages.order.sequence_order import load_sequence_order, output_is_whole, output_order
from dagster_divorder.stages.output.exports import plan_fingerprint
from dagster_divorder.stages.topics.components import space_reads
from dagster_divorder.store.arrays import compact, pack_parquet
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.ids import to_bytes
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest, why_lacking
from dagster_divorder.store.state import Receipt
from dagster_divorder.write.curated import RECORDS, OutputFolder, tidy
from dagster_divorder.write.permute import EXTENDED_SHARD_BYTES, Shard, permute, shard_limits, stage_extended
from dagster_divorder.write.records import WriteRecords, common_lines, permuted_records, stored, written

META_VERSION = 3
MEMORY_BYTES = 256 << 20
"""Maximum bytes of records that are ordered in memory."""
OUTPUT_SHARD_BYTES = 2 << 30
"""A larger output is split into numbered files of about this many bytes."""

WORKERS_FROM_BYTES = 1 << 30
"""Bytes of records from which workers write them."""
ROW_GROUP = 1 << 20
"""Rows per row group in Parquet files of numbers."""
PICTURE = "ordering_comparison.png"
PACKAGES = ("dagster-divorder", "numpy", "pyarrow", "faiss-cpu", "tokenizers", "gigatoken", "numba", "torch")


STREAM = ("heldout", "heldout_copies", "subset_selection", "repeats")
"""Stages that choose what is trained on."""


def check_format(kind: str, output: Output) -> None:
    """Check that input of this kind, jsonl or parquet, can be written in the output's format.

    Raises:
        InputError: the input is JSONL and the output Parquet.
    """
    if output.format == "parquet" and kind == "jsonl":
        raise InputError(
            "output.format = 'parquet' needs Parquet input, with the same columns in every [[input]]: JSONL lines have "
            "no schema; use output.format = 'auto', or convert the input to Parquet first"
        )


def load_manifest(run: Run) -> dict[str, Any]:
    """The manifest of the output that the last run wrote.

    Raises:
        MissingStageError: there was no run, or `output.path` does not hold its output.
    """
    folder = run.settings.output.path
    manifest = read_manifest(folder)
    if manifest is None or manifest["key"] != run.receipt(OUTPUT).key:
        raise MissingStageError(
            f"{folder} does not hold the output that {OUTPUT} made last; run it again: divorder run"
        )
    return manifest


def _write_curated_output(run: Run) -> Made:
    """Write the output. The store keeps the hashes of its files."""
    key, folder = CURATED_OUTPUT.key(run), run.settings.output.path
    fingerprint = plan_fingerprint(run)
    # In Dagster also where the exports were refused.
    refuse_to_reorder(run, fingerprint)
    record_plan(run, fingerprint, {str(folder): key})
    files = _write(run, key)["files"]
    run.observed["written"] = True
    figures = {"records": len(run.view), "written": False, "folder": str(folder)}
    # The picture shows the date, which must not change the version.
    hashes = orjson.dumps({name: entry["sha256"] for name, entry in files.items() if name != PICTURE})
    return Made({"hashes": File(hashes, "json")}, {"plan": fingerprint}, figures)


def _publish_output(run: Run, receipt: Receipt) -> None:
    folder = run.settings.output.path
    manifest = read_manifest(folder)
    assert manifest is not None
    tidy(run.store, folder, manifest["files"])
    run.observed |= {
        "files": manifest["files"],
        "bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
    }


def _write(run: Run, key: str) -> dict[str, Any]:
    """Write all files; returns the manifest."""
    import pyarrow.parquet as pq

    settings = run.settings
    order, records = output_order(run), item_records(run)
    sizes = compact(run.index("size"))
    rows = records[order]
    with OutputFolder(run.store, settings.output.path, extends=settings.order.extends) as output:
        _stage_records(run, rows, sizes, output)
        output.stage("order.npy", lambda file: np.save(file, rows))
        # In row groups, so that a reader of some rows decodes few others.
        columns = {name: plain_array(column) for name, column in runs_of(load_packed(run), records).items()}
        output.stage(
            "packed_sequences.parquet",
            lambda file: pq.write_table(
                pa.table(columns), pa.PythonFile(file, "w"), row_group_size=ROW_GROUP
            ),
        )
        output.stage("sequence_order.npy", lambda file: np.save(file, load_sequence_order(run)))
        others = {"rejects.jsonl": run.read("raw_docs", "rejects")}
        if settings.holds_out:
            heldout = load_heldout(run)
            others["heldout.parquet"] = pack_parquet(heldout_table(run, heldout), "zstd")
            others["heldout_removed.jsonl"] = removed_lines(run, heldout)
        if settings.selects:
            others["left_out.parquet"] = pack_parquet(left_out(run), "zstd")
        if "plot" in settings.output.sidecars:
            others[PICTURE] = run.read("diversity_metrics", "picture")
        for name, data in others.items():
            output.stage(name, lambda file, data=data: file.write(data))  # type: ignore[misc]
        return output.commit(_manifest(run, key))


def _stage_records(run: Run, rows: np.ndarray, sizes: np.ndarray, output: OutputFolder) -> None:
    """rows: the records in the order of the output, int64 (M,). sizes: bytes of all records, (N,)."""
    settings, view = run.settings.output, run.view
    kind = view.kind if settings.format == "auto" else settings.format
    schema = None
    if view.kind == "parquet":
        schema = pa.ipc.read_schema(pa.py_buffer(run.read("raw_docs", "schema")))
    permutation = permuted_records(run.records, view, sizes, rows)
    shard_bytes = min(OUTPUT_SHARD_BYTES, EXTENDED_SHARD_BYTES) if output.extends else OUTPUT_SHARD_BYTES
    limits = shard_limits(permutation.sizes, shard_bytes)
    write = WriteRecords(from_rows=schema is not None, schema=schema if kind == "parquet" else None)
    names = (
        [f"curated.{kind}"] if len(limits) == 1 else [f"curated-{n:05d}.{kind}" for n in range(len(limits))]
    )
    spans = pairwise([0, *limits])
    form = content_hash(kind, schema.serialize().to_pybytes().hex() if schema else "")
    ids = run.index("id") if output.extends else np.empty((0, 2), np.uint64)

    def content(file: Shard) -> str:
        hashed = xxhash.xxh3_128_hexdigest(to_bytes(ids.take(rows[file.first : file.end], axis=0)))
        return content_hash(CURATED_OUTPUT.version, form, hashed)

    def stage(files: Mapping[str, Shard]) -> None:
        name, (before, end, _) = next(iter(files.items()))
        if name in output.published and output.here.place == output.path and kind == "jsonl":
            # The published file goes on.
            published = output.here.source(name)
            count, size = common_lines(published, ids.take(rows[before:end], axis=0))
            before += count
            files = {**files, name: Shard(before, end, replace(write, begins=(published, size)))}
        # Rows are added at the end, so rows of files that are not written again lie before the others.
        missing = permutation.within(slice(before, None))
        permute(
            missing,
            {name: Shard(first - before, end - before, write) for name, (first, end, write) in files.items()},
            output,
            through_files=missing.nbytes > MEMORY_BYTES,
            engine=lambda: run.engine,
            workers_from=WORKERS_FROM_BYTES,
            progress=run.progress,
            unit="records",
        )

    files = {name: Shard(first, end, write) for name, (first, end) in zip(names, spans, strict=True)}
    stage_extended(output, files, stage, content=content, note=run.progress.note)


def _manifest(run: Run, key: str) -> dict[str, Any]:
    settings, facts, packages = (
        run.settings,
        run.receipt("raw_docs").facts,
        {"python": platform.python_version()},
    )
    model, packed = run.receipt("base_model").figures, run.receipt("packed_sequences").figures
    for name in PACKAGES:
        # When `warm` runs, some are not installed yet.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    diversity = {}
    for name, measures in load_metrics(run).items():
        prefix = {part: measures["prefix"][part] for part in ("mean", "worst")}
        diversity[name] = {part: value for part, value in measures.items() if part != "curves"} | {
            "prefix": prefix
        }
    return {
        "meta_version": META_VERSION,
        "key": key,
        "date": time.strftime("%Y-%m-%d"),
        "input": {"files": facts["files"], "bytes": facts["file_bytes"], "kind": facts["kind"]},
        "counts": {
            "records": len(run.view),
            "documents": facts["texts"],
            "rejected_records": facts["rejected_records"],
            "partial_lines": facts["partial_lines"],
        },
        "tokens": run.receipt("token_counts").figures["tokens"],
        "model": {
            name: model[name] for name in ("base", "vocabulary", "dim", "engine", "table", "tokenizer")
        },
        "k": run.receipt("centroids").facts["k"],
        "order": settings.order.written,
        **(
            {"mixing": {"trait": settings.mixed_trait, "values": load_sources(run)}}
            if settings.repeats
            else {}
        ),
        "sequence": settings.sequence.model_dump(),
        "packing": {
            **settings.packing.model_dump(),
            **{name: value for name, value in packed.items() if name not in RUN_FIGURES},
        },
        "seed": settings.seed,
        "diversity": diversity,
        "versions": packages,
    }


def _every_record_in_output(run: Run) -> Finding:
    """Compares the output's records with the accepted records of the input, as multisets.

    A run hashes the input as it reads it, so the check reads only the output, once, in blocks. (JSON lines made of
    Parquet rows have other bytes. In that case, or if records are not each trained on once, it also reads the stored
    records.)
    """
    folder = run.settings.output.path
    remedy = (
        f"delete {folder / MANIFEST} and materialise curated_output again, which then writes every file; until then do "
        "not train on this output"
    )
    try:
        names = sorted(filter(RECORDS.fullmatch, load_manifest(run)["files"]))
        output = written(map(folder_at(folder).source, names))
    except (OSError, InputError, MissingStageError) as error:
        return Finding(passed=False, text=f"The output cannot be read: {error}.", remedy=remedy)
    rendered = run.view.kind == "parquet" and any(name.endswith(".jsonl") for name in names)
    every, left_out = output_is_whole(run), 0
    if every and not (rendered or run.settings.repeats):
        planned = load_multiset(run)
    else:
        records = item_records(run)
        if not every:
            order = output_order(run)
            records, left_out = records[order], len(records) - len(order)
        read = np.bincount(records, minlength=len(run.view))
        planned = stored(run.records, run.view, read, as_json=rendered)
    has, expected = (
        f"{records.records:,} records of {records.bytes:,} bytes, hash {records.hashes:032x}"
        for records in (output, planned)
    )
    times = "it is trained on" if run.settings.repeats or left_out else "in the input"
    but = f" but the {left_out:,} that are in no sequence" if left_out else ""
    return Finding(
        passed=output == planned,
        text=f"All {planned.records:,} accepted records{but} are in the output, each as often as {times} (hash of the "
        f"multiset {planned.hashes:032x})."
        if output == planned
        else f"The output does not hold the accepted records: it has {has}; expected {expected}.",
        remedy=remedy,
    )


def _show_curated_output(run: Run, receipt: Receipt) -> Shown:
    files = [{"file": name, **entry} for name, entry in receipt.figures["files"].items()]
    return {"output_folder": Link(run.settings.output.path), "output_files": Table(files[:200])}


def _curated_output_reads(settings: Settings) -> tuple[str, ...]:
    clusters = (*space_reads(settings), "centroids", "clusters", "cluster_names")
    orders = (*ORDERS, "diversity_metrics", "stationarity")
    return ("raw_docs", "base_model", "token_counts", *clusters, *STREAM, *orders)


def _decided_by(run: Run) -> dict[str, Any]:
    settings, facts = run.settings, run.receipt("raw_docs").facts
    field = settings.input.id_field
    return {
        # `lacks` checks `output.path`.
        "output": [OUTPUT_SHARD_BYTES, sorted(settings.output.sidecars)],
        "format": facts["kind"] if settings.output.format == "auto" else settings.output.format,
        **versions(run, "raw_docs", *STREAM, *ORDERS, "diversity_metrics", "cluster_names"),
        # The manifest also names the settings of the orders and the input's files. These can change while the bytes
        # stay.
        "orders": {name: run.graph[name].fingerprint(settings) for name in ORDERS},
        "input": [facts[name] for name in ("files", "file_bytes", "partial_lines")],
        # Only the rejects and the lists of records that are not trained on show ids.
        **({"id_field": field} if field and (facts["rejected_records"] or settings.repeats) else {}),
        **(reading(run) if settings.holds_out else {}),
    }


CURATED_OUTPUT = WholeCorpus(
    name="curated_output",
    version=5,
    then=("exports",),
    description="The corpus in its new order: the input's records, byte for byte, with the manifest curated_meta.json.",
    reads=_curated_output_reads,
    settings=("output.format", "output.sidecars"),
    decided_by=_decided_by,
    lacks=lambda run, key: why_lacking(run.settings.output.path, "output.path", key),
    publish=_publish_output,
    doing="writing the output",
    check=lambda run: check_format(found_inputs(run)[0], run.settings.output),
    compute=_write_curated_output,
    show=_show_curated_output,
    checks=(
        Check(
            name="every_record_in_output",
            description="The output holds every accepted record that packing keeps, byte for byte, as often as the "
            "input does. The check compares the number, the bytes and the sum of the hashes of the records.",
            check=_every_record_in_output,
            blocking=True,
        ),
    ),
)
