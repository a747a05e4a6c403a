"""raw_docs: the input's records in fragments, and the view of them. Every other stage reads it.

Files whose size and times are as they were are not read. Of a JSONL file that has grown, what still has the bytes that
it had is only hashed. All else is cut; only records of fragments that are not stored under this key are parsed and
stored (corpus/ingest.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.corpus.find import Found, counted, find_inputs
from dagster_divorder.corpus.ingest import Ingested, ingest
from dagster_divorder.corpus.inputs import Kind, read_schema
from dagster_divorder.corpus.parquet_rows import check_columns
from dagster_divorder.corpus.records import check_rejects
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import (
    Decision,
    Shown,
    Stage,
    Table,
    Text,
    content_hash,
    counts,
    what_changed,
)
from dagster_divorder.settings.sections import MAX_RECORD_BYTES, Inputs
from dagster_divorder.stages.corpus.chat_template import chat_facts, template_of
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import REFUSED, Fragments
from dagster_divorder.store.sources import RemoteFile, identity
from dagster_divorder.store.state import Receipt, Result, keep_result, load_receipt
from dagster_divorder.store.view import View
from dagster_divorder.write.records import Multiset

MIN_RECORDS, LABEL_BYTES = 20, 32
"""Fewest records with texts to compare, and the mean size below which texts may be labels."""

REJECTS_SHOWN, FILES_SHOWN = 10, 50
_SHOWN_CHARACTERS = 120
_CONTENT = ("raw", "raw_base64")
_FIGURES = (
    "records",
    "new_records",
    "texts",
    "rejected_records",
    "partial_lines",
    "file_bytes",
    "text_bytes",
    "kind",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class _RawDocs(Stage):
    """The one stage that is of no kind: all others are decided on its result, so a run reads the input at once. Only a
    plan reads it without storing."""

    def decide(self, run: Run) -> Decision:
        if not run.planning:
            return Decision(scope="new", documents=0, why="")
        read = _read(run, dry=True)
        run.unstored = read.ingested.view, read.ingested.planned
        last = load_receipt(run.store, self.name)
        files = last.files if last and last.version == read.version else {}
        receipt = self.receipt(run, read.key, read.version, files=files, facts=read.facts)
        new = read.ingested.new_records
        if new == len(read.ingested.view):
            return Decision(
                scope="all", documents=new, why=what_changed(self, run, "new records"), receipt=receipt
            )
        scope: Literal["nothing", "new"] = "new" if new else "nothing"
        return Decision(scope=scope, documents=new, why="new records" if new else "", receipt=receipt)

    def make(self, run: Run, decision: Decision) -> Receipt:
        read = _read(run, dry=False)
        view, facts = read.ingested.view, read.facts
        files = {
            "view": view.save(run.store, read.version),
            "rejects": run.store.put_hashed("rejects", "rejects", b"".join(read.rejects), "jsonl"),
        }
        if read.schema is not None and view.kind == "parquet":
            data = read.schema.serialize().to_pybytes()
            files["schema"] = run.store.put_hashed("schemas", "schema", data, "arrow")
        figures = {
            **counts(facts["records"], facts["new_records"]),
            **{name: facts[name] for name in _FIGURES},
            "trusted_bytes": read.ingested.trusted_bytes,
        }
        for remark in remarks(facts):
            run.progress.note(remark)
        keep_result(run.store, self.name, Result(key=read.version, version=read.version, files=files))
        return self.receipt(run, read.key, read.version, files=files, facts=facts, figures=figures)


@dataclass(frozen=True, slots=True)
class _Read:
    """The input as it was read: its key and version, its rejects (lines of rejects.jsonl), the columns of its first
    Parquet file, and the facts of the receipt."""

    ingested: Ingested
    key: str
    version: str
    rejects: list[bytes]
    schema: pa.Schema | None
    facts: dict[str, Any]


def _read(run: Run, *, dry: bool) -> _Read:
    """Read the input, and store its new fragments unless `dry`. Raises InputError: the input cannot be read, or holds
    no record, or too many records were refused. Fragments may be stored; no view refers to them."""
    kind, inputs = found_inputs(run)
    if template := template_of(run):
        # It must accept the conversations.
        inputs = [
            (replace(each, shape=replace(each.shape, chat_template=template)), schema)
            for each, schema in inputs
        ]
    found = [each for each, _ in inputs]
    key, last = records_key(run, kind), load_receipt(run.store, "raw_docs")
    before = _view_of(run.store, last) if last and last.key == key else None
    with run.progress("reading records", None, "records") as advance:

        def each(function: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
            # Ranges go to workers if there are several. A plan keeps what it reads in this process.
            if dry or len(items) < 2:
                return (function(item, advance=advance) for item in items)
            return run.engine.each(function, items, workers=len(items), advance=advance)

        read = ingest(Fragments(run.store, key), kind, inputs, before, MAX_RECORD_BYTES, each, dry=dry)
    fragments, view = Fragments(run.store, key, read.planned), read.view
    rejects = _rejects(fragments, view)
    check_rejects(view, found, rejects, run.settings.input.max_reject_share)
    version = content_hash(key, [piece.digest for piece in view.fragments], b"".join(rejects).hex())
    # Equal records have as many texts; counting them reads all indexes.
    if last and last.version == version:
        texts = last.facts["texts"]
    else:
        texts = len(distinct_values(fragments.text_halves(view.fragments)))
    unfinished = [[file.path, file.lines + 1, file.unfinished[0]] for file in view.files if file.unfinished]
    facts = {
        "files": [file.path for file in view.files],
        "identities": [file.identity for file in view.files],
        "file_bytes": sum(file.size for file in view.files),
        "partial_lines": len(unfinished),
        "unfinished": unfinished[:FILES_SHOWN],
        "kind": view.kind,
        "records": len(view),
        "new_records": read.new_records,
        "texts": texts,
        "text_bytes": sum(piece.text_bytes for piece in view.pieces),
        "rejected_records": sum(piece.refused for piece in view.pieces),
        "record_bytes": sum(piece.size for piece in view.pieces) if view.kind == "jsonl" else 0,
        "record_hashes": f"{sum(int(piece.hashes, 16) for piece in view.pieces) % (1 << 128):032x}",
        "id_field": run.settings.input.id_field,
        "left_out": counted({path: reason for each in found for path, reason in each.left_out.items()}),
        **chat_facts(run),
    }
    return _Read(read, key, version, rejects, next((schema for _, schema in inputs if schema), None), facts)


def found_inputs(run: Run) -> tuple[Kind, list[tuple[Found, pa.Schema | None]]]:
    """(The kind in which records of all inputs are written; the inputs with the columns of their Parquet files). The
    kind is Parquet if all inputs have the same columns, else lines, with rows as JSON. Raises InputError: a file's
    columns differ from the first one's, or cannot be read or, as the settings ask, written."""

    def find() -> tuple[Kind, list[tuple[Found, pa.Schema | None]]]:
        inputs = [(each, _columns_of(run, each)) for each in find_inputs(run.settings)]
        same = all(schema is not None and schema.equals(inputs[0][1]) for _, schema in inputs)
        for number, (each, schema) in enumerate(inputs):
            if schema is not None:
                inputs[number] = replace(each, shape=replace(each.shape, as_lines=not same)), schema
                with each.shape.naming():
                    check_columns(schema, as_json=not same or run.settings.output.format == "jsonl")
        return "parquet" if same else "jsonl", inputs

    found: tuple[Kind, list[tuple[Found, pa.Schema | None]]] = run.once("inputs", None, find)
    return found


