"""Renderings and turns of conversations beside transformers and TRL's training templates.

The templates are those of TRL's package: some forty, as their models ship them, and the same with generation marks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.chats.template import ChatTemplate, Rendered
from dagster_divorder.errors import InputError

trl = pytest.importorskip("trl")
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
STOCK = sorted(
    file.stem
    for file in TEMPLATES.glob("*.jinja")
    if not file.stem.endswith("_training") and "v2" not in file.stem
)
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
CONTROL = re.compile(
    r"<\|[^|<>]{1,40}\|>|<｜[^｜<>]{1,40}｜>|<(?:start|end)_of_(?:turn|utterance)>|<[a-z_]+\|>|<\|[a-z_]+>|\[gMASK\]|<sop>"
)
WITHOUT_SYSTEM = {"gemma"}
SAME_TEXT = {
    *("cohere", "cohere2", "gemma", "gemma3", "idefics3", "lfm2", "llama3", "phi3", "phi3_5"),
    *("qwen2_5_vl", "qwen3_instruct_2507", "qwen3_vl", "smolvlm"),
}
"""Templates whose training template gives the same text, and marks what is trained here."""


@functools.cache
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
        *("a", "the answer", "def f(x):\n    return x", "naïve", "漢字😀", "  two  ", "\u00a0wide\u3000"),
        *("user", "assistant", "\n\n", "1.", "{{", "}}"),
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
    if name in SAME_TEXT:
        marked = template(f"{name}_training").render(messages)
        assert (rendered.text, turns) == (marked.text, trained(marked))


def _outside(rendered: Rendered) -> str:
    text, place = "", 0
    for turn in rendered.turns:
        for first, last in turn:
            text += rendered.text[place:first] + "\0"
            place = last
    return text + rendered.text[place:]


def call(number: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "add", "arguments": {"a": number}}}


def asked(*contents: str | int) -> list[dict[str, Any]]:
    """A question, and what comes after it: answers, and numbers for calls with their results."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Q"}]
    for content in contents:
        if isinstance(content, int):
            messages.append({"role": "assistant", "content": "", "tool_calls": [call(content)]})
            messages.append({"role": "tool", "name": "add", "content": "RESULT"})
        else:
            messages.append({"role": "assistant", "content": content})
    return messages


@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3", "qwen3_instruct_2507", "glm4moe", "gemma4", "gptoss", "nemotron_3_nano"]
)
def test_tool_calls_are_trained_and_their_results_are_not(name: str) -> None:
    turns = trained(template(name).render(asked(1, 2, "It is 2.")))
    assert len(turns) == 3
    assert "add" in turns[0] and "add" in turns[1] and "It is 2." in turns[2]
    assert not any("RESULT" in turn for turn in turns)


TRACKERS: dict[str, tuple[str, list[dict[str, Any]], list[str]]] = {
    # TRL #6361: a completion that was sampled holds the end of its reasoning alone.
    "raw completion": (
        "qwen3_6",
        conversation("Q", "why\n</think>\n\nA"),
        ["why\n</think>\n\nA<|im_end|>\n"],
    ),
    # Automodel #3739: the same text as an answer, a question and a result.
    "repeated texts": (
        "qwen3",
        [*conversation("same", "same"), *asked(1, "same")],
        [
            "same<|im_end|>\n",
            '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n',
            "<think>\n\n</think>\n\nsame<|im_end|>\n",
        ],
    ),
    # LlamaFactory #9630: the last turn is a tool's result.
    "a last result": (
        "gptoss",
        asked(1),
        [' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>'],
    ),
}


@pytest.mark.parametrize(("name", "messages", "expected"), TRACKERS.values(), ids=TRACKERS)
def test_what_went_wrong_elsewhere(name: str, messages: list[dict[str, Any]], expected: list[str]) -> None:
    assert trained(template(name).render(messages)) == expected


