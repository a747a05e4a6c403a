"""text: the order for trainers that tokenise text themselves.

The files hold JSON lines, or Parquet rows for Parquet input, in the order of the packed sequences. Fields: `id`,
`record`, `part`, `parts`, `text`. `record` is the position among the accepted records; it distinguishes records with
equal ids. If any record is repeated (`mixing.weights`), all lines also have `repeat`, the number of earlier copies.

A document in several runs has one part per run, numbered from 0 in the document's order. The concatenated parts are its
text. A part ends at the end of a token and cuts no character. A document without a token has no part.
Conversations, prompts and pairs stay whole records, unchanged. An epoch has one line or row per record, at the place of
the record's first token. A record without a token in any sequence has no line.
Known weakness: a tokenizer may split a part's first characters into other tokens than in the whole document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.core.arrow import binary_array
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.view import offsets
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.format import Format, Options
from dagster_divorder.write.exports.rows import WORKERS_FROM_BYTES, Rows
from dagster_divorder.write.permute import Permutation, Shard, passes_files, permute, shard_limits
from dagster_divorder.write.records import LINE_FEED, WriteRecords, stored_records

TOKEN_BYTES = 4
"""Approximate bytes of a token's text, to size files and memory."""
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("record", pa.int64()),
        ("part", pa.int32()),
        ("parts", pa.int32()),
        ("text", pa.large_string()),
    ]
)
REPEAT = pa.field("repeat", pa.int32())


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    write = _write_records if options.whole_records else _write_parts
    return write(rows, folder, options)


