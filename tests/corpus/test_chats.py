"""Records of fine-tuning data as conversations."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_divorder.corpus.chats import chat_of, form_of
from dagster_divorder.errors import InputError

ASKED, SAID = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}


@pytest.mark.parametrize(
    ("record", "form"),
    [
        ({"messages": [ASKED, SAID], "source": "a"}, "messages"),
        (
            {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
            "conversations",
        ),
        ({"prompt": "Q", "completion": "A"}, "prompt"),
        ({"prompt": [ASKED], "completion": [SAID]}, "prompt"),
        ({"instruction": "Q", "input": "", "output": "A"}, "alpaca"),
        ({"text": "Q A", "source": "a"}, None),
        ({"messages": "hello"}, None),
    ],
)
def test_the_form_is_seen_by_the_fields(record: dict[str, Any], form: str | None) -> None:
    assert form_of(record) == form
    if form and not isinstance(record.get("prompt"), str):
        chat = chat_of(record, form)  # type: ignore[arg-type]
        assert [(message["role"], message["content"]) for message in chat.messages] == [
            ("user", "Q"),
            ("assistant", "A"),
        ]
        assert (chat.weights, chat.completion) == ((1.0,), 1)


def test_plain_prompts_are_not_made_chats() -> None:
    chat = chat_of({"prompt": "2 + 2 =", "completion": " 4"}, "prompt")
    assert (chat.messages, chat.plain, chat.completion) == ((), "2 + 2 = 4", 7)


def test_parts_tools_system_and_weights() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    chat = chat_of(
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "text", "text": "?"}]},
                {"role": "assistant", "content": None, "tool_calls": [call], "train": False},
                {"role": "tool", "content": "4"},
                {"role": "assistant", "content": "A", "weight": 0.5},
            ],
            "tools": [{"type": "function"}],
        },
        "messages",
    )
    assert [message["content"] for message in chat.messages] == ["Q?", "", "4", "A"]
    assert chat.messages[1]["tool_calls"] == [call]
    assert (chat.weights, chat.tools, chat.completion) == ((0.0, 0.5), ({"type": "function"},), 3)
    assert all("train" not in message and "weight" not in message for message in chat.messages)
    shared = {
        "system": "S",
        "conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}],
    }
    assert chat_of(shared, "conversations").messages[0] == {"role": "system", "content": "S"}


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([], "messages has no turn"),
        ('[{"role": "user"}]', "messages is a string"),
        (["Q"], "turn 1 of messages is no object"),
        ([SAID], "nobody has asked before"),
        ([ASKED], "no turn is trained on"),
        ([ASKED, {**SAID, "weight": 0}], "no turn is trained on"),
        ([ASKED, {**SAID, "weight": -1}], "weight of turn 2 is -1"),
        ([ASKED, {**SAID, "weight": float("nan")}], "weight of turn 2 is nan"),
        ([ASKED, {**SAID, "content": "  "}], "turn 2 \\(assistant\\) is empty"),
        ([{**ASKED, "content": ""}, SAID], "turn 1 \\(user\\) is empty"),
        ([ASKED, {**SAID, "content": None}], "the content of turn 2 is NoneType"),
        ([ASKED, {**SAID, "content": {"text": "A"}}], "the content of turn 2 is dict"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}, SAID], "parts of the type image"),
        ([{"role": "narrator", "content": "x"}, SAID], "has the role 'narrator'"),
    ],
)
def test_what_cannot_be_used_says_why(turns: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        chat_of({"messages": turns}, "messages")


def test_an_unknown_speaker_is_named() -> None:
    with pytest.raises(InputError, match="turn 1 is from 'alien'"):
        chat_of({"conversations": [{"from": "alien", "value": "x"}]}, "conversations")
