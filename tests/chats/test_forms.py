"""Records of fine-tuning data as conversations."""

from __future__ import annotations

import ast
import json
from typing import Any

import orjson
import pytest

from dagster_divorder.chats.document import Chat, MarkedText, Pair, as_document, conversation_of
from dagster_divorder.chats.forms import Form, conversation_of_record, form_of, refuse_written
from dagster_divorder.errors import InputError

ASKED, SAID = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}


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
def test_turns_as_text_are_refused_with_the_line_that_parses_them(text: str) -> None:
    with pytest.raises(InputError, match="x is a list of turns as a string; parse it") as refused:
        refuse_written(text, "x")
    names: dict[str, Any] = {"value": text, "ast": ast, "json": json}
    exec(str(refused.value).partition("write the record: ")[2], names)
    assert names["value"] in (TURNS, SHARE_GPT)
    for form, held in (
        ("alpaca", {"instruction": text, "output": "A"}),
        ("alpaca", {"instruction": "Q", "output": text}),
        ("prompt_completion", {"prompt": "Q", "completion": text}),
        ("pairs", {"input": text, "chosen": "a", "rejected": "b"}),
    ):
        with pytest.raises(InputError, match="list of turns as a string"):
            conversation_of_record(held, form)


@pytest.mark.parametrize(
    "text",
    [
        '[{"role": "roles/editor", "members": ["a"]}]',
        '[{"from": "Brazil", "to": "Spain", "value": 5}]',
        '[{"value": "a"}, {"value": "b"}]',
        "[1] the role of content",
        'He wrote [{"role": "user", "content": "Q"}]',
    ],
)
def test_other_json_is_text(text: str) -> None:
    refuse_written(text, "x")


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
    assert isinstance(chat, Chat)
    assert [message["content"] for message in chat.messages] == ["Q?", None, "4", "A"]
    assert chat.messages[1]["tool_calls"] == [call]
    assert (chat.trained, chat.tools, chat.completion) == ((False, True), ({"type": "function"},), 3)
    assert all("train" not in message and "weight" not in message for message in chat.messages)
    nothing = {"role": "tool", "content": []}
    chat = conversation_of_record(
        {"messages": [ASKED, {"role": "assistant", "content": [], "tool_calls": [call]}, nothing, SAID]},
        "messages",
    )
    assert isinstance(chat, Chat)
    assert [message["content"] for message in chat.messages] == ["Q", None, "", "A"]


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def said(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def shown(conversation: Any) -> Any:
    """A conversation as roles and contents with their completion, or as the prompt and the answer of a text."""
    if isinstance(conversation, Pair):
        return shown(conversation.chosen), shown(conversation.rejected)
    if isinstance(conversation, MarkedText):
        ((first, last),) = conversation.spans
        return conversation.text[:first], conversation.text[first:last]
    turns = "|".join(f"{message['role'][0]}:{message['content']}" for message in conversation.messages)
    return turns, conversation.completion, conversation.trained


HH = "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: and?\n\nAssistant:"
ASKED_IN = {"system": "S", "chosen": "a", "rejected": "b"}
ANSWERED = (("u:Q|a:a", 1, (True,)), ("u:Q|a:b", 1, (True,)))
FRAMED = (("s:S|u:Q|a:a", 2, (True,)), ("s:S|u:Q|a:b", 2, (True,)))
READ: dict[str, tuple[Form, dict[str, Any], Any]] = {
    "texts with a prompt": (
        "pairs",
        {"prompt": "Q ", "chosen": "a", "rejected": "b"},
        (("Q ", "a"), ("Q ", "b")),
    ),
    "texts that answer where the last assistant begins": (
        "pairs",
        {"chosen": f"{HH} I say. More", "rejected": f"{HH} I say."},
        ((HH, " I say. More"), (HH, " I say.")),
    ),
    "texts that part within a word": (
        "pairs",
        {"chosen": "It is blue", "rejected": "It is black"},
        (("It is", " blue"), ("It is", " black")),
    ),
    "messages with their prompt": (
        "pairs",
        {"prompt": [user("Q")], "chosen": [said("a")], "rejected": [said("b")]},
        ANSWERED,
    ),
    "messages that repeat a prompt of text": (
        "pairs",
        {
            "prompt": "Q",
            "chosen": [user("Q"), said("a")],
            "rejected": [user("Q"), said("b")],
            "messages": [user("Q"), said("a")],
        },
        ANSWERED,
    ),
    "messages that begin alike": (
        "pairs",
        {
            "chosen": [user("Q"), said("x"), user("R"), said("a")],
            "rejected": [user("Q"), said("x"), user("R"), said("b")],
        },
        (("u:Q|a:x|u:R|a:a", 3, (False, True)), ("u:Q|a:x|u:R|a:b", 3, (False, True))),
    ),
    "turns of ShareGPT behind a conversation": (
        "pairs",
        {
            "conversations": [{"from": "human", "value": "Q"}],
            "chosen": {"from": "gpt", "value": "a"},
            "rejected": {"from": "gpt", "value": "b"},
        },
        ANSWERED,
    ),
    "answers to an instruction": ("pairs", {"instruction": "Q", "chosen": "a", "rejected": "b"}, ANSWERED),
    "answers to an input": ("pairs", {"input": "Q", **ASKED_IN}, FRAMED),
    "a text prompt under a system prompt": ("pairs", {"prompt": "Q", **ASKED_IN}, FRAMED),
    "a text prompt and a turn": (
        "prompt_completion",
        {"prompt": "Q", "completion": [said("a")]},
        ("u:Q|a:a", 1, (True,)),
    ),
    "a prompt of several answers": (
        "prompt_completion",
        {"prompt": [user("Q"), said("x"), user("R")], "completion": "a"},
        ("u:Q|a:x|u:R|a:a", 3, (False, True)),
    ),
    "a text prompt with tools": (
        "prompt_completion",
        {"prompt": "Q", "completion": "a", "tools": [{"type": "function"}]},
        ("u:Q|a:a", 1, (True,)),
    ),
    "an instruction with context": (
        "alpaca",
        {"instruction": "I", "context": "C", "response": "a", "category": "x"},
        ("u:I\n\nC|a:a", 1, (True,)),
    ),
    "a query": ("alpaca", {"query": "Q", "response": "a"}, ("u:Q|a:a", 1, (True,))),
    "an instruction beside its rendered prompt": (
        "alpaca",
        {"instruction": "I", "input": "", "output": "a", "prompt": "### I"},
        ("u:I|a:a", 1, (True,)),
    ),
    "a system prompt in parts": (
        "messages",
        {
            "system": [{"text": "S"}],
            "messages": [user("Q"), {"role": "assistant", "content": [{"text": "a"}]}],
        },
        ("s:S|u:Q|a:a", 2, (True,)),
    ),
    "a history": (
        "alpaca",
        {"instruction": "I", "output": "a", "history": [["Q", "x"]], "system": "S"},
        ("s:S|u:Q|a:x|u:I|a:a", 4, (True, True)),
    ),
    "speakers in capitals with a mask": (
        "conversations",
        {
            "mask": "User",
            "system": "S",
            "conversations": [{"from": "User", "value": "Q"}, {"from": "Assistant", "value": "a"}],
        },
        ("s:S|u:Q|a:a", 2, (True,)),
    ),
    "turns as JSON": (
        "messages",
        {"messages": orjson.dumps([user("Q"), said("a")]).decode()},
        ("u:Q|a:a", 1, (True,)),
    ),
    "keys of both kinds": (
        "messages",
        {"messages": [{"role": None, "from": "human", "value": "Q"}, {"from": "gpt", "value": "a"}]},
        ("u:Q|a:a", 1, (True,)),
    ),
}


@pytest.mark.parametrize(("form", "record", "expected"), READ.values(), ids=READ)
def test_records_that_people_have_are_read(form: Form, record: dict[str, Any], expected: Any) -> None:
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
        {"my chat": [user("Q"), said("a")]},
        {"text": "Q A", "source": "a"},
        {"messages": "hello"},
    ],
)
def test_what_several_readings_fit_has_no_form(record: dict[str, Any]) -> None:
    assert form_of(record) is None


