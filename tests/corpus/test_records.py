"""Records: texts, refusals with reasons, and ids of rows; samples of them by rising hash of their texts."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.chats.document import Conversation, conversation_of
from dagster_divorder.corpus.records import MARKED, parse_lines, parse_rows
from dagster_divorder.corpus.shapes import DEFAULT_SHAPE, Shape
from dagster_divorder.corpus.stored import records_by_text
from dagster_divorder.errors import InputError

REFUSED = {
    b"{": "not valid JSON",
    b'{"text": "\xff"}': "not valid JSON",
    b'{"text": "\\ud800"}': "not valid JSON",
    b'{"text": NaN}': "field 'text' is a JSON null, expected a string",
    b'{"text": "NaN", "n": }': "not valid JSON",
    b'{"text": "a", "n": NaN': "not valid JSON",
    b'{"text": "a"} {"text": "b"}': "not valid JSON",
    b'{"text": "a"}\r{"text": "b"}': "CR line ends, expected LF or CRLF",
    b'{"text": "a\x00b"}': "not valid JSON",
    b'{"text": "a", "score": 1e400}': "not valid JSON: number is infinity",
    b'\xef\xbb\xbf{"text": "a"}': "not valid JSON",
    b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "not valid JSON: depth limit",
    '{"text": "a"}'.encode("utf-16-le"): "not valid JSON",
    b'{"text": "a \xed\xa0\x80 b"}': "not valid JSON",
    b'{"text": ["a"]}': "field 'text' is a JSON array, expected a string",
    b"[1]": "a JSON array, expected an object",
    b"3": "a JSON number, expected an object",
    b'{"body": "x"}': "no field 'text'",
    b'{"text": null}': "field 'text' is a JSON null, expected a string",
    b'{"text": {"a": 1}}': "field 'text' is a JSON object, expected a string",
    b'{"text": ""}': "empty text",
}


@pytest.mark.parametrize(("line", "reason"), REFUSED.items(), ids=range(len(REFUSED)))
def test_refused_lines_say_why(line: bytes, reason: str) -> None:
    before, said, after = parse_lines([b'{"text": "before"}', line, b'{"text": "after"}'], DEFAULT_SHAPE)
    assert (before, after) == (b"before", b"after")
    assert isinstance(said, str) and said.startswith(reason)


def test_a_text_inside_an_object_is_named_by_the_way_to_it() -> None:
    record, shape = {"doc": {"text": "a"}}, Shape(text_field="doc.text")
    assert parse_lines([orjson.dumps(record)], shape) == [b"a"]
    assert parse_rows(pa.RecordBatch.from_pylist([record]), shape) == [b"a"]


def test_numbers_that_are_no_json_cost_no_record() -> None:
    """As Python's json writes them; what strings hold is text."""
    records = [
        {"text": 'a NaN, "-Infinity" \\" NaN', "n": value} for value in (math.nan, math.inf, -math.inf)
    ]
    lines = [json.dumps(record).encode() for record in records]
    assert parse_lines(lines, DEFAULT_SHAPE) == [str(record["text"]).encode() for record in records]


@example("\x1ea")
@given(st.text(min_size=1))
def test_any_text_survives_but_one_with_the_mark_of_conversations(text: str) -> None:
    try:
        line = orjson.dumps({"text": text})
    except orjson.JSONEncodeError:  # lone surrogates are no text
        return
    assert parse_lines([line], DEFAULT_SHAPE) == [MARKED if text.startswith("\x1e") else text.encode()]


def conversation(document: bytes | str) -> Conversation:
    assert isinstance(document, bytes)
    return conversation_of(document.decode())


CHATS = [
    {
        "messages": [
            {"role": "user", "content": "Q"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": {"x": "1"}}}],
            },
            {"role": "tool", "content": "4"},
            {"role": "assistant", "content": "a"},
        ],
        "tools": [{"name": "f", "parameters": {"x": {"type": "string"}}}],
    },
    {
        "messages": [{"role": "user", "content": "R"}, {"role": "assistant", "content": "b"}],
        "tools": [{"name": "g", "parameters": {"y": {"type": "string"}}}],
    },
    {"messages": [{"role": "user", "content": "S"}, {"role": "assistant", "content": "c"}]},
]


