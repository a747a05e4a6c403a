"""Both engines beside each other, and the choice between them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.errors import InputError
from dagster_divorder.models import tokenize
from dagster_divorder.models.tokenize import load_encoder
from tests.conftest import examples

FAST = ["gpt2", "cl100k", "added text tokens", "sentencepiece"]
SLOW = ["wordpiece", "unknown splitting"]


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_gigatoken_is_chosen_where_it_runs_and_gives_the_reference_ids(make_tokenizer, name):
    directory = make_tokenizer(name)
    encoder = load_encoder(directory, sample=["some text", "more text"])
    fast = ("gigatoken", "gave the reference's ids on ")
    engine, reason = fast if name in FAST else ("tokenizers", "gigatoken cannot run it: ")
    assert encoder.engine == engine and encoder.reason.startswith(reason)
    assert encoder.vocab_size == load_encoder(directory, "tokenizers").vocab_size


@pytest.fixture(scope="module")
def engines(tmp_path_factory, save_tokenizer):
    directory = tmp_path_factory.mktemp("engines")
    save_tokenizer("added text tokens", directory)
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