def of_turns(turns: Any, **others: Any) -> dict[str, Any]:
    return {"messages": turns, **others}


A, B = user("Q"), said("A")
REFUSED: list[tuple[Form, dict[str, Any], str]] = [
    ("messages", of_turns([]), "messages has no turn"),
    ("messages", of_turns(AS_TEXT["JSON twice"]), r"list of turns as a string; .*json\.loads\(json\.loads\("),
    ("messages", of_turns(AS_TEXT["Python's"]), r"list of turns as a string; .*ast\.literal_eval\("),
    ("messages", of_turns("hello"), "messages is a string that is not JSON"),
    ("messages", of_turns("{}"), "messages has no turn"),
    ("messages", of_turns(["Q"]), "turn 1 of messages is not an object"),
    ("messages", of_turns([B]), "no question comes before it"),
    ("messages", of_turns([A, {**B, "weight": 0}]), "no turn is trained on"),
    ("messages", of_turns([A, {**B, "weight": -1}]), "weight of turn 2 is -1"),
    ("messages", of_turns([A, {**B, "weight": float("nan")}]), "weight of turn 2 is nan"),
    ("messages", of_turns([A, {**B, "content": "  "}]), "turn 2 \\(assistant\\) is empty"),
    ("messages", of_turns([{**A, "content": ""}, B]), "turn 1 \\(user\\) is empty"),
    ("messages", of_turns([A, {**B, "content": {"text": "A"}}]), "the content of turn 2 is dict"),
    ("messages", of_turns([A, {**B, "content": [{"type": "image"}]}]), "turn 2 has parts of the type image"),
    ("messages", of_turns([A, {**B, "tool_calls": 1}]), "tool_calls of turn 2 is not a list"),
    ("messages", of_turns([A, {**B, "function_call": {"name": "f"}}]), "turn 2 has function_call"),
    ("messages", of_turns([A, {**B, "train_detail": [{}]}]), "has train_detail"),
    ("messages", of_turns([{"role": "narrator", "content": "x"}, B]), "has the role 'narrator'"),
    ("messages", of_turns([A, B], tools="{"), "tools is a string that is not JSON"),
    ("messages", of_turns([A, B], tools={}, mask="assistant"), "mask is 'assistant'"),
    (
        "messages",
        of_turns([A, B], chat_template_kwargs={"a": False}),
        "chat_template_kwargs of a record is not",
    ),
    ("messages", of_turns([A, B], system={"text": "S"}), "the system prompt is dict"),
    (
        "messages",
        {"prompt": "Q", "completion": "a"},
        "the record has the form 'prompt_completion', but input",
    ),
    ("alpaca", of_turns([A, B]), "has the form 'messages', but input.format is 'alpaca'"),
    ("pairs", {"text": "a"}, "has the form 'text', but input.format is 'pairs'"),
    ("messages", {"id": 1}, "no field 'messages'"),
    ("conversations", {"conversations": [{"from": "alien", "value": "x"}]}, "turn 1 has the role 'alien'"),
    (
        "conversations",
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "function_call", "value": "f(x)"}]},
        "the function call of turn 2 is a string that is not JSON",
    ),
    ("prompt_completion", {"prompt": "Q", "completion": " "}, "the completion is empty"),
    (
        "prompt_completion",
        {"prompt": [A, said("It")], "completion": [said(" is")]},
        "the beginning of the answer",
    ),
    ("alpaca", {"instruction": "Q", "output": "a", "history": ["x"]}, "history is not a list of pairs"),
    ("pairs", {"prompt": "Q", "chosen": "a", "rejected": "a"}, "chosen and rejected are the same"),
    ("pairs", {"prompt": "Q", "chosen": " ", "rejected": "a"}, "chosen is empty"),
    ("pairs", {"prompt": "Q", "chosen": "Q", "rejected": "Q a"}, "chosen is only the prompt"),
    (
        "pairs",
        {"chosen": "Yes it is", "rejected": "No"},
        "no common beginning, and the record has no field prompt",
    ),
    ("pairs", {"chosen": "a b", "rejected": "a b c"}, "only the beginning of the other"),
    ("pairs", {"chosen": [A], "rejected": [A, said("a")]}, "chosen is only the beginning"),
    ("pairs", {"chosen": [A, B], "rejected": [user("R"), said("b")]}, "no common prompt"),
    ("pairs", {"prompt": "Z", "chosen": [A, B], "rejected": [A, said("b")]}, "do not begin with the prompt"),
    ("pairs", {"prompt": "Q", "chosen": '[{"role": "user"}]', "rejected": "b"}, "list of turns as a string"),
    ("pairs", {"prompt": "Q", "chosen": "a", "rejected": {"role": "narrator"}}, "the role 'narrator'"),
]


@pytest.mark.parametrize(("form", "record", "reason"), REFUSED, ids=[reason for *_, reason in REFUSED])
def test_what_cannot_be_used_says_why(form: Form, record: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        conversation_of_record(record, form)


def test_calls_of_share_gpt_are_tool_calls() -> None:
    chat = conversation_of_record(
        {
            "conversations": [
                {"from": "human", "value": "Q"},
                {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "4"},
                {"from": "gpt", "value": "a"},
            ],
            "tools": '[{"name": "f"}]',
        },
        "conversations",
    )
    assert isinstance(chat, Chat)
    assert chat.tools == ({"name": "f"},)
    assert chat.messages[1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
    }