def _write_records(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    """Write each record in the rows, once an epoch."""
    view = rows.stored.view
    with_text = np.flatnonzero(rows.text_tokens)
    row = np.arange(len(rows)).repeat(np.diff(rows.indptr))[with_text]
    item = rows.document[with_text]
    epoch = row // max(len(rows.plan), 1)
    first = np.sort(np.unique(epoch * len(view) + item, return_index=True)[1])
    records = view.record_row[item[first]]
    if len(first) < len(with_text):
        rows.stored.progress.note(
            f"text: {len(with_text) - len(first):,} times a record continues in another sequence; it is written once, "
            "whole, where its first tokens are"
        )
    sizes = TOKEN_BYTES * rows.stored.lengths[view.document_row[item[first]]]
    _stage(
        rows,
        folder,
        options,
        Permutation(
            contents=stored_records(rows.stored.files.store, view),
            start=offsets(view.records),
            rows=records,
            sizes=sizes,
            terminator=b"" if options.schema else LINE_FEED,
            through_files=passes_files(sizes),
        ),
        WriteRecords(from_rows=options.schema is not None, schema=options.schema),
        unit="records",
        workers_from=WORKERS_FROM_BYTES,
    )
    return {"records": len(records)}


def _write_parts(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    with_text = np.flatnonzero(rows.text_tokens)
    fragments = list(rows.stored.view.by_fragment(rows.document[with_text]))
    start = np.concatenate([[0], np.cumsum([len(parts) for _, parts, _ in fragments])]).astype(np.int64)
    # The position of each part, in training order, among the parts of all fragments.
    stored_row = np.empty(len(with_text), np.int64)
    for (_, parts, _), first in zip(fragments, start.tolist(), strict=False):
        stored_row[parts] = first + np.arange(len(parts))
    sizes = TOKEN_BYTES * rows.text_tokens[with_text]
    kind = rows.stored.view.kind
    schema = SCHEMA if rows.stored.repeats is None else SCHEMA.insert(2, REPEAT)
    write = WriteRecords(from_rows=False, schema=schema if kind == "parquet" else None)
    permutation = Permutation(
        contents=list(_contents(rows, fragments, with_text, schema)),
        start=start,
        rows=stored_row,
        sizes=sizes,
        terminator=b"" if kind == "parquet" else LINE_FEED,
        through_files=passes_files(sizes),
    )
    # Texts are tokenised again, which takes longer than a worker's start.
    _stage(rows, folder, options, permutation, write, unit="parts", workers_from=0)
    return {"parts": len(with_text)}


def _stage(
    rows: Rows,
    folder: OutputFolder,
    options: Options,
    permutation: Permutation,
    write: WriteRecords,
    *,
    unit: str,
    workers_from: int,
) -> None:
    """Stage the files of permuted parts or records."""
    limits, kind = shard_limits(permutation.sizes, options.shard_bytes), rows.stored.view.kind
    names = [f"train-{options.tag}-{number:05d}-of-{len(limits):05d}.{kind}" for number in range(len(limits))]
    spans = pairwise([0, *limits])
    permute(
        permutation,
        {name: Shard(first, end, write) for name, (first, end) in zip(names, spans, strict=True)},
        folder,
        engine=rows.stored.engine,
        workers_from=workers_from,
        scratch=rows.stored.scratch,
        progress=rows.stored.progress,
        unit=unit,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Returns the parts of a fragment's documents, as JSON lines or (`as_rows`) as rows of the schema; picklable.

    Per part, (n,) each: `inside`, its document's row in the fragment; its tokens [`begin`, `end`); `whole`, whether it
    is the whole document; `columns`, the columns before its text.
    """

    store: Store
    file: str
    directory: Path
    as_rows: bool
    inside: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    whole: np.ndarray
    schema: pa.Schema
    columns: tuple[pa.Array | np.ndarray, ...]

    def __call__(self) -> pa.Array:
        texts = list(self._texts(read_content(self.store, self.file)))
        columns = [*(column.tolist() for column in self.columns), texts]
        if self.as_rows:
            typed = [pa.array(column, kind) for column, kind in zip(columns, self.schema.types, strict=True)]
            return pa.table(typed, self.schema).to_struct_array().combine_chunks()
        lines = (dict(zip(self.schema.names, values, strict=True)) for values in zip(*columns, strict=True))
        return binary_array([orjson.dumps(line) for line in lines])

    def _texts(self, content: pa.ChunkedArray) -> Iterator[str]:
        from dagster_divorder.models.tokenize import token_spans

        of_cut = np.unique(self.inside[~self.whole])
        texts = {row: content[row].as_py() for row in of_cut.tolist()}
        spans = dict(zip(texts, token_spans(self.directory, list(texts.values())), strict=True))
        for row, first, last, whole in zip(
            *(column.tolist() for column in (self.inside, self.begin, self.end, self.whole)), strict=True
        ):
            if whole:
                yield content[row].as_py()
            else:
                text, (starts, ends) = texts[row], spans[row]
                yield text[_character(first, starts, ends, text) : _character(last, starts, ends, text)]


def _contents(rows: Rows, fragments: list[Any], with_text: np.ndarray, schema: pa.Schema) -> Iterator[_Parts]:
    """Yields the `_Parts` of each fragment."""
    (part, parts), stored = _numbers(rows), rows.stored
    for fragment, of_fragment, inside in fragments:
        runs = with_text[of_fragment]
        items, of_plan = rows.document[runs], rows.runs[runs]
        records = stored.record(items)
        repeats = () if stored.repeats is None else (stored.repeats[items],)
        begin, end = rows.start[runs], rows.start[runs] + rows.text_tokens[runs]
        yield _Parts(
            store=stored.files.store,
            file=fragment.file,
            directory=stored.directory,
            as_rows=stored.view.kind == "parquet",
            inside=inside,
            begin=begin,
            end=end,
            whole=(begin == 0) & (end == stored.lengths[stored.view.document_row[items]]),
            schema=schema,
            columns=(
                pa.array(stored.names(records), pa.large_string()),
                records,
                *repeats,
                part[of_plan],
                parts[of_plan],
            ),
        )


def _numbers(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """(part number, number of parts in its document) of each run of the plan, int64 (runs,) each; 0 for runs without
    text."""
    plan = rows.plan
    tokens = rows.stored.lengths[rows.stored.view.document_row[plan.document]]
    with_text = np.flatnonzero(plan.start < tokens)
    order = with_text[np.lexsort((plan.start[with_text], plan.document[with_text]))]
    document = plan.document[order]
    first = np.flatnonzero(np.concatenate([[True], document[1:] != document[:-1]]))
    counts = np.diff(np.append(first, len(order)))
    part, parts = np.zeros((2, len(plan.document)), np.int64)
    part[order] = np.arange(len(order)) - first.repeat(counts)
    parts[order] = counts.repeat(counts)
    return part, parts


def _character(token: int, starts: np.ndarray, ends: np.ndarray, text: str) -> int:
    """The position where the text is cut before a token. Characters between two tokens, and a character that two tokens
    share, belong to the first token."""
    if token == 0:
        return 0
    return len(text) if token == len(starts) else int(max(starts[token], ends[:token].max()))


TEXT = Format(
    name="text",
    write=_write,
    masks=True,
)