def _columns_of(run: Run, found: Found) -> pa.Schema | None:
    """The columns of the Parquet files of an input."""
    schema, known = None, dict[tuple[str, tuple[int | str, ...]], str]()
    receipt = load_receipt(run.store, "raw_docs") if isinstance(found.files[0], RemoteFile) else None
    if receipt and found.kind == "parquet":
        known = {(file.path, file.identity): file.columns for file in _view_of(run.store, receipt).files}
    with found.shape.naming():
        for path in found.files if found.kind == "parquet" else ():
            columns = known.get((str(path), identity(path)), "") if known else ""
            # A file at a URL is fetched once: its columns are compared when its rows are read.
            if schema is None or columns or isinstance(path, Path):
                schema = read_schema(path, schema, columns)
    return schema


def _rejects(fragments: Fragments, view: View) -> list[bytes]:
    """The refused records of a view, as lines of rejects.jsonl in input order."""
    rejects: list[bytes] = []
    begins = np.cumsum([0, *(file.lines for file in view.files)])
    first = 0
    for piece in view.pieces:
        for line in fragments.index(piece, REFUSED)[0].tobytes().splitlines() if piece.refused else ():
            reject = orjson.loads(line)
            unit = "line" if "line" in reject else "row"
            at = first + reject[unit]
            file = int(np.searchsorted(begins, at, side="right")) - 1
            place = {"path": view.files[file].path, unit: at - int(begins[file]) + 1}
            rejects.append(orjson.dumps(reject | place) + b"\n")
        first += piece.lines
    return rejects


