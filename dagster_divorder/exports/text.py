"""text: the order for trainers that tokenise themselves: JSON lines (of Parquet input Parquet rows) of `id`, `record`,
`part`, `parts` and `text`, in the order in which the packed sequences hold them.

`record` is the position among the accepted records, by which copies of one id are told apart; where records are mixed
(`mixing.weights`) each of the times that one is trained on has a number of its own.

A document that lies in several runs comes in as many parts, numbered from 0 in the document's own order; laid end to
end they are its text. A part ends where a token does, and no character is cut. Documents without a token are in none.
Known weakness: a tokenizer may make other tokens of a part's first characters than it made of the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.engine.ahead import ahead
from dagster_divorder.exports.format import Format, Options
from dagster_divorder.exports.rows import Rows
from dagster_divorder.store.arrays import binary_array
from dagster_divorder.store.curated import OutputFolder, shard_limits, write_jsonl, write_parquet
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.gather import gather_rows

TOKEN_BYTES = 4
"""Of text a token, about: files and memory are portioned by it."""
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("record", pa.int64()),
        ("part", pa.int32()),
        ("parts", pa.int32()),
        ("text", pa.large_string()),
    ]
)


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    with_text = np.flatnonzero(rows.own)
    held = list(rows.stored.view.by_fragment(rows.document[with_text]))
    start = np.concatenate([[0], np.cumsum([len(places) for _, places, _ in held])]).astype(np.int64)
    # Of each part, in the order of training, where it lies among those of all fragments laid end to end.
    place = np.empty(len(with_text), np.int64)
    for (_, places, _), first in zip(held, start.tolist(), strict=False):
        place[places] = first + np.arange(len(places))
    sizes = TOKEN_BYTES * rows.own[with_text]
    limits = shard_limits(sizes, options.shard_bytes)
    parquet = rows.stored.view.kind == "parquet"
    contents = ahead(_parts(rows, held, with_text, as_rows=parquet))
    parts = ahead(gather_rows(contents, start, place, sizes, rows.stored.scratch, lambda count: None))
    with contextlib.closing(parts):
        writers = write_parquet(parts, limits, SCHEMA) if parquet else write_jsonl(parts, limits)
        for number, writer in enumerate(writers):
            kind = "parquet" if parquet else "jsonl"
            folder.stage(f"train-{number:05d}-of-{len(limits):05d}.{kind}", writer)
    return {"parts": len(with_text)}


def _parts(
    rows: Rows, held: list[Any], with_text: np.ndarray, *, as_rows: bool
) -> Generator[pa.Array, None, None]:
    """The parts of the documents of each fragment, as JSON lines or as rows of SCHEMA."""
    part, parts = _numbers(rows)
    for fragment, places, inside in held:
        runs = with_text[places]
        texts = _texts(rows, runs, inside, read_content(rows.stored.files.store, fragment.file))
        records, of = rows.document[runs], rows.runs[runs]
        columns = [
            rows.stored.names(records),
            *(a.tolist() for a in (records, part[of], parts[of])),
            list(texts),
        ]
        if as_rows:
            typed = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
            yield pa.table(typed, SCHEMA).to_struct_array().combine_chunks()
        else:
            lines = (dict(zip(SCHEMA.names, values, strict=True)) for values in zip(*columns, strict=True))
            yield binary_array([orjson.dumps(line) for line in lines])


def _numbers(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Of each run of the plan that has text, which part of its document it is, and of how many; int64 (runs,)."""
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


def _texts(rows: Rows, runs: np.ndarray, inside: np.ndarray, content: pa.ChunkedArray) -> Iterator[str]:
    """The texts of some runs of documents of one fragment, whose rows in it are `inside`."""
    from dagster_divorder.models.tokenize import token_spans

    stored = rows.stored
    tokens = stored.lengths[stored.view.document_row[rows.document[runs]]]
    begin, end = rows.start[runs], rows.start[runs] + rows.own[runs]
    cut = (begin > 0) | (end < tokens)
    of_cut = np.unique(inside[cut])
    texts = {row: content[row].as_py() for row in of_cut.tolist()}
    spans = dict(zip(texts, token_spans(stored.directory, list(texts.values())), strict=True))
    for row, first, last, is_cut in zip(
        inside.tolist(), begin.tolist(), end.tolist(), cut.tolist(), strict=True
    ):
        if is_cut:
            text, (starts, ends) = texts[row], spans[row]
            yield text[_character(first, starts, ends, text) : _character(last, starts, ends, text)]
        else:
            yield content[row].as_py()


def _character(token: int, starts: np.ndarray, ends: np.ndarray, text: str) -> int:
    """Where a text is cut before a token: what lies between two tokens goes with the first, and a character that both
    have a part of, too."""
    if token == 0:
        return 0
    return len(text) if token == len(starts) else int(max(starts[token], ends[:token].max()))


TEXT = Format(
    name="text",
    write=_write,
)
