"""raw_docs: the input's records and documents, in fragments, and the view of them. Every other stage reads it.

Of a plain file that has grown only the addition is read (corpus/file_states.py); all else is read and hashed. Only
records never seen under this text field are parsed and stored.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.corpus.corpus import Corpus
from dagster_divorder.corpus.file_states import FileState, load_file_states, save_file_states
from dagster_divorder.corpus.find import Found, as_one_kind, find_inputs
from dagster_divorder.corpus.ingest import Before, Ingest, Survey
from dagster_divorder.corpus.inputs import Kind, LongRecord
from dagster_divorder.corpus.looks import repeated_texts
from dagster_divorder.corpus.multiset import Multiset
from dagster_divorder.corpus.parquet_rows import check_columns
from dagster_divorder.corpus.records import with_id
from dagster_divorder.corpus.shapes import Shape, shapes_of
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import DamagedFileError
from dagster_divorder.pipeline.changes import what_changed
from dagster_divorder.pipeline.merge import merge_small
from dagster_divorder.pipeline.run import Corpus as RunCorpus
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import (
    Check,
    Decision,
    Finding,
    Shown,
    Stage,
    Table,
    content_hash,
    counts,
)
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Inputs
from dagster_divorder.stages.corpus.chat_template import template_of, template_setting
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import index_column, records_folder
from dagster_divorder.store.state import Receipt, Result, keep_result, load_receipt
from dagster_divorder.store.view import View

REJECTS_SHOWN, FILES_SHOWN, FOLDERS_SHOWN = 10, 50, 3
_SHOWN_CHARACTERS = 120
_CONTENT = ("raw", "raw_base64", "begins")


@dataclass(frozen=True, kw_only=True, eq=False)
class _RawDocs(Stage):
    """The one stage that is of no kind: all others are decided on its result, so a run reads the input at once. Only a
    plan surveys it."""

    def decide(self, run: Run) -> Decision:
        if not run.planning:
            return Decision(scope="new", documents=0, why="")
        survey, facts, key = survey_input(run)
        distinct = {"documents": survey.documents, "records": survey.distinct_records}
        run.foresee(RunCorpus(survey.version, survey.records, distinct, survey.stored, lambda: survey.ids))
        last = load_receipt(run.store, self.name)
        files = last.files if last and last.version == survey.version else {}
        receipt = self.receipt(run, key, survey.version, files=files, facts=facts)
        new = survey.new_documents
        scope = "nothing" if not new else "all" if new == survey.documents else "new"
        if scope == "all":
            why = what_changed(self, run, "new records")
        elif scope == "new":
            why = "new records"
        else:
            why = "records of known texts" if survey.new_records else ""
        return Decision(scope=scope, documents=new, why=why, receipt=receipt)  # type: ignore[arg-type]

    def make(self, run: Run, decision: Decision) -> Receipt:
        settings = run.settings.input
        merge_small(run.store, run.graph)
        kind, inputs = _inputs(run)
        key = records_key(run, kind)
        before = _before(run.store, key, run.settings)
        with (
            run.store.scratch() as scratch,
            Ingest(run.store, kind, key, before, scratch=scratch) as ingest,
            run.progress("reading records", None, "records") as advance,
        ):
            corpus = Corpus(inputs, settings.max_record_bytes, ingest.known)
            schema = read_into(ingest, corpus, advance, run)
            result = ingest.finish(settings.max_reject_share)
        survey = result.survey
        files = {
            "view": result.view.save(run.store, survey.version),
            "rejects": result.rejects,
            "readings": save_file_states(run.store, result.states),
        }
        if schema is not None and kind == "parquet":
            data = schema.serialize().to_pybytes()
            files["schema"] = run.store.put_hashed("schemas", "schema", data, "arrow")
        facts = _raw_docs_facts(run, kind, corpus, survey) | {"text_bytes": result.text_bytes}
        figures = {
            **counts(survey.documents, survey.new_documents),
            "records": survey.records,
            "new_records": survey.new_records,
            "rejected_records": survey.rejected,
            "partial_lines": len(survey.unfinished),
            "file_bytes": corpus.bytes,
            "text_bytes": result.text_bytes,
            "kind": kind,
            "recognised_by": corpus.way,
            "recognised_bytes": corpus.kept_bytes,
        }
        for remark in remarks(facts):
            run.progress.note(remark)
        keep_result(run.store, self.name, Result(key=survey.version, version=survey.version, files=files))
        return self.receipt(run, key, survey.version, files=files, facts=facts, figures=figures)


def _inputs(run: Run) -> tuple[Kind, list[Found]]:
    """The inputs, with the chat template that their conversations must be accepted by."""
    kind, inputs = found_inputs(run)
    template = template_of(run)
    if template is None:
        return kind, inputs
    return kind, [replace(each, shape=replace(each.shape, chat_template=template)) for each in inputs]


def found_inputs(run: Run) -> tuple[Kind, list[Found]]:
    """The inputs, and the kind in which their records are stored."""

    def states() -> list[FileState]:
        # The run makes a damaged file again.
        with contextlib.suppress(DamagedFileError):
            receipt = load_receipt(run.store, "raw_docs")
            if receipt and "readings" in receipt.files:
                return load_file_states(run.store, receipt.files["readings"])
        return []

    return as_one_kind(find_inputs(run.settings), states)


def records_key(run: Run, kind: str) -> str:
    """Key of record fragments: not the paths, so that a renamed or added file changes no record."""
    given, template = run.settings.input, template_of(run)
    # Records of several inputs are stored with their shapes (corpus/shapes.py).
    reading: Any = ["several"] if isinstance(given, Inputs) else given.text_field
    if run.settings.masked:
        # Another template may refuse other records. 2: the version of what chats.forms makes of a record.
        reading = [reading, given.form, given.template, template.fingerprint if template else None, 2]
    return content_hash("raw_docs", RAW_DOCS.version, kind, reading)


def survey_input(run: Run) -> tuple[Survey, dict[str, Any], str]:
    """What a run would find, the facts of its receipt, and its key. Stores nothing.

    Raises:
        InputError: the input cannot be read, or too much of it would be refused.
    """
    settings = run.settings
    kind, inputs = _inputs(run)
    key = records_key(run, kind)
    before = _before(run.store, key, settings)
    with Ingest(run.store, kind, key, before, dry=True) as ingest:
        corpus = Corpus(inputs, settings.input.max_record_bytes, ingest.known)
        read_into(ingest, corpus, lambda records: None, run)
        survey = ingest.survey(settings.input.max_reject_share)
    return survey, _raw_docs_facts(run, kind, corpus, survey), key


def _raw_docs_facts(run: Run, kind: Kind, corpus: Corpus, survey: Survey) -> dict[str, Any]:
    others = Counter[str]()
    for input_found in corpus.inputs:
        others.update(input_found.others)
    several = isinstance(run.settings.input, Inputs)
    return {
        "files": [str(path) for path in corpus.files],
        **({"files_of_inputs": [len(each.files) for each in corpus.inputs]} if several else {}),
        "file_bytes": corpus.bytes,
        "partial_lines": len(survey.unfinished),
        "unfinished": [list(line[:3]) for line in survey.unfinished[:FILES_SHOWN]],
        "kind": kind,
        "records": survey.records,
        "new_records": survey.new_records,
        "documents": survey.documents,
        "rejected_records": survey.rejected,
        "record_bytes": survey.multiset.bytes,
        "record_hashes": f"{survey.multiset.hashes:032x}",
        "max_record_bytes": run.settings.input.max_record_bytes,
        "id_field": run.settings.input.id_field,
        "skipped_folders": sorted({folder for each in corpus.inputs for folder in each.skipped}),
        "other_files": dict(sorted(others.items())),
    }


def read_into(ingest: Ingest, corpus: Corpus, advance: Advance, run: Run) -> pa.Schema | None:
    """Read the input; the columns of its first Parquet file.

    Raises:
        InputError: a column is of a type that cannot be read or, as the settings ask, written.
    """
    schema: pa.Schema | None = None
    checked: Shape | None = None

    for file in corpus:
        if file.shape != checked and file.schema is not None:
            schema, checked = schema or file.schema, file.shape
            as_json = file.shape.as_lines or run.settings.output.format == "jsonl"
            check_columns(file.schema, as_json=as_json)
        ingest.begin(file)
        if file.kept:
            advance(file.kept.last - file.kept.first)
        for block in file.blocks():
            ingest.add(block)
            advance(1 if isinstance(block, LongRecord) else len(block.ids))
        ingest.end(file.end())
    return schema


def _before(store: Store, key: str, settings: Settings) -> Before | None:
    """View, rejects and file states of the last run; None where its key or `max_record_bytes` was another."""
    receipt = load_receipt(store, "raw_docs")
    if receipt is None or receipt.key != key or "readings" not in receipt.files:
        return None
    if receipt.facts["max_record_bytes"] != settings.input.max_record_bytes:
        return None
    states = load_file_states(store, receipt.files["readings"])
    return Before(View.load(store, receipt.files["view"]), receipt.files["rejects"], states)


def load_multiset(run: Run) -> Multiset:
    """The accepted records, as they were read."""
    facts = run.receipt("raw_docs").facts
    return Multiset(facts["records"], int(facts["record_hashes"], 16), facts["record_bytes"])


def record_index(run: Run, column: str) -> np.ndarray:
    """The `id`, uint64 (rows, 2), or the `size` in bytes, int64 (rows,), of all record rows of the view."""
    folder = records_folder(run.receipt("raw_docs").key)
    return index_column(run.store, folder, run.view.records, column)


def first_rejects(run: Run, receipt: Receipt) -> list[dict[str, Any]]:
    """The first REJECTS_SHOWN rejects of a receipt: `file`, `line` (or row), `reason`, how it `begins`; with
    `input.id_field` also its `id`, None where it cannot be read."""
    field, named = run.settings.input.id_field, id_giver(run, receipt)
    with run.store.open_file(receipt.files["rejects"]) as file:
        rejects = [orjson.loads(named(line)) for line in islice(file, REJECTS_SHOWN)]
    return [
        {
            **({"id": reject.get("id")} if field else {}),
            "file": reject["path"],
            "line": reject.get("line", reject.get("row")),
            "reason": reject["reason"],
            "begins": next(reject[key] for key in _CONTENT if key in reject)[:_SHOWN_CHARACTERS],
        }
        for reject in rejects
    ]


def id_giver(run: Run, receipt: Receipt) -> Callable[[bytes], bytes]:
    """Adds the record's own id to a line of the rejects of a receipt (`corpus.records.with_id`), from the `id_field` of
    its input."""
    ids = [block.id_field for block in run.settings.input.each]
    if not any(ids):
        return lambda line: line
    counts = receipt.facts.get("files_of_inputs", [len(receipt.facts["files"])])
    fields = np.repeat(np.array(ids, object), counts).tolist()
    field_of = dict(zip(receipt.facts["files"], fields, strict=True))
    return lambda line: with_id(line, field_of)


def input_files(store: Store, receipt: Receipt) -> list[dict[str, Any]]:
    """The first FILES_SHOWN files of a receipt: `file`, `bytes` of whole records, accepted `records`, `rejected` ones.
    Numbers are None where the file has no state, such as an empty one."""
    states = {state.path: state for state in load_file_states(store, receipt.files["readings"])}
    return [
        {
            "file": path,
            "bytes": state.size if state else None,
            "records": state.last - state.first if state else None,
            "rejected": state.refused if state else None,
        }
        for path in receipt.facts["files"][:FILES_SHOWN]
        for state in [states.get(path)]
    ]


def remarks(facts: Mapping[str, Any]) -> list[str]:
    """Sentences on files and lines that are not read, and on texts that are few or very short."""
    others, skipped = facts["other_files"], facts["skipped_folders"]
    sentences = []
    if others:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in others.items())
        sentences.append(f"Not read, as they are neither JSONL nor Parquet by their names: {kinds}.")
    if skipped:
        more = f" and {len(skipped) - FOLDERS_SHOWN:,} more" if len(skipped) > FOLDERS_SHOWN else ""
        sentences.append(f"Not read, as DivOrder wrote them: {', '.join(skipped[:FOLDERS_SHOWN])}{more}.")
    if unfinished := facts["unfinished"]:
        (path, line, byte), count = unfinished[0], facts["partial_lines"]
        more = f" So do {count - 1:,} more files." if count > 1 else ""
        sentences.append(
            f"Not read: line {line:,} of {path}, from byte {byte:,} on, as the file ends in the middle of its JSON, "
            f"without a newline.{more} It is read once its newline has come; if nothing writes to the file, it was cut "
            "short: copy it again."
        )
    sentences.append(repeated_texts(facts["records"], facts["documents"], facts["text_bytes"]))
    return [sentence for sentence in sentences if sentence]


def _show_raw_docs(run: Run, receipt: Receipt) -> Shown:
    facts = receipt.facts
    return {
        "input_files": Table(input_files(run.store, receipt)),
        "other_files": Table(
            [{"name": name, "files": count} for name, count in facts["other_files"].items()]
        ),
        "skipped_folders": Table([{"folder": folder} for folder in facts["skipped_folders"]]),
        "first_rejects": Table(first_rejects(run, receipt)),
        "unfinished_lines": Table(
            [dict(zip(("file", "line", "byte"), line, strict=True)) for line in facts["unfinished"]]
        ),
    }


def _rejects_below_limit(run: Run) -> Finding:
    """A run above the limit fails before it stores anything; this check also sees a limit that was lowered since."""
    raw_docs = run.receipt("raw_docs")
    facts = raw_docs.facts
    rejected, limit = facts["rejected_records"], run.settings.input.max_reject_share
    read = rejected + facts["records"]
    share = rejected / read
    return Finding(
        passed=share <= limit,
        text=f"{rejected:,} of {read:,} records were refused ({share:.2%}); input.max_reject_share allows {limit:.2%}. "
        f"{' '.join(remarks(facts))}".rstrip(),
        remedy=f"correct the records that the table names (or {shapes_of(run.settings)[0].setting}) and materialise "
        f"raw_docs again, or raise input.max_reject_share above {share:.4g}",
        figures={
            "rejected_records": rejected,
            "share": share,
            "first_rejects": first_rejects(run, raw_docs),
        },
    )


RAW_DOCS = _RawDocs(
    name="raw_docs",
    version=4,
    group="corpus",
    kinds={"parquet", "json"},
    description="The corpus as it was read: every record of the input files, stored once. Records with the same text "
    "share a document. Refused records go to the rejects with path, line and reason.",
    reads=(),
    settings=lambda settings: {
        "paths": settings.input.paths,
        "text_field": settings.input.text_field,
        "max_record_bytes": settings.input.max_record_bytes,
        **(
            {"formats": [[block.form, block.template] for block in settings.input.each]}
            if settings.masked
            else {}
        ),
        **template_setting(settings),
        **(
            {"shapes": [shape.key for shape in shapes_of(settings)]}
            if isinstance(settings.input, Inputs)
            else {}
        ),
    },
    then=("ids",),
    show=_show_raw_docs,
    checks=(
        Check(
            name="rejects_below_limit",
            description="Few records are refused (not JSON, no text, too long, ...): no more than "
            "input.max_reject_share allows. A model is not trained on those.",
            check=_rejects_below_limit,
        ),
    ),
)
