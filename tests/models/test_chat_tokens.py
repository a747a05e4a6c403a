"""Ids and spans beside transformers, and gigatoken beside tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from dagster_divorder.chats.document import Chat, MarkedText, Pair, as_document
from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.models import chat_tokens
from dagster_divorder.models.bootstrap import train
from dagster_divorder.models.chat_templates import BOOTSTRAP, chat_template
from dagster_divorder.models.chat_tokens import COMPLETION, LAST, TRAINED, ChatEncoder
from dagster_divorder.models.tokenize import Engine, load_encoder
from tests.conftest import load_script

pytest.importorskip("trl")
masks = load_script(Path(__file__).parents[2] / "benchmarks/chats/masks.py")
CHATS = masks.conversations(12, seed=1)
MARKED = [name for name in masks.names() if name.endswith("_training")]
UNMARKED = ("cohere2", "deepseekv3", "gemma3", "llama3", "phi3_5", "qwen2_5", "qwen3", "qwen3_6", "smolvlm")
PAIRS = [
    *((name, "byte-level") for name in (*MARKED, *UNMARKED)),
    *((name, kind) for name in ("qwen3_training", "llama3_training") for kind in masks.TOKENIZERS),
]


@pytest.mark.parametrize(("name", "kind"), sorted(set(PAIRS)))
def test_ids_and_masks_are_those_of_transformers(name: str, kind: str) -> None:
    engine: Engine = "gigatoken" if kind.startswith("byte") else "tokenizers"
    counts, remarks = masks.compared(name, kind, CHATS, engine)
    # The others have reasoning or tools, which a template may leave out.
    assert counts["compared"] >= 3
    assert counts["ids"] == counts["compared"], remarks
    assert counts.get("masks", 0) + counts.get("ends", 0) == (
        counts["compared"] if masks.template(name).marked else 0
    )
    assert counts.get("prefix", 0) == counts.get("equal", 0), remarks


def documents() -> list[str]:
    chats = CHATS[:4]
    conversations = [
        *chats,
        Pair(chats[0], chats[1]),
        MarkedText("naïve 漢字😀 text", ((2, 5), (6, 9))),
        MarkedText("e\u0301 not composed", ((0, 3),)),
        Pair(MarkedText("ab", ((1, 2),)), MarkedText("a漢", ((1, 2),))),
    ]
    return [*(as_document(each).decode() for each in conversations), "a plain text 漢", "x"]


@pytest.fixture
def qwen(tmp_path: Path) -> tuple[Path, ChatTemplate]:
    own = masks.template("qwen3")
    masks.tokenizer(own, "byte-level").backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path, own


def test_every_engine_gives_the_same_arrays_whatever_the_division(
    qwen: tuple[Path, ChatTemplate], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_encoder(qwen[0], sample=["<|im_start|>user\na"], control=True).engine == "gigatoken"
    content = json.loads((qwen[0] / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "NFC"}
    (qwen[0] / "tokenizer.json").write_text(json.dumps(content))
    texts = pa.array(documents() * 2, pa.large_string())
    expected = ChatEncoder(*qwen, "tokenizers").encode(texts)
    assert expected["lengths"].sum() == len(expected["ids"])
    assert expected["spans"].sum() == len(expected["span_first"]) > len(texts)
    for engine in get_args(Engine):
        for size in (1 << 20, 100):
            monkeypatch.setattr("dagster_divorder.models.tokenize.BATCH_CHARACTERS", size)
            arrays = ChatEncoder(*qwen, engine).encode(texts)
            for name, array in expected.items():
                np.testing.assert_array_equal(arrays[name], array, f"{engine} {size} {name}")
                assert arrays[name].dtype == array.dtype == chat_tokens.ARRAYS[name]
        assert all(len(array) == 0 for array in ChatEncoder(*qwen, engine).encode(texts[:0]).values())


def test_kinds_of_spans(qwen: tuple[Path, ChatTemplate]) -> None:
    messages = tuple({"role": role, "content": "a"} for role in ("user", "assistant") * 3)
    chat = Chat(messages, (True, False, True), 3)
    arrays = ChatEncoder(*qwen, "gigatoken").encode(pa.array([as_document(chat).decode()], pa.large_string()))
    assert arrays["span_kind"].tolist() == [TRAINED, COMPLETION, TRAINED | COMPLETION | LAST]
    assert arrays["turns"].tolist() == [6]


def test_a_plain_text_beside_conversations_has_the_ids_that_it_has_alone(tmp_path: Path) -> None:
    train(["words of a text"] * 20, tmp_path, vocab_size=512, dim=2)
    spelled, template = "a text <|endoftext|> b", chat_template(BOOTSTRAP, None)
    pair = as_document(MarkedText(spelled, ((2, 6),))).decode()
    alone = load_encoder(tmp_path, "tokenizers").encode([spelled])[0].tolist()
    for engine in get_args(Engine):
        arrays = ChatEncoder(tmp_path, template, engine).encode(pa.array([spelled, pair], pa.large_string()))
        lengths = arrays["lengths"].tolist()
        assert arrays["ids"][: lengths[0]].tolist() == alone
        assert lengths[1] < lengths[0]  # where the end-of-text token is one
        assert arrays["span_last"][0] == lengths[0]
    assert chat_tokens.as_read(spelled, template, "assistant") == MarkedText(spelled, ((0, len(spelled)),))
