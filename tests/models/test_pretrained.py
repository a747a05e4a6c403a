"""Tokenizers as transformers reads them, saved so that everything reads the same; and what transformers refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import CONFIG, TOKENIZER
from dagster_divorder.models.conformance import conformance_texts
from dagster_divorder.models.pretrained import CHOSEN, load_config, load_tokenizer, save_tokenizer
from dagster_divorder.models.tokenize import load_encoder, special_ids
from tests.models.conftest import WORDS

Make = Callable[[str], Path]
END, START = "<|endoftext|>", "<|im_start|>"
TOOLS = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]

LLAMA = {"model_type": "llama"}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
CONTROL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
WHOLE = {
    "config": LLAMA,
    "tokenizer_config": {
        **FAST,
        "eos_token": END,
        "pad_token": None,
        "model_max_length": 64,
        "added_tokens_decoder": {"0": {"content": END, **CONTROL}, "1": {"content": START, **CONTROL}},
    },
    "special_tokens_map": {"eos_token": END},
}
SAVED_BY_5 = {
    "config": LLAMA,
    "tokenizer_config": {
        "tokenizer_class": "TokenizersBackend",
        "backend": "tokenizers",
        "is_local": True,
        "local_files_only": True,
        "eos_token": END,
        "extra_special_tokens": [START],
    },
}

SAVED: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "tokenizer.json alone": ("cl100k", {}),
    "a splitting that gigatoken has not": ("unknown splitting", {}),
    "truncation and padding": ("truncating and padding", {}),
    "no class, but a model's type": ("cl100k", {"config": {"model_type": "olmo2"}}),
    "a class with its own splitting": ("gpt2", {"tokenizer_config": {"tokenizer_class": "Qwen2Tokenizer"}}),
    "a class with its own special tokens": (
        "gpt2",
        {"tokenizer_config": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}},
    ),
    "sentencepiece": (
        "sentencepiece",
        {"tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}},
    ),
    "wordpiece": ("wordpiece", {"tokenizer_config": FAST}),
    "tokens that only the configuration has": (
        "cl100k",
        {
            "tokenizer_config": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|gone|>",
                "pad_token": {"content": START, "__type": "AddedToken"},
            }
        },
    ),
    "of Llama, whole": ("cl100k", WHOLE),
    "of Llama, saved by transformers 5": ("cl100k", SAVED_BY_5),
    "of Llama, with a further control token": (
        "cl100k",
        {
            "config": LLAMA,
            "tokenizer_config": {**SAVED_BY_5["tokenizer_config"], "extra_special_tokens": ["<|new|>"]},
        },
    ),
    "of Llama, truncating": ("truncating and padding", {"config": LLAMA, "tokenizer_config": FAST}),
    "of Llama, with tokens of the configuration": (
        "gpt2",
        {"config": LLAMA, "tokenizer_config": {**FAST, "eos_token": "<|gone|>", "pad_token": END}},
    ),
    "of Llama, with a token that is control in the configuration alone": (
        "added text tokens",
        {"config": LLAMA, "tokenizer_config": {**FAST, "eos_token": "<tool>"}},
    ),
    "of Llama, with other flags": (
        "added text tokens",
        {
            "config": LLAMA,
            "tokenizer_config": {**FAST, "added_tokens_decoder": {"402": {"content": "<tool>", **CONTROL}}},
        },
    ),
    "several chat templates": ("gpt2", {"tokenizer_config": {"chat_template": TOOLS, "image_token": START}}),
}


@pytest.mark.parametrize(("kind", "files"), SAVED.values(), ids=SAVED)
def test_a_saved_tokenizer_is_the_one_of_transformers(
    make_tokenizer: Make, tmp_path: Path, kind: str, files: dict[str, dict[str, Any]]
) -> None:
    from transformers import AutoTokenizer

    directory, saved = make_tokenizer(kind), tmp_path / "saved"
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    saved.mkdir()
    save_tokenizer(directory, saved)
    assert {path.name for path in saved.iterdir()} == {TOKENIZER, CONFIG}
    # Older versions of transformers know no other name of the class.
    assert json.loads((saved / CONFIG).read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    theirs, again = AutoTokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(saved)
    texts = [*conformance_texts(theirs.get_added_vocab()), WORDS]
    expected = theirs(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert again(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"] == expected
    assert again(texts)["input_ids"] == theirs(texts, truncation=False, padding=False)["input_ids"]
    assert dict(again.special_tokens_map) == dict(theirs.special_tokens_map)
    assert again.chat_template == theirs.chat_template
    for engine in ("auto", "tokenizers"):
        ids, lengths = load_encoder(saved, engine).encode(texts)
        assert lengths.tolist() == [len(of_text) for of_text in expected]
        assert ids.tolist() == [number for of_text in expected for number in of_text]
    names = {name: getattr(theirs, f"{name}_token_id") for name in ("eos", "bos", "pad")}
    assert special_ids(saved) == names


@pytest.mark.parametrize("files", [WHOLE, SAVED_BY_5], ids=["4", "5"])
def test_a_tokenizer_whose_file_says_all_is_copied(
    make_tokenizer: Make, tmp_path: Path, files: dict[str, dict[str, Any]]
) -> None:
    directory, saved = make_tokenizer("cl100k"), tmp_path / "saved"
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    saved.mkdir()
    save_tokenizer(directory, saved)
    assert (saved / TOKENIZER).read_bytes() == (directory / TOKENIZER).read_bytes()
    assert json.loads((saved / CONFIG).read_text()) == {**files["tokenizer_config"], **FAST}


@pytest.mark.parametrize(("model", "named"), CHOSEN)
def test_the_class_is_the_one_that_transformers_chooses(make_tokenizer: Make, model: str, named: str) -> None:
    from transformers import AutoTokenizer

    directory = make_tokenizer("gpt2")
    (directory / "config.json").write_text(json.dumps({"model_type": model}))
    (directory / CONFIG).write_text(json.dumps({"tokenizer_class": named}))
    assert type(load_tokenizer(directory)) is type(AutoTokenizer.from_pretrained(directory))


def test_dropout_is_off(make_tokenizer: Make, tmp_path: Path) -> None:
    directory = make_tokenizer("gpt2")
    expected = load_encoder(directory).encode([WORDS])[0].tolist()
    content = json.loads((directory / TOKENIZER).read_text())
    content["model"]["dropout"] = 0.9
    (directory / TOKENIZER).write_text(json.dumps(content))
    save_tokenizer(directory, tmp_path)
    for engine in ("gigatoken", "tokenizers"):
        assert load_encoder(tmp_path, engine).encode([WORDS])[0].tolist() == expected


def test_what_transformers_cannot_read_is_refused_in_a_sentence(make_tokenizer: Make, tmp_path: Path) -> None:
    directory = make_tokenizer("gpt2")
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (directory / CONFIG).write_text(json.dumps(own))
    with pytest.raises(InputError, match="comes with code of its own, which is never run"):
        load_tokenizer(directory)
    (directory / "config.json").write_text('{"model_type": "nobodys"}')
    with pytest.raises(InputError, match=r"transformers .* cannot load .*gpt2"):
        load_config(directory)