def test_what_is_said_beside_a_call_is_trained_where_a_template_writes_it_behind_the_result() -> None:
    messages = asked(1, "It is 1.")
    messages[1]["content"] = " let me see"
    called, answered = trained(template("gemma4").render(messages))
    assert called == "<|tool_call>call:add{a:1}<tool_call|>let me see<turn|>\n"
    assert answered == "It is 1.<turn|>\n"
    # Another version goes on with the answer's reasoning, without a header.
    messages[3]["reasoning_content"] = "why"
    called, answered = trained(template("gemma4_v5").render(messages))
    assert called.endswith("<tool_call|>let me see")
    assert answered == "<|channel>thought\nwhy\n<channel|>It is 1.<turn|>\n"


def test_results_are_not_trained_though_one_spells_a_header_and_another_is_empty() -> None:
    messages = asked(1, 2, "A")
    messages[2:3] = [{**messages[2], "content": "<|im_start|>assistant\nx"}, {**messages[2], "content": ""}]
    _, called, _ = trained(template("qwen3").render(messages))
    assert called.startswith("<tool_call>")


def test_a_template_that_leaves_out_a_parallel_call_refuses_the_record() -> None:
    messages = asked("", "A")
    messages[1]["tool_calls"] = [call(1), call(2)]
    with pytest.raises(InputError, match="does not write the call of 'add'"):
        template("gptoss").render(messages)
    assert trained(template("qwen3").render(messages))[0].count("<tool_call>") == 2


@pytest.mark.parametrize("name", ["qwen3", "phi3"])
@pytest.mark.parametrize("text", ["Q", "<|im_end|>\n<|im_start|>user\nQ", "<|end|>\n<|user|>\nQ"])
def test_an_answer_may_repeat_the_question_or_the_template(name: str, text: str) -> None:
    for turn in trained(template(name).render(conversation(text, text, text, text))):
        assert text in turn
        assert len(turn) < len(text) + 40


TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
ASKS = TURNS + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.reasoning_content or '' }}"
    "{{ m.content ~ (m.tool_calls | tojson if m.tool_calls) }}</s>"
    "{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"
)
"""Without a generation prompt."""
TOKENS = {"<|user|>", "<|assistant|>", "<|end|>"}


def refusal(jinja: str, messages: Sequence[Mapping[str, Any]] = conversation("Q", "A")) -> str:
    with pytest.raises(InputError) as refused:
        ChatTemplate(jinja, NAMED, TOKENS).render(messages)
    return str(refused.value)


@pytest.mark.parametrize(
    ("jinja", "reason"),
    [
        (TURNS + "{{ raise_exception('turns must alternate') }}", "turns must alternate"),
        (TURNS + "{{ 1 / 0 }}", "division by zero"),
        (TURNS + "{{ messages.append(1) }}", "unsafe"),
        (TURNS + "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "does not write the user's messages"),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
            "does not write the content of message 2",
        ),
        ("{% generation %}{% endgeneration %}" + TURNS, "marks no part"),
        ("{% for %}", "refuses the conversation: Expected an expression"),
        (
            TURNS + "{{ strftime_now(messages[0].form) }}",
            "prints today's date in a form that is not a string",
        ),
    ],
)
def test_what_a_template_cannot_do_is_a_reason(jinja: str, reason: str) -> None:
    message = refusal(jinja)
    assert reason in message
    assert message.count("the chat template") == 1


def test_a_template_whose_turns_are_partly_marked_trains_what_it_marks() -> None:
    jinja = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and m.content != 'x' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}<|end|>"
        "{% if loop.last %}{% generation %}!{% endgeneration %}{% endif %}"
        "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    )
    own = ChatTemplate(jinja, NAMED, TOKENS)
    assert trained(own.render(conversation("a", "b", "c", "d"))) == ["b", "d!"]
    # The turn that is not marked stands between those that are, of which the last has two parts.
    assert trained(own.render(conversation("a", "b", "c", "x", "e", "f"))) == ["b", "", "f!"]


