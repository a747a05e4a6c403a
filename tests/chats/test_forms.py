"""Records of fine-tuning data as conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dagster_divorder.chats.document import Chat, MarkedText, Pair, as_document, conversation_of
from dagster_divorder.chats.forms import Form, conversation_of_record, form_of, refuse_written
from dagster_divorder.errors import InputError

TURNS = [{"role": "user", "content": "It's {Q}?"}, {"role": "assistant", "content": "A"}]
SHARE_GPT = [{"value": "Q", "from": "human"}, {"value": "A", "from": "gpt"}]
AS_TEXT = {
    "Python's": repr(TURNS),
    "NumPy's": "[" + "\n ".join(map(repr, TURNS)) + "]",
    "JSON": json.dumps(TURNS),
    "JSON over lines": json.dumps(TURNS, indent=2),
    "JSON twice": json.dumps(json.dumps(TURNS)),
    "ShareGPT's": repr(SHARE_GPT),
}


@pytest.mark.parametrize("text", AS_TEXT.values(), ids=AS_TEXT)
def test_turns_as_text_are_refused(text: str) -> None:
    for form, held in (
        ("messages", {"messages": text}),
        ("alpaca", {"instruction": text, "output": "A"}),
        ("alpaca", {"instruction": "Q", "output": text}),
        ("prompt_completion", {"prompt": "Q", "completion": text}),
        ("pairs", {"prompt": text, "chosen": "a", "rejected": "b"}),
    ):
        with pytest.raises(InputError, match="list of turns as a string; parse it"):
            conversation_of_record(held, form)


@pytest.mark.parametrize(
    "text",
    [
        '[{"role": "roles/editor", "members": ["a"]}]',
        '[{"from": "Brazil", "to": "Spain", "value": 5}]',
        "[1] the role of content",
        'He wrote [{"role": "user", "content": "Q"}]',
    ],
)
def test_other_json_is_text(text: str) -> None:
    refuse_written(text, "x")


def test_parts_tools_and_calls() -> None:
    call, nothing = (
        {"type": "function", "function": {"name": "f", "arguments": {}}},
        {"role": "tool", "content": []},
    )
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": [], "tool_calls": [call], "train": False},
        nothing,
        {"role": "assistant", "content": "A", "weight": 1.0},
    ]
    chat = conversation_of_record({"messages": turns, "tools": [{"type": "function"}]}, "messages")
    assert isinstance(chat, Chat)
    assert [message["content"] for message in chat.messages] == ["Q?", None, "", "A"]
    assert chat.messages[1]["tool_calls"] == [call]
    assert (chat.trained, chat.tools, chat.completion) == ((False, True), ({"type": "function"},), 3)
    assert all("train" not in message and "weight" not in message for message in chat.messages)


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def said(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def shown(conversation: Any) -> str:
    """A conversation as roles and contents, [trained] ones in brackets and the completion after >; a text with its
    answer in brackets; a pair as both."""
    if isinstance(conversation, Pair):
        return f"{shown(conversation.chosen)} or {shown(conversation.rejected)}"
    if isinstance(conversation, MarkedText):
        ((first, last),) = conversation.spans
        return f"{conversation.text[:first]}[{conversation.text[first:last]}]"
    trained, turns = iter(conversation.trained), []
    for number, message in enumerate(conversation.messages):
        said = f"{message['role'][0]}:{message['content']}"
        said = f"[{said}]" if message["role"] == "assistant" and next(trained) else said
        turns.append(f">{said}" if number == conversation.completion else said)
    return " ".join(turns)


HH = "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: and?\n\nAssistant:"
AB = {"chosen": "a", "rejected": "b"}
Q, A, B = user("Q"), said("a"), said("b")
BEFORE = [Q, said("x"), user("R")]
SHARE = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "a"}]
READ: list[tuple[Form, dict[str, Any], str]] = [
    ("pairs", {"prompt": "Q ", **AB}, "Q [a] or Q [b]"),
    (
        "pairs",
        {"chosen": f"{HH} I say. More", "rejected": f"{HH} I say."},
        f"{HH}[ I say. More] or {HH}[ I say.]",
    ),
    ("pairs", {"prompt": [Q], "chosen": [A], "rejected": [B]}, "u:Q >[a:a] or u:Q >[a:b]"),
    (
        "pairs",
        {"prompt": "Q", "chosen": [Q, A], "rejected": [Q, B], "messages": [Q, A]},
        "u:Q >[a:a] or u:Q >[a:b]",
    ),
    ("pairs", {"chosen": [*BEFORE, A], "rejected": [*BEFORE, B]}, "u:Q a:x u:R >[a:a] or u:Q a:x u:R >[a:b]"),
    ("pairs", {"conversations": SHARE[:1], "chosen": SHARE[1], "rejected": B}, "u:Q >[a:a] or u:Q >[a:b]"),
    ("pairs", {"instruction": "Q", **AB}, "u:Q >[a:a] or u:Q >[a:b]"),
    ("pairs", {"prompt": "Q", "system": "S", **AB}, "s:S u:Q >[a:a] or s:S u:Q >[a:b]"),
    ("prompt_completion", {"prompt": "Q ", "completion": "a", "label": True}, "Q [a]"),
    ("prompt_completion", {"prompt": "Q", "completion": [A]}, "u:Q >[a:a]"),
    ("prompt_completion", {"prompt": BEFORE, "completion": "a"}, "u:Q a:x u:R >[a:a]"),
    ("prompt_completion", {"prompt": "Q", "completion": "a", "tools": [{"type": "function"}]}, "u:Q >[a:a]"),
    ("alpaca", {"instruction": "I", "context": "C", "response": "a", "category": "x"}, "u:I\n\nC >[a:a]"),
    ("alpaca", {"query": "Q", "response": "a"}, "u:Q >[a:a]"),
    ("alpaca", {"instruction": "I", "input": "", "output": "a", "prompt": "### I"}, "u:I >[a:a]"),
    ("alpaca", {"instruction": "I", "output": "a", "system": "S"}, "s:S u:I >[a:a]"),
    ("messages", {"system": [{"text": "S"}], "messages": [Q, said([{"text": "a"}])]}, "s:S u:Q >[a:a]"),
    ("messages", {"messages": [Q, A], "tools": '[{"name": "f"}]'}, "u:Q >[a:a]"),
    ("messages", {"messages": [{"role": None, "from": "human", "value": "Q"}, SHARE[1]]}, "u:Q >[a:a]"),
    ("messages", {"messages": [Q, {**A, "train": False}, Q, {**B, "weight": 1.0}]}, "u:Q a:a u:Q >[a:b]"),
    (
        "conversations",
        {"mask": "User", "system": "S", "conversations": [{"from": "User", "value": "Q"}, SHARE[1]]},
        "s:S u:Q >[a:a]",
    ),
]


@pytest.mark.parametrize(("form", "record", "expected"), READ)
def test_records_that_people_have_are_read(form: Form, record: dict[str, Any], expected: str) -> None:
    assert form_of(record) == form
    conversation = conversation_of_record(record, form)
    assert shown(conversation) == expected
    assert conversation_of(as_document(conversation).decode()) == conversation


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Q", "choices": ["a", "b"], "answer": "a"},
        {"question": "Q", "context": {"title": "t"}, "answer": "a"},
        {"question": "Q", "answer": "a", "response": "b"},
        {"question": "Q", "query": "R", "answer": "a"},
        {"question": "Q", "answers": {"text": ["a"]}},
        {"input": "Q", "output": "a"},
        {"text": "Q A", "source": "a"},
        {"messages": "hello"},
    ],
)
def test_what_several_readings_fit_has_no_form(record: dict[str, Any]) -> None:
    assert form_of(record) is None


def of_turns(turns: Any, **others: Any) -> dict[str, Any]:
    return {"messages": turns, **others}


REFUSED: list[tuple[Form, dict[str, Any], str]] = [
    ("messages", of_turns([]), "messages has no turn"),
    ("messages", of_turns("hello"), "messages is not a list of turns"),
    ("messages", of_turns(["Q"]), "turn 1 of messages is not an object"),
    ("messages", of_turns([A]), "no question comes before it"),
    ("messages", of_turns([Q, {**A, "weight": 0}]), "no turn is trained on"),
    ("messages", of_turns([Q, {**A, "weight": -1}]), "weight of turn 2 is -1"),
    ("messages", of_turns([Q, {**A, "weight": float("nan")}]), "weight of turn 2 is nan"),
    ("messages", of_turns([Q, {**A, "content": "  "}]), "turn 2 \\(assistant\\) is empty"),
    ("messages", of_turns([{**Q, "content": ""}, A]), "turn 1 \\(user\\) is empty"),
    ("messages", of_turns([Q, {**A, "content": {"text": "A"}}]), "the content of turn 2 is neither"),
    ("messages", of_turns([Q, {**A, "content": [{"type": "image"}]}]), "neither a string nor parts of text"),
    ("messages", of_turns([Q, {**A, "tool_calls": 1}]), "tool_calls of turn 2 is not a list"),
    ("messages", of_turns([Q, {**A, "function_call": {"name": "f"}}]), "turn 2 has function_call"),
    ("messages", of_turns([Q, {**A, "train_detail": [{}]}]), "has train_detail"),
    ("messages", of_turns([{"role": "narrator", "content": "x"}, A]), "has the role 'narrator'"),
    ("messages", of_turns([Q, A], tools="{"), "tools is a string that is not JSON"),
    ("messages", of_turns([Q, A], tools={}, mask="assistant"), "mask is 'assistant'"),
    ("messages", of_turns([Q, A], chat_template_kwargs={"a": 1}), "chat_template_kwargs of a record is not"),
    ("messages", of_turns([Q, A], system={"text": "S"}), "the system prompt is dict"),
    ("alpaca", of_turns([Q, A]), "no answer: expected a string in exactly one of output, response, answer"),
    ("pairs", {"text": "a"}, "no field 'chosen'"),
    ("prompt_completion", {"prompt": "Q", "completion": " "}, "the completion is empty"),
    (
        "prompt_completion",
        {"prompt": [Q, said("It")], "completion": [said(" is")]},
        "the beginning of the answer",
    ),
    ("alpaca", {"instruction": "Q", "output": "a", "history": [["x", "y"]]}, "history is not read"),
    ("pairs", {"prompt": "Q", "chosen": "a", "rejected": "a"}, "chosen and rejected are the same"),
    ("pairs", {"prompt": "Q", "chosen": " ", "rejected": "a"}, "chosen is empty"),
    ("pairs", {"prompt": "Q", "chosen": "Q", "rejected": "Q a"}, "chosen is only the prompt"),
    ("pairs", {"chosen": "Yes it is", "rejected": "Yes"}, "has no field prompt, and no header of an answer"),
    ("pairs", {"chosen": [Q], "rejected": [Q, A]}, "chosen is only the beginning"),
    ("pairs", {"chosen": [Q, A], "rejected": [user("R"), B]}, "no common prompt"),
    ("pairs", {"prompt": "Q", "chosen": '[{"role": "user"}]', "rejected": "b"}, "list of turns as a string"),
    ("pairs", {"prompt": "Z", "chosen": [Q, A], "rejected": [Q, B]}, "do not begin with the prompt"),
]


@pytest.mark.parametrize(("form", "record", "reason"), REFUSED, ids=[reason for *_, reason in REFUSED])
def test_what_cannot_be_used_says_why(form: Form, record: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        conversation_of_record(record, form)
