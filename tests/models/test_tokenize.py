"""Both engines against the bare `tokenizers` library, and the choice between them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from tokenizers import Tokenizer

from dagster_divorder.errors import InputError
from dagster_divorder.models import tokenize
from dagster_divorder.models.conformance import SPELLED, conformance_texts
from dagster_divorder.models.tokenize import SPECIALS, load_encoder, load_reference, special_ids
from tests.conftest import examples
from tests.models.conftest import WORDS

FAST = ["gpt2", "cl100k", "added text tokens", "truncating and padding", "sentencepiece"]
SLOW = ["wordpiece", "unknown splitting"]


def expected_ids(directory, texts):
    """One text at a time through the plain library."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


@pytest.mark.parametrize("name", FAST)
def test_gigatoken_is_chosen_where_it_gives_the_reference_ids(make_tokenizer, name):
    directory = make_tokenizer(name)
    encoder = load_encoder(directory, sample=["some text", "more text"])
    assert encoder.engine == "gigatoken"
    assert encoder.reason.startswith("gave the reference's ids on ")


@pytest.mark.parametrize("name", SLOW)
def test_tokenizers_runs_what_gigatoken_cannot(make_tokenizer, name):
    directory = make_tokenizer(name)
    encoder = load_encoder(directory)
    assert encoder.engine == "tokenizers"
    assert encoder.reason.startswith("gigatoken cannot run it: ")
    with pytest.raises(InputError, match="gigatoken cannot run the tokenizer of"):
        load_encoder(directory, engine="gigatoken")


@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
@pytest.mark.parametrize("name", FAST + SLOW)
def test_ids_are_those_of_the_library_on_the_conformance_texts(make_tokenizer, name, engine):
    directory = make_tokenizer(name)
    texts = conformance_texts(["<|endoftext|>", "<tool>"])
    ids, lengths = load_encoder(directory, engine=engine).encode(texts)
    expected = expected_ids(directory, texts)
    assert lengths.tolist() == [len(each) for each in expected]
    assert ids.tolist() == [token for each in expected for token in each]


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


def test_special_tokens_spelled_out_are_text_and_added_text_tokens_are_not(engines):
    for encoder in engines:
        ids, lengths = encoder.encode(["<|endoftext|>", "<|im_start|>user", "<tool>"])
        assert lengths[0] > 1
        assert not {0, 1} & set(ids.tolist())
        assert lengths[2] == 1


@pytest.mark.parametrize("which", [0, 1], ids=["gigatoken", "tokenizers"])
class TestEitherEngine:
    def test_shapes_and_types(self, engines, which):
        ids, lengths = engines[which].encode(["one two", "", "three"])
        assert (ids.dtype, lengths.dtype) == (np.uint16, np.int64)
        assert (len(lengths), lengths[1], lengths.sum()) == (3, 0, len(ids))

    @pytest.mark.parametrize("count", [0, 10_000])
    def test_empty_texts(self, engines, which, count):
        ids, lengths = engines[which].encode([""] * count)
        assert (len(ids), ids.dtype, len(lengths), lengths.any()) == (0, np.uint16, count, False)

    def test_the_division_into_calls_does_not_matter(self, engines, which, monkeypatch):
        texts = [f"text {n} " * n for n in range(40)]
        together = engines[which].encode(texts)[0]
        monkeypatch.setattr(tokenize, "BATCH_CHARACTERS", 100)
        assert together.tobytes() == engines[which].encode(texts)[0].tobytes()
        assert together.tobytes() == b"".join(engines[which].encode([text])[0].tobytes() for text in texts)

    def test_a_lone_surrogate_is_refused_with_its_place(self, engines, which):
        with pytest.raises(InputError, match=r"text 1 of 2 holds a lone surrogate"):
            engines[which].encode(["fine", "\ud800"])


@pytest.mark.slow
def test_a_document_of_fifty_megabytes(engines):
    text = "The quick brown fox didn't jump over 13 lazy dogs.\n" * 1_000_000
    one = engines[0].encode([text[:51]])[0]
    ids, lengths = engines[0].encode([text])
    assert lengths.tolist() == [len(one) * 1_000_000]
    assert np.array_equal(ids.reshape(-1, len(one)), np.broadcast_to(one, (1_000_000, len(one))))


