"""The template and the control tokens of a checkpoint beside transformers'."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import orjson
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dagster_divorder.chats.document import Chat, as_document
from dagster_divorder.chats.forms import form_of
from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.corpus.records import parse_lines
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError
from dagster_divorder.models.bootstrap import END
from dagster_divorder.models.chat_templates import BOOTSTRAP, DEFAULT, chat_template, describe_chats
from dagster_divorder.models.chat_tokens import ChatEncoder, as_read
from dagster_divorder.models.pretrained import save_tokenizer
from dagster_divorder.models.tokenize import Engine

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = ({"role": "user", "content": "a<|e|> </s> b"}, {"role": "assistant", "content": "c<|n|>"})
SPAN = "{{ tools | tojson if tools }}{% for m in messages %}<|e|>{{ m.role }}:{{ m.content }}  {% endfor %}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "</s>"])}
    own = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    own.add_special_tokens([AddedToken(token, normalized=False) for token in ("<|e|>", "<|n|>")])
    own.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def configure(directory: Path, **config: Any) -> None:
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config})
    )


def files(directory: Path, contents: Mapping[str, str]) -> None:
    for name, content in contents.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")


def template_in(directory: Path, file: Path | None = None) -> ChatTemplate:
    return chat_template(describe_chats(directory), file)


def ids(directory: Path, tools: tuple[Any, ...] | None = None) -> list[int]:
    """Ids, which are those of all engines."""
    template = template_in(directory)
    (directory / "saved").mkdir()
    save_tokenizer(directory, directory / "saved")
    documents = pa.array([as_document(Chat(MESSAGES, (True,), 1, tools)).decode()], pa.large_string())
    fast, slow = (
        ChatEncoder(directory / "saved", template, engine).encode(documents)["ids"].tolist()
        for engine in get_args(Engine)
    )
    assert fast == slow
    return fast


FILES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "config": ({"chat_template": SPAN}, {}),
    "the file goes before the config": ({"chat_template": "x" + SPAN}, {"chat_template.jinja": "漢" + SPAN}),
    "bos twice": ({"bos_token": "<|n|>", "chat_template": "{{ bos_token }}{{ bos_token }}" + SPAN}, {}),
    "a name of its own": ({"image_token": "<|n|>", "chat_template": "{{ image_token }}" + SPAN}, {}),
    "eos of the vocabulary": ({"eos_token": "</s>", "chat_template": "{{ eos_token }}" + SPAN}, {}),
    "eos of special_tokens_map": (
        {"chat_template": "{{ eos_token }}" + SPAN},
        {"special_tokens_map.json": '{"eos_token": {"content": "</s>"}}'},
    ),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("tools", [None, (TOOL,)], ids=["plain", "tools"])
def test_ids_are_those_of_the_checkpoint_in_transformers(
    checkpoint: Path, name: str, tools: tuple[Any, ...] | None
) -> None:
    from transformers import AutoTokenizer

    config, contents = FILES[name]
    configure(checkpoint, **config)
    files(checkpoint, contents)
    theirs = AutoTokenizer.from_pretrained(checkpoint)
    expected = theirs.apply_chat_template(list(MESSAGES), tools=tools and list(tools))["input_ids"]
    assert ids(checkpoint, tools) == expected


def test_the_default_template_trains_answers_and_calls_with_their_ends() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "A"},
    ]
    for tools in (None, [TOOL]):
        rendered = chat_template(BOOTSTRAP, None).render(messages, tools)
        assert rendered.text.startswith("<|system|>" if tools is None else "<|tools|>\n[{")
        called, answered = (rendered.text[first:last] for ((first, last),) in rendered.turns)
        assert json.loads(called.removesuffix("<|endoftext|>")) == [call]
        assert answered == "A<|endoftext|>"


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def said(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


@pytest.mark.parametrize(
    ("record", "trained"),
    [
        ({"messages": [user("Q"), said("A"), user("more?")]}, ["A"]),
        ({"messages": [user("Q"), said("A"), said("B")]}, ["A", "B"]),
        ({"messages": [user("Q", name=None, tool_calls=None), said("A", tool_calls=[])], "tools": None}, ["A"]),
        ({"messages": [user("Q\r\n"), said("A\r\nB\r\n")]}, ["A\r\nB\r\n"]),
        ({"messages": [user("👩‍👩‍👧"), said("naïve 👩‍👩‍👧")]}, ["naïve 👩‍👩‍👧"]),
        ({"instruction": "", "input": "Q", "output": "A"}, ["A"]),
    ],
)  # fmt: skip
def test_records_that_people_report_in_trackers(record: dict[str, Any], trained: list[str]) -> None:
    """docs/decisions/chats.md"""
    template, form = chat_template(BOOTSTRAP, None), form_of(record)
    assert form
    (document,) = parse_lines([orjson.dumps(record)], Shape(form=form, chat_template=template))
    assert isinstance(document, bytes)
    marked = as_read(document.decode(), template, "assistant")
    assert [marked.text[first:last] for first, last in marked.spans] == [f"{part}{END}" for part in trained]
    assert "None" not in marked.text


def test_a_model_without_a_template_has_the_default(checkpoint: Path) -> None:
    configure(checkpoint)
    assert template_in(checkpoint).template == DEFAULT
    files(checkpoint, {"own.jinja": "own" + SPAN})
    assert template_in(checkpoint, checkpoint / "own.jinja").template == "own" + SPAN


def test_several_templates_are_refused(checkpoint: Path) -> None:
    names = ["default", "tool_use"]
    configure(checkpoint, chat_template=[{"name": name, "template": SPAN} for name in names])
    with pytest.raises(InputError, match="has the chat templates default, tool_use; write the one"):
        template_in(checkpoint)
    with pytest.raises(InputError, match=r"chats.template: .*cannot be read"):
        template_in(checkpoint, checkpoint / "gone.jinja")


def test_tokens_that_end_generation_are_those_of_the_tokenizer_and_of_the_configuration(
    checkpoint: Path,
) -> None:
    configure(checkpoint, eos_token="<|n|>")
    assert describe_chats(checkpoint)["stops"] == ["<|n|>"]
    files(checkpoint, {"generation_config.json": json.dumps({"eos_token_id": [1, 257]})})
    assert describe_chats(checkpoint)["stops"] == ["<|e|>", "<|n|>"]
