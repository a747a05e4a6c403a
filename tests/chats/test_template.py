"""Renderings and turns of conversations beside transformers and TRL's training templates.

The templates are those of TRL's package: some forty, as their models ship them, and the same with generation marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError
from dagster_divorder.chats.template import ChatTemplate, Rendered, encode

trl = pytest.importorskip("trl")
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
STOCK = sorted(
    file.stem
    for file in TEMPLATES.glob("*.jinja")
    if not file.stem.endswith("_training") and "v2" not in file.stem
)
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CONTROL = re.compile(
    r"<\|[^|<>]{1,40}\|>|<｜[^｜<>]{1,40}｜>|<(?:start|end)_of_(?:turn|utterance)>|<[a-z]+\|>|<\|[a-z]+>|\[gMASK\]|<sop>"
)
WITHOUT_SYSTEM = {"gemma"}


def template(name: str) -> ChatTemplate:
    content = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(content, NAMED, {*CONTROL.findall(content), "<s>", "</s>"})


def conversation(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(contents)
    turns = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def trained(rendered: Rendered) -> list[str]:
    return ["".join(rendered.text[first:last] for first, last in turn) for turn in rendered.turns]


WORDS = st.sampled_from(
    [
        "a",
        "the answer",
        "def f(x):\n    return x",
        "naïve",
        "漢字",
        "😀",
        "  two  ",
        "\u00a0wide\u3000",
        "user",
        "assistant",
        "\n\n",
        "1.",
        "{{",
        "}}",
    ]
)
TEXT = st.lists(WORDS, min_size=1, max_size=6).map(" ".join).filter(str.strip)


@pytest.mark.parametrize("name", STOCK)
@settings(max_examples=15, deadline=None)
@given(
    contents=st.lists(TEXT, min_size=2, max_size=8).map(lambda texts: texts[: len(texts) // 2 * 2]),
    system=st.none() | TEXT,
)
def test_every_turn_holds_its_answer_and_nothing_that_a_user_said(
    name: str, contents: Sequence[str], system: str | None
) -> None:
    messages = conversation(*contents, system=None if name in WITHOUT_SYSTEM else system)
    rendered = template(name).render(messages)
    turns = trained(rendered)
    answers = contents[1::2]
    assert len(turns) == len(answers)
    for turn, answer in zip(turns, answers, strict=True):
        assert answer.strip() in turn
        # Besides the answer: what closes the turn, and what the template puts before an answer.
        assert len(turn) <= len(answer) + 60
    # Whatever the answers are, the text outside of their turns is the same.
    outside = _outside(rendered)
    others = conversation(
        *("x" if number % 2 else text for number, text in enumerate(contents)),
        system=messages[0]["content"] if len(messages) % 2 else None,
    )
    assert _outside(template(name).render(others)) == outside


def _outside(rendered: Rendered) -> str:
    text, place = "", 0
    for turn in rendered.turns:
        for first, last in turn:
            text += rendered.text[place:first] + "\0"
            place = last
    return text + rendered.text[place:]


MARKED = sorted(file.stem for file in TEMPLATES.glob("*_training.jinja"))
SAME_TEXT = [
    "cohere",
    "cohere2",
    "gemma",
    "gemma3",
    "lfm2",
    "lfm2_v2",
    "llama3",
    "qwen2_5_vl",
    "qwen3_instruct_2507",
    "qwen3_vl",
]
"""Templates whose training template gives the same text, and marks what is trained here."""


def tokenizer(content: str) -> Any:
    """Bytes as tokens, with the control tokens of a template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    control = sorted({*CONTROL.findall(content), "<s>", "</s>", "<pad>", "<unk>"})
    own.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return PreTrainedTokenizerFast(tokenizer_object=own, chat_template=content, **NAMED)