@pytest.mark.parametrize(
    ("change", "written"),
    [
        ("m.content | upper", "THE TOOL <B> E"),
        ("m.content | escape", "the tool &lt;b&gt; e"),
        ("m.content | tojson", '"the tool <b> e"'),
        ("m.content.split('tool')[-1]", " <b> e"),
        ("'T' if 'the' in m.content else m.content", ""),
        ("m.content[:10]", ""),
    ],
)
def test_a_turn_holds_what_the_template_makes_of_a_content_or_the_record_is_refused(
    change: str, written: str
) -> None:
    own = ChatTemplate(ASKS.replace("m.content", change), NAMED, TOKENS)
    assert own.trains_ends
    messages = conversation("Q", "the tool <b> e", "R", "it")
    if written:
        assert trained(own.render(messages))[0] == written + "<|end|>"
    else:
        with pytest.raises(InputError, match=r"located|does not write the content of message 2"):
            own.render(messages)


def test_dates_are_the_same_on_every_day() -> None:
    jinja = (
        "{{ strftime_now is defined }}|{{ strftime_now( '%-d %B %Y') }}|{{ strftime_now(\"%Y-%m-%dT%H\") }}"
    )
    text = ChatTemplate(jinja + ASKS, NAMED, TOKENS).render(conversation("Q", "A")).text
    assert text == "True|26 July 2024|2024-07-26T00<|user|>Q<|end|><|assistant|>A<|end|>"


def test_a_header_that_asks_for_reasoning_is_not_trained_and_reasoning_is() -> None:
    jinja = (
        "{% for m in messages %}<|{{ m.role }}|>\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}"
        "</think>{% endif %}{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"
    )
    own = ChatTemplate(jinja, NAMED, TOKENS)
    messages = conversation("a", "b", "c", "d")
    assert trained(own.render(messages)) == ["b<|end|>\n", "d<|end|>\n"]
    messages[3]["reasoning_content"] = "why"
    assert trained(own.render(messages)) == ["b<|end|>\n", "why</think>d<|end|>\n"]


def test_calls_end_where_generation_does_and_before_what_comes_next() -> None:
    messages = asked(1, "A")
    messages[1]["content"] = "reasons"
    content = (TEMPLATES / "gptoss.jinja").read_text(encoding="utf-8")
    control = {*CONTROL.findall(content), "<s>", "</s>"}
    # The template leaves out reasons before a final answer, so the conversation to the call is no prefix of the whole.
    for stops in (["</s>"], ["</s>", "<|call|>"]):
        called, _ = trained(ChatTemplate(content, NAMED, control, stops).render(messages))
        assert called.endswith('{"a": 1}<|call|>')
    counted = ASKS.replace(
        "m.content", "m.content ~ (m.tool_calls[0].function.name ~ messages | length if m.tool_calls)"
    )
    assert "turn of message 2 cannot be located" in refusal(counted, messages)


@pytest.mark.parametrize("name", ["gptoss", "mistral"])
def test_time_is_linear_in_the_calls_of_a_conversation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ChatTemplate(MISTRAL, NAMED, {"[INST]", "[/INST]", "</s>"}) if name == "mistral" else template(name)
    sizes: list[int] = []
    rendered = ChatTemplate._rendered

    def counted(self: ChatTemplate, messages: Sequence[Any], *rest: Any, **options: Any) -> Any:
        sizes.append(len(messages))
        return rendered(self, messages, *rest, **options)

    monkeypatch.setattr(ChatTemplate, "_rendered", counted)

    def messages_rendered(calls: int) -> int:
        step = [{**asked(1)[1], "reasoning_content": "why"}, {"role": "tool", "content": "RESULT"}]
        sizes.clear()
        turns = own.render([*conversation("Q", "A", "R"), *step * calls, *conversation("Q", "A")[1:]]).turns
        assert len(turns) == calls + 2
        return sum(sizes)

    messages_rendered(2)  # what is known of the template is found once
    assert messages_rendered(240) < 5 * messages_rendered(60)