@pytest.mark.parametrize("kind", ["list", "large_list"])
def test_rows_hold_the_same_conversations_as_lines(kind: str) -> None:
    rows = pa.RecordBatch.from_pylist([{"messages": None, "tools": None, "when": None}, *CHATS]).slice(1)
    messages = rows["messages"]
    if kind == "large_list":
        messages = messages.cast(pa.large_list(messages.type.value_type))
    rows = rows.set_column(0, "messages", messages)
    documents = parse_rows(rows, Shape(form="messages"))
    lines = parse_lines([orjson.dumps(chat) for chat in CHATS], Shape(form="messages"))
    # Columns of a struct have an order of their own.
    assert list(map(conversation, documents)) == list(map(conversation, lines))


def test_maps_in_rows_are_objects() -> None:
    """Whatever holds the map: a struct in a list, a dictionary."""
    chat = CHATS[0]
    text_map = pa.map_(pa.string(), pa.string())
    function = pa.struct([("name", pa.string()), ("arguments", text_map)])
    turn = pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("tool_calls", pa.list_(pa.struct([("function", function)]))),
        ]
    )
    tool = pa.struct([("name", pa.string()), ("parameters", pa.map_(pa.string(), text_map))])
    rows = pa.RecordBatch.from_pylist(
        [chat], pa.schema([("messages", pa.list_(turn)), ("tools", pa.large_list(tool))])
    )
    (line,) = parse_lines([orjson.dumps(chat)], Shape(form="messages"))
    (row,) = parse_rows(rows, Shape(form="messages"))
    assert conversation(row) == conversation(line)


def test_rows_of_prompts_are_refused_one_by_one() -> None:
    rows = pa.record_batch(
        {
            "prompt": pa.array(["a", None, "d"]).dictionary_encode(),
            "completion": pa.array(["x", "z", ""]),
            # Python has no such year.
            "year": pa.array([10**18, 0, 0], pa.int64()).view(pa.timestamp("s")),
        }
    )
    document, *reasons = parse_rows(rows, Shape(form="prompt_completion"))
    assert isinstance(document, bytes)
    assert reasons == ["no field 'prompt'", "the completion is empty"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"\xff"], pa.binary()).view(pa.string()),
        pa.array([10**15], pa.int64()).view(pa.time64("us")),
    ],
)
def test_a_column_of_values_that_its_type_does_not_allow_is_refused(column: pa.Array) -> None:
    for at in ("text", "nested"):
        rows = pa.record_batch({"text": ["a"], "nested": pa.array([1])})
        values = column if at == "text" else pa.StructArray.from_arrays([column], ["x"])
        rows = rows.set_column(rows.schema.get_field_index(at), at, values)
        with pytest.raises(InputError, match=f"column '{at}' holds values that its type .* does not allow"):
            parse_rows(rows, DEFAULT_SHAPE)


# Few first halves, so that some are equal, and few ids, so that texts repeat.
ids = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2) | st.just(2**64 - 1)), min_size=1, max_size=60)


@given(ids=ids, left_out=st.sets(st.integers(0, 59)), most=st.integers(0, 31))
def test_a_sample_is_the_first_record_of_each_text_by_rising_hash(ids, left_out, most):
    words = np.array(ids, np.uint64)
    first = {}
    for row in range(len(ids)):
        if row not in left_out:
            first.setdefault(ids[row], row)
    view = SimpleNamespace(fragments=(), __len__=lambda: len(ids))
    records = SimpleNamespace(fragments=SimpleNamespace(column=lambda fragments, name: words))
    flags = np.isin(np.arange(len(words)), list(left_out))
    by_id = [first[each] for each in sorted(first)]
    assert_array_equal(records_by_text(records, view, without=flags), by_id)
    assert_array_equal(records_by_text(records, view, most, flags), by_id[:most])
