"""Records of fine-tuning data as conversations."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_divorder.chats.document import MarkedText
from dagster_divorder.chats.forms import conversation_of_record, form_of
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
        ({"prompt": "Q", "completion": "A"}, "prompt_completion"),
        ({"prompt": [ASKED], "completion": [SAID]}, "prompt_completion"),
        ({"instruction": "Q", "input": "", "output": "A"}, "alpaca"),
        ({"text": "Q A", "source": "a"}, None),
        ({"messages": "hello"}, None),
    ],
)
def test_the_form_is_seen_by_the_fields(record: dict[str, Any], form: str | None) -> None:
    assert form_of(record) == form
    if form and not isinstance(record.get("prompt"), str):
        chat = conversation_of_record(record, form)  # type: ignore[arg-type]
        assert [(message["role"], message["content"]) for message in chat.messages] == [
            ("user", "Q"),
            ("assistant", "A"),
        ]
        assert (chat.trained, chat.completion) == ((True,), 1)


def test_plain_prompts_are_not_made_chats() -> None:
    chat = conversation_of_record({"prompt": "2 + 2 =", "completion": " 4"}, "prompt_completion")
    assert chat == MarkedText("2 + 2 = 4", ((7, 9),))


def test_parts_tools_system_and_weights() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    chat = conversation_of_record(
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "text", "text": "?"}]},
                {"role": "assistant", "content": None, "tool_calls": [call], "train": False},
                {"role": "tool", "content": "4"},
                {"role": "assistant", "content": "A", "weight": 1.0},
            ],
            "tools": [{"type": "function"}],
        },
        "messages",
    )
    assert [message["content"] for message in chat.messages] == ["Q?", "", "4", "A"]
    assert chat.messages[1]["tool_calls"] == [call]
    assert (chat.trained, chat.tools, chat.completion) == ((False, True), ({"type": "function"},), 3)
    assert all("train" not in message and "weight" not in message for message in chat.messages)
    shared = {
        "system": "S",
        "conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}],
    }
    assert conversation_of_record(shared, "conversations").messages[0] == {"role": "system", "content": "S"}


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
        ([ASKED, {**SAID, "weight": 0.5}], "weight of turn 2 is 0.5"),
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
        conversation_of_record({"messages": turns}, "messages")


def test_an_unknown_speaker_is_named() -> None:
    with pytest.raises(InputError, match="turn 1 is from 'alien'"):
        conversation_of_record({"conversations": [{"from": "alien", "value": "x"}]}, "conversations")