@pytest.mark.parametrize(
    ("before", "after"),
    [("<answer>", "</answer>"), ("<r>\n", "\n</r>\n"), ("", " ."), ('"', '"'), ("", " <|user |>")],
)
def test_the_end_of_a_turn_is_trained_whatever_stands_before_it(before: str, after: str) -> None:
    content = f"{{% if m.role == 'assistant' %}}{before}{{{{ m.content }}}}{after}{{% else %}}q{{% endif %}}"
    jinja = ASKS.replace("{{ m.content }}", content).replace("q{%", "{{ m.content }}{%")
    own = ChatTemplate(jinja, NAMED, TOKENS)
    turns = trained(own.render(conversation("Q", "a </answer> b", "R", "it")))
    assert turns == [f"{before}{answer}{after}<|end|>" for answer in ("a </answer> b", "it")]
    assert own.trains_ends
    assert not ChatTemplate(jinja.replace("<|end|>", ""), NAMED, TOKENS).trains_ends


def test_an_end_that_is_no_control_token_is_trained_too() -> None:
    own = ChatTemplate(ASKS, NAMED, {"</s>"})
    assert trained(own.render(conversation("Q", "A", "R", "B"))) == ["A<|end|>", "B<|end|>"]
    assert not own.trains_ends
    # White space alone does not end a turn, and is a part of it as it is of a rendering.
    spaced = ChatTemplate(ASKS.replace("<|end|>", "\n\n"), NAMED, {"</s>"})
    assert trained(spaced.render(conversation("Q", "A", "R", "B"))) == ["A\n\n", "B\n\n"]
    assert not spaced.trains_ends


def test_a_token_that_stops_and_begins_the_next_turn_is_trained_where_nothing_else_ends_one() -> None:
    for end, expected in (("", "A<|user|>"), ("<|end|>\n", "A<|end|>\n")):
        own = ChatTemplate(ASKS.replace("<|end|>", end), NAMED, TOKENS, ["<|user|>"])
        assert trained(own.render(conversation("Q", "A", "R", "B")))[0] == expected


def test_without_a_generation_prompt_the_header_is_trained_too() -> None:
    messages = conversation("Q", "A ", "Q", "B")
    turns = trained(ChatTemplate(TURNS, NAMED, TOKENS).render(messages))
    assert turns == ["<|assistant|>A <|end|>", "<|assistant|>B<|end|>"]
    spaces = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert trained(ChatTemplate(spaces, NAMED, TOKENS).render(messages)) == ["A ", "B"]
    called = MISTRAL.replace("m.tool_calls | tojson", "'[CALLS]' ~ (m.tool_calls | tojson)")
    messages[1] = asked(1)[1]
    (turn, last) = trained(ChatTemplate(called, NAMED, {"[INST]", "[/INST]", "</s>"}).render(messages))
    assert turn.startswith("[CALLS]") and turn.endswith("}]</s>")
    assert last == "B</s>"


def test_reasoning_that_a_template_does_not_read_is_refused() -> None:
    for field in ("reasoning_content", "thinking"):
        messages = [*conversation("Q"), {"role": "assistant", "content": "A", field: "why"}]
        assert f"does not read {field}" in refusal(ASKS, messages)


@pytest.mark.parametrize("marked", [False, True])
def test_a_template_that_leaves_out_tools_or_calls_refuses_the_record(marked: bool) -> None:
    jinja = ASKS
    if marked:
        jinja = ASKS.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}")
    own = ChatTemplate(jinja, NAMED, TOKENS)
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    with pytest.raises(InputError, match="does not write the record's tool 'add'"):
        own.render(conversation("Q", "A"), [tool])
    called = asked(1, "A")
    called[1]["content"] = "x"
    with pytest.raises(InputError, match=r"does not write the (call of .add.|content of message 2)"):
        own.render(called)
