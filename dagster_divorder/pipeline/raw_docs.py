"""raw_docs: the input's records and documents, in fragments, and the view of them.

Reads the input files whole and hashes them; parses and stores only records never seen under this text field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dagster_divorder.pipeline.merge import merge_small
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.settings import CODE_VERSIONS, Settings
from dagster_divorder.store.ingest import Ingest
from dagster_divorder.store.inputs import LineBlock, RowBlock, find_files, read_lines, read_rows
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.view import View


def run(run: Run) -> Receipt:
    settings = run.settings.input
    merge_small(run.store)
    kind, files = find_files(settings.paths)
    key = records_key(run.settings, kind)
    schema = None
    size = sum(path.stat().st_size for path in files)
    with (
        Ingest(run.store, kind, key, settings.text_field) as ingest,
        run.progress("reading records", None, "records") as advance,
    ):
        for block in read_blocks(kind, files):
            ingest.add(block)
            if isinstance(block, LineBlock):
                advance(len(block.lines))
            else:
                schema = schema or block.rows.schema
                advance(block.rows.num_rows)
        result = ingest.finish(settings.max_reject_share)
    documents = int(result.view.used_documents().sum())
    outcome = {"view": result.view.save(run.store, result.version), "rejects": result.rejects}
    if schema is not None:
        outcome["schema"] = run.store.seal("schemas", "schema", schema.serialize().to_pybytes(), "arrow")
    return Receipt(
        stage="raw_docs",
        recipe=run.settings.recipe("raw_docs"),
        key=key,
        version=result.version,
        uses={},
        files=outcome,
        report={
            "documents": documents,
            "new_documents": result.new_documents,
            "reused_documents": documents - result.new_documents,
            "records": len(result.view),
            "new_records": result.new_records,
            "rejected_records": result.rejected,
            "partial_lines": result.partial_lines,
            "files": [str(path) for path in files],
            "file_bytes": size,
            "text_bytes": result.text_bytes,
            "kind": kind,
        },
    )


def records_key(settings: Settings, kind: str) -> str:
    """Stage key of record fragments: not the paths, so that a renamed or added file changes no record."""
    return content_hash("raw_docs", CODE_VERSIONS["raw_docs"], kind, settings.input.text_field)


def read_blocks(kind: str, files: list[Path]) -> Iterator[LineBlock | RowBlock]:
    """The input, block by block."""
    schema = None
    for path in files:
        if kind == "jsonl":
            yield from read_lines(path)
        else:
            for block in read_rows(path, schema):
                schema = block.rows.schema
                yield block


def load_view(run: Run) -> View:
    """The current view."""
    return View.load(run.store, run.receipt("raw_docs").files["view"])
