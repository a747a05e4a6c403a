"""raw_docs: the input's records and documents, in fragments, and the view of them.

Of a plain file that has grown only what was added is read (store/readings.py); all else is read and hashed. Parsed and
stored are only records never seen under this text field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_divorder.engine.progress import Advance
from dagster_divorder.pipeline.merge import merge_small
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.settings import CODE_VERSIONS, Settings
from dagster_divorder.store.corpus import Begin, Corpus, End
from dagster_divorder.store.ingest import Before, Ingest, Survey
from dagster_divorder.store.inputs import LineBlock, find_files
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.multiset import Multiset
from dagster_divorder.store.readings import load_readings, save_readings
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.rows import check_columns
from dagster_divorder.store.view import View


def run(run: Run) -> Receipt:
    settings = run.settings.input
    merge_small(run.store)
    kind, files = find_files(settings.paths)
    key = records_key(run.settings, kind)
    with (
        Ingest(run.store, kind, key, settings.text_field, _before(run.store, key)) as ingest,
        run.progress("reading records", None, "records") as advance,
    ):
        corpus = Corpus(kind, files, ingest.known)
        schema = read_into(ingest, corpus, advance, run.settings)
        result = ingest.finish(settings.max_reject_share)
    survey = result.survey
    outcome = {
        "view": result.view.save(run.store, survey.version),
        "rejects": result.rejects,
        "readings": save_readings(run.store, "readings", result.readings),
    }
    if schema is not None:
        outcome["schema"] = run.store.seal("schemas", "schema", schema.serialize().to_pybytes(), "arrow")
    return Receipt(
        stage="raw_docs",
        recipe=run.settings.recipe("raw_docs"),
        key=key,
        version=survey.version,
        uses={},
        files=outcome,
        report={
            "documents": survey.documents,
            "new_documents": survey.new_documents,
            "reused_documents": survey.documents - survey.new_documents,
            "records": survey.records,
            "new_records": survey.new_records,
            "rejected_records": survey.rejected,
            **input_facts(files, corpus, survey.partial_lines),
            "text_bytes": result.text_bytes,
            "kind": kind,
            "record_bytes": survey.multiset.bytes,
            "record_hashes": f"{survey.multiset.hashes:032x}",
            "recognised_by": corpus.way,
            "recognised_bytes": corpus.kept_bytes,
        },
    )


def records_key(settings: Settings, kind: str) -> str:
    """Stage key of record fragments: not the paths, so that a renamed or added file changes no record."""
    return content_hash("raw_docs", CODE_VERSIONS["raw_docs"], kind, settings.input.text_field)


def survey_input(settings: Settings, store: LocalStore) -> tuple[Survey, dict[str, Any]]:
    """What a run would find, and what its report would say of the input's files; stores nothing.

    Raises:
        InputError: the input cannot be read, or too much of it would be refused.
    """
    kind, files = find_files(settings.input.paths)
    key = records_key(settings, kind)
    with Ingest(store, kind, key, settings.input.text_field, _before(store, key), dry=True) as ingest:
        corpus = Corpus(kind, files, ingest.known)
        read_into(ingest, corpus, lambda records: None, settings)
        survey = ingest.survey(settings.input.max_reject_share)
    return survey, input_facts(files, corpus, survey.partial_lines)


def input_facts(files: list[Path], corpus: Corpus, partial_lines: int) -> dict[str, Any]:
    """What the output's manifest says of the input, and can change while no record does."""
    return {
        "files": [str(path) for path in files],
        "file_bytes": corpus.bytes,
        "partial_lines": partial_lines,
    }


def read_into(ingest: Ingest, corpus: Corpus, advance: Advance, settings: Settings) -> pa.Schema | None:
    """Take in the input; the columns of its first file if it is Parquet.

    Raises:
        InputError: a column is of a type that cannot be read or, as the settings ask, written.
    """
    schema = None
    for item in corpus:
        if isinstance(item, Begin):
            if schema is None and item.schema is not None:
                schema = item.schema
                check_columns(schema, as_json=settings.output.format == "jsonl")
            ingest.begin(item)
            if item.kept:
                advance(item.kept.last - item.kept.first)
        elif isinstance(item, End):
            ingest.end(item)
        else:
            ingest.add(item)
            advance(len(item.lines) if isinstance(item, LineBlock) else item.rows.num_rows)
    return schema


def _before(store: LocalStore, key: str) -> Before | None:
    """What the last run came to, if it was one under this key that left its readings."""
    receipt = load_receipt(store, "raw_docs")
    if receipt is None or receipt.key != key or "readings" not in receipt.files:
        return None
    readings = load_readings(store, receipt.files["readings"])
    return Before(View.load(store, receipt.files["view"]), receipt.files["rejects"], readings)


def load_multiset(run: Run) -> Multiset:
    """The accepted records, as they were read."""
    report = run.receipt("raw_docs").report
    return Multiset(report["records"], int(report["record_hashes"], 16), report["record_bytes"])


def load_view(run: Run) -> View:
    """The current view."""
    return View.load(run.store, run.receipt("raw_docs").files["view"])
