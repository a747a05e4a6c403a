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


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([], "messages has no turn"),
        (AS_TEXT["JSON twice"], r"messages is a list of turns as a string; .*json\.loads\(json\.loads\("),
        (AS_TEXT["Python's"], r"messages is a list of turns as a string; .*ast\.literal_eval\("),
        ("hello", "messages is a string that is not JSON"),
        ("{}", "messages has no turn"),
        (["Q"], "turn 1 of messages is not an object"),
        ([SAID], "no question comes before it"),
        ([ASKED, {**SAID, "weight": 0}], "no turn is trained on"),
        ([ASKED, {**SAID, "weight": -1}], "weight of turn 2 is -1"),
        ([ASKED, {**SAID, "weight": 0.5}], "weight of turn 2 is 0.5"),
        ([ASKED, {**SAID, "weight": float("nan")}], "weight of turn 2 is nan"),
        ([ASKED, {**SAID, "content": "  "}], "turn 2 \\(assistant\\) is empty"),
        ([{**ASKED, "content": ""}, SAID], "turn 1 \\(user\\) is empty"),
        ([ASKED, {**SAID, "content": {"text": "A"}}], "the content of turn 2 is dict"),
        ([{"role": "narrator", "content": "x"}, SAID], "has the role 'narrator'"),
    ],
)
def test_what_cannot_be_used_says_why(turns: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        conversation_of_record({"messages": turns}, "messages")


def test_an_unknown_speaker_is_named() -> None:
    with pytest.raises(InputError, match="turn 1 is from 'alien'"):
        conversation_of_record({"conversations": [{"from": "alien", "value": "x"}]}, "conversations")


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
    "texts that repeat the prompt": (
        "pairs",
        {"prompt": "Q ", "chosen": "Q a", "rejected": "Q b"},
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
    "answers to a question under a system prompt": ("pairs", {"question": "Q", **ASKED_IN}, FRAMED),
    "answers to an input": ("pairs", {"input": "Q", **ASKED_IN}, FRAMED),
    "a text prompt under a system prompt": ("pairs", {"prompt": "Q", **ASKED_IN}, FRAMED),
    "messages beside a source": (
        "messages",
        {"messages": [user("Q"), said("a")], "source": "a"},
        ("u:Q|a:a", 1, (True,)),
    ),
    "unpaired preferences": (
        "prompt_completion",
        {"prompt": "Q ", "completion": "a", "label": True},
        ("Q ", "a"),
    ),
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
    "a question under a system prompt": (
        "alpaca",
        {"system_prompt": "S", "question": "Q", "response": "a"},
        ("s:S|u:Q|a:a", 2, (True,)),
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
    "roles inside conversations": (
        "conversations",
        {"conversations": [user("Q"), said("a")]},
        ("u:Q|a:a", 1, (True,)),
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


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "Q", "chosen": "a", "rejected": "a"}, "chosen and rejected are the same"),
        ({"prompt": "Q", "chosen": " ", "rejected": "a"}, "chosen is empty"),
        ({"prompt": "Q", "chosen": "Q", "rejected": "Q a"}, "chosen is only the prompt"),
        (
            {"chosen": "Yes it is", "rejected": "No"},
            "no common beginning, and the record has no field prompt",
        ),
        ({"chosen": "a b", "rejected": "a b c"}, "only the beginning of the other"),
        ({"chosen": [user("Q")], "rejected": [user("Q"), said("a")]}, "chosen is only the beginning"),
        ({"chosen": [user("Q"), said("a")], "rejected": [user("R"), said("b")]}, "no common prompt"),
        (
            {"prompt": "Z", "chosen": [user("Q"), said("a")], "rejected": [user("Q"), said("b")]},
            "chosen and rejected do not begin with the prompt",
        ),
        ({"prompt": "Q", "chosen": '[{"role": "user"}]', "rejected": "b"}, "list of turns as a string"),
        ({"prompt": "Q", "chosen": "a", "rejected": {"role": "narrator"}}, "the role 'narrator'"),
    ],
)
def test_pairs_that_cannot_be_used_say_why(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        conversation_of_record(record, "pairs")


@pytest.mark.parametrize(
    ("form", "record", "reason"),
    [
        (
            "messages",
            {"prompt": "Q", "completion": "a"},
            "the record has the form 'prompt_completion', but input",
        ),
        (
            "alpaca",
            {"messages": [user("Q"), said("a")]},
            "has the form 'messages', but input.format is 'alpaca'",
        ),
        ("pairs", {"text": "a"}, "has the form 'text', but input.format is 'pairs'"),
        ("messages", {"id": 1}, "no field 'messages'"),
        (
            "messages",
            {"messages": [user("Q"), said("a")], "tools": "{"},
            "tools is a string that is not JSON",
        ),
        (
            "messages",
            {"messages": [user("Q"), said("a")], "tools": {}, "mask": "assistant"},
            "mask is 'assistant'",
        ),
        ("messages", {"messages": [user("Q"), {**said("a"), "train_detail": [{}]}]}, "has train_detail"),
        (
            "messages",
            {"messages": [user("Q"), said("a")], "chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs of a record is not read",
        ),
        (
            "messages",
            {"messages": [user("Q"), said("a")], "system": {"text": "S"}},
            "the system prompt is dict",
        ),
        (
            "conversations",
            {"conversations": [{"from": "human", "value": "Q"}, {"from": "function_call", "value": "f(x)"}]},
            "the function call of turn 2 is a string that is not JSON",
        ),
        ("prompt_completion", {"prompt": "Q", "completion": " "}, "the completion is empty"),
        (
            "prompt_completion",
            {"prompt": [user("Q"), said("It")], "completion": [said(" is")]},
            "the prompt ends with the beginning of the answer",
        ),
        ("alpaca", {"instruction": "Q", "output": "a", "history": ["x"]}, "history is not a list of pairs"),
    ],
)
def test_other_records_that_cannot_be_used_say_why(form: str, record: dict[str, Any], reason: str) -> None:
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
