"""The tokenizer beside an export, read by transformers as a user reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, pre_tokenizers

from dagster_divorder.chats.document import Chat, as_document
from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.models import export_tokenizer
from dagster_divorder.models.bootstrap import train
from dagster_divorder.models.chat_tokens import encoded_chats
from dagster_divorder.models.conformance import conformance_texts
from dagster_divorder.models.export_tokenizer import CONFIG, SPECIAL_TOKENS, choose_form, tokenizer_files
from dagster_divorder.models.tokenize import load_encoder, special_ids
from tests.models.conftest import WORDS

TEXTS = [WORDS, "in 2023, 650841823 trees", " two  spaces\n"]
TEMPLATE = "{{ messages[0]['content'] }}"

Make = Callable[[str], Path]

pytestmark = pytest.mark.slow


def files_of(directory: Path) -> tuple[dict[str, bytes], str]:
    special = {name: number for name, number in special_ids(directory).items() if number is not None}
    form, note = choose_form(directory, load_encoder(directory), special, TEXTS)
    return tokenizer_files(directory, form), note


def read_by_transformers(files: dict[str, bytes], folder: Path) -> Any:
    from transformers import AutoTokenizer

    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return AutoTokenizer.from_pretrained(folder)


def stored_ids(directory: Path) -> list[int]:
    return load_encoder(directory).encode(TEXTS)[0].tolist()


def ids_of(tokenizer: Any) -> list[int]:
    return [number for text in TEXTS for number in tokenizer(text, add_special_tokens=False)["input_ids"]]


def with_prefix_space(directory: Path) -> None:
    path = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.save(str(path))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        # OLMo 2 and Granite: transformers chooses another class where there is no config.json.
        ("cl100k", {"tokenizer_class": "GPT2Tokenizer"}),
        ("cl100k", {"tokenizer_class": "Qwen2Tokenizer"}),
        ("sentencepiece", {"tokenizer_class": "CodeLlamaTokenizer", "unk_token": "<unk>"}),
        ("prefix space", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}),
        (
            "gpt2",
            {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}},
        ),
    ],
    ids=["olmo 2", "qwen", "code llama", "prefix space", "code of its own"],
)
def test_a_class_that_gives_other_ids_is_replaced(
    make_tokenizer: Make, tmp_path: Path, name: str, said: dict[str, Any]
) -> None:
    directory = make_tokenizer("gpt2" if name == "prefix space" else name)
    if name == "prefix space":
        with_prefix_space(directory)
    end = "</s>" if name == "sentencepiece" else "<|endoftext|>"
    about = {"eos_token": end, "model_max_length": 77, "chat_template": TEMPLATE, **said}
    (directory / CONFIG).write_text(json.dumps(about))
    (directory / SPECIAL_TOKENS).write_text(json.dumps({"pad_token": {"content": end, "lstrip": False}}))
    files, note = files_of(directory)
    assert "names the class PreTrainedTokenizerFast" in note
    tokenizer = read_by_transformers(files, tmp_path / "export")
    assert ids_of(tokenizer) == stored_ids(directory)
    assert tokenizer.eos_token == tokenizer.pad_token == end
    assert tokenizer.unk_token == said.get("unk_token")
    assert tokenizer.model_max_length == 77
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False) == "hello"


@pytest.mark.parametrize(
    "name", ["gpt2", "added text tokens", "sentencepiece", "wordpiece", "unknown splitting"]
)
def test_files_that_give_the_ids_are_the_checkpoints_own(
    make_tokenizer: Make, tmp_path: Path, name: str
) -> None:
    directory = make_tokenizer(name)
    (directory / CONFIG).write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    files, note = files_of(directory)
    assert note == ""
    assert files == {name: (directory / name).read_bytes() for name in ("tokenizer.json", CONFIG)}
    assert ids_of(read_by_transformers(files, tmp_path / "export")) == stored_ids(directory)


def test_another_end_of_text_is_noticed(make_tokenizer: Make, tmp_path: Path) -> None:
    """GPT2Tokenizer has one of its own where no file names one."""
    directory = make_tokenizer("gpt2")
    (directory / CONFIG).write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (directory / "config.json").write_text('{"eos_token_id": 1}')
    files, note = files_of(directory)
    assert "GPT2Tokenizer has 0 as eos, not 1" in note
    assert read_by_transformers(files, tmp_path / "export").eos_token_id in (None, 1)


def test_dropout_is_off_beside_an_export(make_tokenizer: Make, tmp_path: Path) -> None:
    directory = make_tokenizer("gpt2")
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["dropout"] = 0.5
    path.write_text(json.dumps(content))
    files, note = files_of(directory)
    assert note == ""
    assert ids_of(read_by_transformers(files, tmp_path / "export")) == stored_ids(directory)


def test_no_tokenizer_is_better_than_another_one(
    make_tokenizer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_tokenizer("cl100k")
    (directory / CONFIG).write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    monkeypatch.setattr(export_tokenizer, "PLAIN_CLASS", "Qwen2Tokenizer")
    files, note = files_of(directory)
    assert files == {}
    assert "no tokenizer is written beside the exports" in note
    assert "GPT2Tokenizer makes " in note


@pytest.mark.parametrize("said", [{}, {"chat_template": "another"}], ids=["no template", "another one"])
@pytest.mark.parametrize(
    "with_tools", [None, "tools {{ tools | tojson }}" + TEMPLATE], ids=["one", "for tools"]
)
def test_the_template_that_rendered_conversations_lies_beside_them(
    make_tokenizer: Make, tmp_path: Path, said: dict[str, str], with_tools: str | None
) -> None:
    directory = make_tokenizer("gpt2")
    (directory / CONFIG).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **said}))
    (directory / "chat_template.jinja").write_text("a third")
    jinja = TEMPLATE + "{{ tools | tojson }}{{ strftime_now('%Y') }}{{ messages[-1]['content'] }}"
    template = ChatTemplate(jinja, {}, (), (), with_tools and with_tools + "{{ messages[-1]['content'] }}")
    messages = ({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "name": None})
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    documents = [as_document(Chat(messages, (True,), 1, tools)).decode() for tools in (None, (tool,))]
    chats = encoded_chats(pa.array(documents, pa.large_string()), directory, template)
    assert encoded_chats(pa.array(TEXTS, pa.large_string()), directory, template) == []
    compared = directory, load_encoder(directory), dict[str, int](), TEXTS, template
    assert choose_form(*compared, chats) == ("own", "")
    tokenizer = read_by_transformers(tokenizer_files(directory, "own", template), tmp_path / "export")
    for tools in (None, [tool]):
        text = tokenizer.apply_chat_template(list(messages), tools=tools, tokenize=False)
        assert text == template.render(messages, tools).text
    form, note = choose_form(*compared, [(*chats[0][:2], [1]), *chats[1:]])
    assert form == "none"
    assert "its chat template gives" in note


def test_transformers_reads_the_bootstrap_tokenizer(tmp_path: Path) -> None:
    """Its files lie beside exports as they are, and its folder is what `load_results(...).base_model` names."""
    from transformers import AutoTokenizer

    directory = tmp_path / "model"
    train(TEXTS, directory, vocab_size=400, dim=2)
    files, note = files_of(directory)
    assert note == ""
    assert files == {name: (directory / name).read_bytes() for name in ("tokenizer.json", CONFIG)}
    texts = [*conformance_texts([]), *TEXTS]
    for folder in (directory, read_by_transformers(files, tmp_path / "export").name_or_path):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        found = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert [number for ids in found for number in ids] == load_encoder(directory).encode(texts)[
            0
        ].tolist()
        assert tokenizer.eos_token_id == special_ids(directory)["eos"]