@pytest.mark.slow
def test_tokenising_imports_neither_torch_nor_numba(make_tokenizer):
    script = (
        "import sys\nfrom dagster_divorder.models.tokenize import load_encoder\n"
        "load_encoder(sys.argv[1]).encode(['text'])\nprint(*sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(make_tokenizer("gpt2"))],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(run.stdout.split())
    assert loaded.isdisjoint({"torch", "transformers", "numba", "scipy"})
    assert {"tokenizers", "gigatoken"} <= loaded


def test_a_difference_anywhere_switches_the_engine(make_tokenizer, monkeypatch):
    directory = make_tokenizer("gpt2")
    honest = tokenize.gigatoken_encode

    def wrong_on_one_word(content):
        encode = honest(content)
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


CONFIG, MAP, GENERATION = "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"
END, START = "<|endoftext|>", "<|im_start|>"  # of the ids 0 and 1


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({CONFIG: {"_token": END}}, 0),
        ({CONFIG: {"_token": {"content": START, "__type": "AddedToken"}}}, 1),
        ({MAP: {"_token": START}, "config.json": {"_token_id": 0}}, 1),
        ({MAP: {"_token": {"content": START, "lstrip": False}}}, 1),
        # transformers reads the map only where added tokens are not listed in the configuration.
        ({CONFIG: {"_token": END}, MAP: {"_token": START}}, 1),
        ({CONFIG: {"_token": END, "added_tokens_decoder": {}}, MAP: {"_token": START}}, 0),
        ({CONFIG: {"_token": None}, "config.json": {"_token_id": 1}}, 1),
        ({CONFIG: {"_token": ""}, "config.json": {"_token_id": 1}}, 1),
        ({GENERATION: {"_token_id": [1, 0]}, "config.json": {"_token_id": 0}}, 1),
        ({GENERATION: {"_token_id": []}, "config.json": {"_token_id": 0}}, 0),
        ({"config.json": {"_token_id": None}}, None),
        ({"config.json": {"_token_id": -1}}, None),
        # A default of the model's class, which is an ordinary token here.
        ({"config.json": {"_token_id": 2}}, None),
        ({GENERATION: {"_token_id": 2}, "config.json": {"_token_id": 1}}, 1),
        # What a name goes before is not read.
        ({CONFIG: {"_token": END}, "config.json": {"_token_id": 5000}}, 0),
    ],
)
def test_the_ids_of_special_tokens(make_tokenizer, special, files, expected):
    directory = make_tokenizer("gpt2")
    name_files(directory, special, files)
    assert special_ids(directory)[special] == expected


@pytest.mark.parametrize("special", SPECIALS)
@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({CONFIG: {"_token": "<|im_end|>"}, "config.json": {"_token_id": 1}}, "'<|im_end|>', which "),
        ({MAP: {"_token": "</s>"}}, "'</s>', which "),
        ({CONFIG: {"_token": True}}, "true; expected a token, or null"),
        ({CONFIG: {"_token": {"lstrip": True}}}, '{"lstrip": true}; expected a token, or null'),
        ({CONFIG: {"_token": 7}}, "7; expected a token, or null"),
        ({"config.json": {"_token_id": 400}}, "400, which no token of "),
        ({GENERATION: {"_token_id": [128001, 0]}}, "128001, which no token of "),
        ({"config.json": {"_token_id": -2}}, "expected an id from 0 to 313: "),
        ({"config.json": {"_token_id": "1"}}, '"1"; expected the id of a token, a whole number'),
        ({"config.json": {"_token_id": True}}, "true; expected the id of a token"),
        ({"config.json": {"_token_id": 1.0}}, "1.0; expected the id of a token"),
        ({"config.json": {"_token_id": [[1]]}}, "[[1]]; expected the id of a token"),
    ],
)
def test_special_tokens_that_are_not_there_are_named(make_tokenizer, special, files, fault):
    directory = make_tokenizer("gpt2")
    name_files(directory, special, files)
    with pytest.raises(InputError, match=re.escape(fault)) as error:
        special_ids(directory)
    file, (key,) = next((file, [f"{special}{key}" for key in content]) for file, content in files.items())
    assert f"{directory / file} gives {key} " in str(error.value)


def name_files(directory, special, files):
    """Write files whose keys that begin with _ are of one special token."""
    for file, content in files.items():
        own = {f"{special}{key}" if key.startswith("_") else key: value for key, value in content.items()}
        (directory / file).write_text(json.dumps(own))


@pytest.mark.parametrize("name", FAST)
def test_gigatoken_alone_knows_the_vocabulary_that_the_reference_knows(make_tokenizer, name):
    directory = make_tokenizer(name)
    fast, slow = (load_encoder(directory, engine) for engine in ("gigatoken", "tokenizers"))
    assert fast.vocab_size == slow.vocab_size


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_bpe_dropout_is_off(make_tokenizer, engine):
    directory = make_tokenizer("gpt2")
    path, expected = directory / "tokenizer.json", load_encoder(directory, engine)
    assert expected.note == ""
    content = json.loads(path.read_text())
    content["model"]["dropout"] = 0.9
    path.write_text(json.dumps(content))
    dropping = load_encoder(directory, engine)
    assert "BPE dropout 0.9" in dropping.note
    for found, same in zip(dropping.encode([WORDS] * 3), expected.encode([WORDS] * 3), strict=True):
        assert_array_equal(found, same)
    assert load_reference(directory).encode(WORDS).ids == expected.encode([WORDS])[0].tolist()


@pytest.mark.slow
def test_the_id_type_follows_the_largest_id(make_tokenizer):
    directory = make_tokenizer("gpt2")
    path = directory / "tokenizer.json"
    for largest, dtype in ((65_535, np.uint16), (65_536, np.uint32)):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.add_tokens([f"<{largest} {n}>" for n in range(largest + 1 - tokenizer.get_vocab_size())])
        tokenizer.save(str(path))
        encoder = load_encoder(directory, "tokenizers")
        assert (encoder.vocab_size, encoder.id_dtype) == (largest + 1, dtype)
        assert encoder.encode(["text"])[0].dtype == dtype


def test_files_that_cannot_be_loaded_are_named(make_tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"tokenizer.json is not readable JSON"):
        load_encoder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(InputError, match=r"tokenizer.json is not a tokenizer that tokenizers can load"):
        load_encoder(tmp_path)
    with pytest.raises(InputError, match="engine is 'sentencepiece'; expected auto, gigatoken, tokenizers"):
        load_encoder(make_tokenizer("gpt2"), "sentencepiece")


def test_many_added_tokens_are_sampled():
    few, many = (len(conformance_texts([f"<{n}>" for n in range(count)])) for count in (0, 10_000))
    assert 6 * SPELLED / 2 < many - few <= 6 * SPELLED
