"""Tokenizers as transformers reads them, saved so that everything reads the same; and what transformers refuses. Both
engines beside each other, and the choice between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.errors import InputError
from dagster_divorder.models import tokenize
from dagster_divorder.models.checkpoint import CONFIG, TOKENIZER
from dagster_divorder.models.conformance import conformance_texts
from dagster_divorder.models.pretrained import CHOSEN, load_config, load_tokenizer, save_tokenizer
from dagster_divorder.models.tokenize import load_encoder, special_ids
from tests.conftest import examples
from tests.models.conftest import TOKENIZERS, WORDS

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
    "of Llama, with named control tokens, as of version 4": (
        "cl100k",
        {
            "config": LLAMA,
            "tokenizer_config": {
                **SAVED_BY_5["tokenizer_config"],
                "extra_special_tokens": {"image_token": "<|image|>"},
            },
        },
    ),
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
    config = json.loads((saved / CONFIG).read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    if files in (WHOLE, SAVED_BY_5):  # which say all
        assert (saved / TOKENIZER).read_bytes() == (directory / TOKENIZER).read_bytes()
        assert config == {**files["tokenizer_config"], **FAST}
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


RUN_BY_GIGATOKEN = ["gpt2", "cl100k", "added text tokens", "sentencepiece"]
OTHERS = ["wordpiece", "unknown splitting"]


@pytest.mark.parametrize("name", [*RUN_BY_GIGATOKEN, *OTHERS])
def test_gigatoken_is_chosen_where_it_runs_and_gives_the_reference_ids(make_tokenizer, name):
    directory = make_tokenizer(name)
    encoder = load_encoder(directory, sample=["some text", "more text"])
    fast = ("gigatoken", "gave the reference's ids on ")
    engine, reason = fast if name in RUN_BY_GIGATOKEN else ("tokenizers", "gigatoken cannot run it: ")
    assert encoder.engine == engine and encoder.reason.startswith(reason)
    assert encoder.vocab_size == load_encoder(directory, "tokenizers").vocab_size


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    directory = tmp_path_factory.mktemp("engines")
    TOKENIZERS["added text tokens"]().save(str(directory / "tokenizer.json"))
    return load_encoder(directory, engine="gigatoken"), load_encoder(directory, engine="tokenizers")


awkward = st.sampled_from(
    [" ", "\r\n", "'s", "<|endoftext|>", "<tool>", " mask", "\u0301", "\u200d", "漢", "12", "\x00"]
)
anything = st.lists(awkward | st.text(max_size=3), max_size=12).map("".join)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(anything, max_size=5))
def test_engines_agree_on_any_unicode(engines, texts):
    fast, slow = (encoder.encode(texts) for encoder in engines)
    assert (fast[0].tolist(), fast[1].tolist()) == (slow[0].tolist(), slow[1].tolist())


def test_an_arrow_array_is_read_where_it_lies(engines):
    texts = ["", "one two", "naïve 漢字", "", "<|endoftext|>", "last"]
    array = pa.array(["before", *texts, "after"], pa.large_string()).slice(1, len(texts))
    for encoder in engines:
        for found, expected in zip(encoder.encode(array), encoder.encode(texts), strict=True):
            assert_array_equal(found, expected)


@pytest.mark.parametrize("which", [0, 1], ids=["gigatoken", "tokenizers"])
def test_either_engine(engines, which, monkeypatch):
    encode = engines[which].encode
    ids, lengths = encode(["one two", "", "three"])
    assert (ids.dtype, lengths.dtype) == (np.uint16, np.int64)
    assert (len(lengths), lengths[1], lengths.sum()) == (3, 0, len(ids))
    assert [len(array) for array in encode([])] == [0, 0]
    # The division into calls does not matter.
    texts = [f"text {n} " * n for n in range(40)]
    together = encode(texts)[0]
    monkeypatch.setattr(tokenize, "BATCH_CHARACTERS", 100)
    assert together.tobytes() == encode(texts)[0].tobytes()
    assert together.tobytes() == b"".join(encode([text])[0].tobytes() for text in texts)
    with pytest.raises(InputError, match=r"text 1 of 2 holds a lone surrogate"):
        encode(["fine", "\ud800"])


def test_a_difference_anywhere_switches_the_engine(make_tokenizer, monkeypatch):
    directory = make_tokenizer("gpt2")
    honest = tokenize.gigatoken_encode

    def wrong_on_one_word(tokenizer):
        encode = honest(tokenizer)
        return lambda texts: encode([text.replace(b"zebra", b"horse") for text in texts])

    monkeypatch.setattr(tokenize, "gigatoken_encode", wrong_on_one_word)
    assert load_encoder(directory, sample=["no such animal"]).engine == "gigatoken"
    found = load_encoder(directory, sample=["fine", "a zebra"])
    assert (found.engine, found.reason) == ("tokenizers", "gigatoken differs from tokenizers on 'a zebra'")
    monkeypatch.setattr(tokenize, "SAMPLE_BYTES", 4)
    assert load_encoder(directory, sample=["fine", "a zebra"]).engine == "gigatoken"


def test_a_panic_of_gigatoken_is_not_the_end(make_tokenizer, monkeypatch):
    class PanicException(BaseException):
        """What Rust raises; no Exception."""

    import gigatoken

    def panic(*_):
        raise PanicException("index out of bounds")

    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", panic)
    found = load_encoder(make_tokenizer("gpt2"))
    assert (found.engine, found.reason) == (
        "tokenizers",
        "gigatoken cannot run it: panic: index out of bounds",
    )


def test_the_id_type_follows_the_largest_id(make_tokenizer):
    directory = make_tokenizer("gpt2")
    path = directory / "tokenizer.json"
    content = json.loads(path.read_bytes())
    for largest, dtype in ((65_535, np.uint16), (65_536, np.uint32)):
        content["model"]["vocab"][f"<{largest}>"] = largest
        path.write_text(json.dumps(content))
        encoder = load_encoder(directory, "tokenizers")
        assert (encoder.vocab_size, encoder.id_dtype) == (largest + 1, dtype)
        assert encoder.encode(["text"])[0].dtype == dtype


def test_a_file_that_cannot_be_loaded_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(InputError, match=r"tokenizer.json is not a tokenizer that tokenizers can load"):
        load_encoder(tmp_path)
