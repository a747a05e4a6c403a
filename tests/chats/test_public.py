"""Records that people report in trackers of trainers, with what becomes of them (docs/decisions/chats.md)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from dagster_divorder.chats.forms import form_of
from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.corpus.records import parse_lines
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.models.chat_templates import BOOTSTRAP, chat_template
from dagster_divorder.models.chat_tokens import as_read

END = "<|endoftext|>"
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def said(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def turns(*pairs: str) -> list[dict[str, str]]:
    return [{"from": speaker, "value": value} for speaker, value in zip(pairs[::2], pairs[1::2], strict=True)]


def read(record: dict[str, Any], template: ChatTemplate | None = None) -> tuple[str, list[str]]:
    """(the text of a record, its trained parts); ("", the reason) where it is refused."""
    template, form = template or chat_template(BOOTSTRAP, None), form_of(record)
    assert form
    (document,) = parse_lines([orjson.dumps(record)], Shape(form=form, chat_template=template))
    if isinstance(document, str):
        return "", [document]
    marked = as_read(document.decode(), template, "assistant")
    return marked.text, [marked.text[first:last] for first, last in marked.spans]


@pytest.mark.parametrize(
    ("record", "trained"),
    [
        ({"messages": [user("Q"), said("A"), user("more?")]}, ["A"]),
        ({"messages": [user("Q"), said("A"), said("B")]}, ["A", "B"]),
        ({"messages": [user("Q", name=None, tool_calls=None), said("A", tool_calls=[])], "tools": None}, ["A"]),
        ({"messages": [user("Q\r\n"), said("A\r\nB\r\n")]}, ["A\r\nB\r\n"]),
        ({"messages": [user("👩‍👩‍👧"), said("naïve 👩‍👩‍👧")]}, ["naïve 👩‍👩‍👧"]),
        ({"conversations": turns("system", "S", "Human", "Q", "GPT", "A")}, ["A"]),
        ({"instruction": "", "input": "Q", "output": "A"}, ["A"]),
    ],
)  # fmt: skip
def test_answers_are_trained_on_and_so_is_their_end(record: dict[str, Any], trained: list[str]) -> None:
    text, parts = read(record)
    assert parts == [part + END for part in trained]
    assert "None" not in text


@pytest.mark.parametrize("field", ["reasoning_content", "thinking"])
def test_reasoning_that_a_template_does_not_read_is_refused(field: str) -> None:
    text, (reason,) = read({"messages": [user("Q"), said("A", **{field: "why"})]})
    assert (text, f"does not read {field}" in reason) == ("", True)


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": [user("Q"), said("A")], "tools": [TOOL]}, "does not write the record's tool 'f'"),
        ({"messages": [user("Q"), said("x", tool_calls=[CALL])]}, ""),
    ],
)
def test_a_template_that_leaves_out_tools_refuses_the_record(
    record: dict[str, Any], reason: str, marked: bool
) -> None:
    content = CHATML
    if marked:
        content = CHATML.replace(
            "message['content'] + '<|im_end|>\n' }}",
            "'' }}{% generation %}{{ message['content'] + '<|im_end|>\n' }}{% endgeneration %}",
        )
    template = ChatTemplate(content, {"eos_token": "<|im_end|>"}, ["<|im_start|>", "<|im_end|>"])
    text, (said_reason,) = read(record, template)
    assert text == ""
    assert "the chat template" in said_reason
    assert reason in said_reason