def records_key(run: Run, kind: str) -> str:
    """Key of fragments: not the paths, so that a renamed or added file changes no record."""
    given, template = run.settings.input, template_of(run)
    # Records of several inputs are stored with their shapes (corpus/shapes.py).
    reading: Any = ["several"] if isinstance(given, Inputs) else given.text_field
    if run.settings.has_chats:
        # Another template may refuse other records. 3: the version of what chats.forms makes of a record.
        reading = [reading, given.form, template.fingerprint if template else None, 3]
    return content_hash("raw_docs", RAW_DOCS.version, kind, reading)


def _view_of(store: Store, receipt: Receipt) -> View:
    """The view of a receipt, with what its files were known by."""
    return View.load(store, receipt.files["view"], receipt.facts["identities"])


def load_multiset(run: Run) -> Multiset:
    """The accepted records, as they were read."""
    facts = run.receipt("raw_docs").facts
    return Multiset(facts["records"], int(facts["record_hashes"], 16), facts["record_bytes"])


def remarks(facts: Mapping[str, Any]) -> list[str]:
    """Sentences on files and lines that are not read, and on texts that are few or very short."""
    sentences = [f"Not read: {facts['left_out']}."] if facts["left_out"] else []
    if unfinished := facts["unfinished"]:
        (path, line, byte), count = unfinished[0], facts["partial_lines"]
        more = f" So do {count - 1:,} more files." if count > 1 else ""
        sentences.append(
            f"Not read: line {line:,} of {path}, from byte {byte:,} on, as the file ends in the middle of its JSON, "
            f"without a newline.{more} It is read once its newline has come; if nothing writes to the file, it was cut "
            "short: copy it again."
        )
    sentences.append(repeated_texts(facts["records"], facts["texts"], facts["text_bytes"]))
    return [sentence for sentence in sentences if sentence]


def _show_raw_docs(run: Run, receipt: Receipt) -> Shown:
    view = View.load(run.store, receipt.files["view"])
    rejects = [orjson.loads(line) for line in run.store.read_verified(receipt.files["rejects"]).splitlines()]
    rejected = Counter(reject["path"] for reject in rejects)
    files = [
        {
            "file": file.path,
            "bytes": file.size,
            "records": file.lines - file.blank - rejected[file.path],
            "rejected": rejected[file.path],
        }
        for file in view.files[:FILES_SHOWN]
    ]
    first = [
        {
            "file": reject["path"],
            "line": reject.get("line", reject.get("row")),
            "reason": reject["reason"],
            "begins": next(reject[key] for key in _CONTENT if key in reject)[:_SHOWN_CHARACTERS],
        }
        for reject in rejects[:REJECTS_SHOWN]
    ]
    said = {"remarks": Text("\n\n".join(told))} if (told := remarks(receipt.facts)) else {}
    return {"input_files": Table(files), **said, "first_rejects": Table(first)}


RAW_DOCS = _RawDocs(
    name="raw_docs",
    version=6,
    description="The corpus as it was read: every record of the input files, in fragments that their content cuts. "
    "Refused records go to the rejects with path, line and reason.",
    reads=(),
    settings=("input", "input.paths", "chats.template"),
    then=("ids",),
    show=_show_raw_docs,
)


def repeated_texts(records: int, texts: int, size: int) -> str:
    """A warning if distinct texts are far fewer than records, or as short as labels; else "". size: bytes (or
    characters) of the texts of all records."""
    if records < MIN_RECORDS or not texts or (2 * texts > records and 2 * size >= LABEL_BYTES * records):
        return ""
    short = ", as short as labels or ids" if size < LABEL_BYTES * records else ""
    return (
        f"{records:,} records hold {texts:,} distinct texts of {size / records:,.0f} bytes on average{short}. A "
        f"repeated text is trained on at each occurrence. If another field holds the text, set input.text_field."
    )