@pytest.mark.parametrize("name", MARKED)
def test_ids_and_masks_are_those_of_transformers(name: str) -> None:
    content = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    if "strftime_now" in content:
        pytest.skip("its text changes from day to day")
    theirs = tokenizer(content)
    chats = [
        conversation("Q?", "A naïve 😀 answer."),
        conversation("Q?", "漢字\n\n", "And?", "  more "),
        conversation("<|im_end|>", "<|im_start|>assistant", "x", "y", "z", "0"),
    ]
    rendered = [template(name).render(chat) for chat in chats]
    if template(name)._takes_parts:
        chats = [[{**m, "content": [{"type": "text", "text": m["content"]}]} for m in chat] for chat in chats]  # type: ignore[misc]
    ids, lengths, turn = encode(theirs.backend_tokenizer, rendered)
    ends = np.cumsum(lengths)
    for chat, first, last in zip(chats, ends - lengths, ends, strict=True):
        expected = theirs.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        assert ids[first:last].tolist() == expected["input_ids"]
        assert (turn[first:last] >= 0).astype(int).tolist() == expected["assistant_masks"]
        assert sorted(set(turn[first:last]) - {-1}) == list(range(len(chat) // 2))


@pytest.mark.parametrize("name", SAME_TEXT)
@settings(max_examples=15, deadline=None)
@given(contents=st.lists(TEXT, min_size=2, max_size=8).map(lambda texts: texts[: len(texts) // 2 * 2]))
def test_turns_of_a_stock_template_are_those_of_its_training_template(
    name: str, contents: Sequence[str]
) -> None:
    stock = template(name).render(conversation(*contents))
    marked = template(f"{name}_training").render(conversation(*contents))
    assert (stock.text, trained(stock)) == (marked.text, trained(marked))


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_instruct_2507", "glm4moe", "deepseekv3"])
def test_tool_calls_are_trained_and_their_results_are_not(name: str) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    if name == "deepseekv3":
        call["function"]["arguments"] = '{"a": 1}'  # type: ignore[index]
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "RESULT"},
        {"role": "assistant", "content": "It is 2."},
    ]
    turns = trained(template(name).render(messages))
    assert len(turns) == 2
    assert "add" in turns[0]
    assert "It is 2." in turns[1]
    assert not any("RESULT" in turn for turn in turns)


@pytest.mark.parametrize("name", ["qwen3", "llama3", "phi3", "gptoss"])
def test_an_answer_may_repeat_the_question_or_the_template(name: str) -> None:
    for text in ("Q", "<|im_end|>\n<|im_start|>user\nQ", "assistant", "<|eot_id|>", "<|end|>\n<|user|>\nQ"):
        for turn in trained(template(name).render(conversation(text, text, text, text))):
            assert text in turn
            assert len(turn) < len(text) + 40


def test_a_template_that_refuses_says_why() -> None:
    with pytest.raises(InputError, match="System role not supported"):
        template("gemma").render(conversation("Q", "A", system="S"))
    with pytest.raises(InputError, match="does not write what a user says"):
        ChatTemplate("{% for m in messages %}{{ m.role }}{% endfor %}", NAMED, ()).render(
            conversation("Q", "A")
        )


def test_a_template_gives_the_same_text_on_every_day() -> None:
    assert "2024-07-26" in template("gptoss").render(conversation("Q", "A")).text
    assert "26 Jul 2024" in template("llama3_2").render(conversation("Q", "A")).text


@pytest.mark.parametrize("name", [*STOCK, *MARKED])
@settings(max_examples=20, deadline=None)
@given(
    contents=st.lists(
        TEXT | st.sampled_from(["</think>", "<think>a</think>b", "<tool_response>\nx"]),
        min_size=2,
        max_size=8,
    ).map(lambda texts: texts[: len(texts) // 2 * 2]),
    system=st.none() | TEXT,
)
def test_the_fast_way_gives_what_the_template_gives(
    name: str, contents: Sequence[str], system: str | None
) -> None:
    messages = conversation(
        *contents, system=None if name in WITHOUT_SYSTEM or name == "gemma_training" else system
    )
    own = template(name)
    try:
        expected = own._rendered_alone(messages, None)
    except InputError:
        with pytest.raises(InputError):
            own.render(messages)
    else:
        assert own.render(messages) == expected
