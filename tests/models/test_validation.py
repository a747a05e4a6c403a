"""The loss by source is that of one document at a time, whatever the windows, batches and special tokens."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from dagster_divorder import loss_by_source
from dagster_divorder.errors import InputError
from dagster_divorder.models.validation import ALL, EQUAL, SPANS
from tests.tiny_models import AFFIXES, CONTEXT, EOS, TEXTS, Folders, each_made_once, save_checkpoint

KINDS = ["llama", "gpt2"]
LONG = " ".join(TEXTS[::5])
ROWS = [
    *(("news", text) for text in TEXTS[:8]),
    ("books", LONG),
    ("books", f"spelled out {EOS} ünïcödé 漢字"),
    *(("code", text[:9]) for text in TEXTS[8:12]),
    ("empty", ""),
    (None, "no source"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    def make(folder: Path, kind: str) -> None:
        config = AutoConfig.from_pretrained(save_checkpoint(folder, kind))
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)

    return each_made_once(tmp_path_factory.mktemp("causal"), make)


@pytest.fixture(scope="module")
def heldout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("output")
    sources, texts = zip(*ROWS, strict=True)
    table = pa.table({"source": pa.array(sources, pa.string()), "text": pa.array(texts, pa.large_string())})
    pq.write_table(table, folder / "heldout.parquet")
    return folder


def slow_loss(model: Any, ids: list[int], context: int, first: int = 0) -> float:
    """The sum of the losses of the ids from `first` on, window by window."""
    loss, begin = 0.0, 0
    while begin < len(ids) - 1:
        window = torch.tensor([ids[begin : begin + context]])
        labels = window.clone()
        labels[:, : max(first - begin, 0)] = -100
        with torch.no_grad():
            scores = model(input_ids=window).logits[0, :-1]
        loss += float(torch.nn.functional.cross_entropy(scores, labels[0, 1:], reduction="sum"))
        begin += context - 1
    return loss


def one_at_a_time(directory: Path, context: int) -> dict[str, list[float]]:
    """Documents, predicted tokens, bytes and sum of losses of each source."""
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    before = tokenizer.encode("").ids[: len(AFFIXES[directory.name][0])]
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0.0])
    for source, text in ROWS:
        ids = before + tokenizer.encode(text, add_special_tokens=False).ids
        loss = slow_loss(model, ids, context)
        for at, number in enumerate((1, max(len(ids) - 1, 0), len(text.encode()), loss)):
            sums[source or ""][at] += number
    return dict(sums)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("context", "batch_tokens"), [(None, 8192), (7, 30)])
def test_losses_are_those_of_one_document_at_a_time(
    checkpoint: Folders, heldout: Path, kind: str, context: int | None, batch_tokens: int
) -> None:
    directory = checkpoint(kind)
    model = AutoModelForCausalLM.from_pretrained(directory)
    found = loss_by_source(model, heldout, context=context, batch_tokens=batch_tokens)
    expected = one_at_a_time(directory, context or CONTEXT)
    rows = {row.pop("source"): row for row in found.to_dict("records")}
    assert list(rows) == [*sorted(expected), EQUAL, ALL]
    table = np.array([expected[name] for name in sorted(expected)])
    for name, (documents, tokens, size, loss) in {**expected, ALL: table.sum(axis=0)}.items():
        row = rows[name]
        assert [row["documents"], row["tokens"], row["bytes"]] == [documents, tokens, size]
        if tokens:
            assert row["loss"] == pytest.approx(loss / tokens, rel=1e-5)
            assert row["bits_per_byte"] == pytest.approx(loss / size / np.log(2), rel=1e-5)
    some = table[:, 1] > 0
    assert rows[EQUAL]["loss"] == pytest.approx((table[some, 3] / table[some, 1]).mean(), rel=1e-5)


def test_of_conversations_only_what_is_trained_on_counts(checkpoint: Folders, tmp_path: Path) -> None:
    directory = checkpoint("llama")
    rows = [
        ("a", f"<|user|>{asked}{EOS}", f"{said}{EOS}")
        for asked, said in zip(TEXTS[::2], TEXTS[1::2], strict=True)
    ]
    rows.append(("b", "nothing is trained on", ""))
    spans = [[{"first": len(asked), "last": len(asked + said)}] if said else [] for _, asked, said in rows]
    table = {
        "source": [source for source, _, _ in rows],
        "text": [asked + said for _, asked, said in rows],
        "trained": pa.array(spans, SPANS),
    }
    pq.write_table(pa.table(table), tmp_path / "heldout.parquet")
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    found = loss_by_source(model, tmp_path, context=CONTEXT).set_index("source")
    tokenizer, loss, tokens = Tokenizer.from_file(str(directory / "tokenizer.json")), 0.0, 0
    for _, asked, said in rows[:-1]:
        # A control token ends the question, so that no token holds parts of both.
        prompt, answer = (tokenizer.encode(part, add_special_tokens=False).ids for part in (asked, said))
        assert answer[-1] == tokenizer.token_to_id(EOS)
        loss += slow_loss(model, prompt + answer, CONTEXT, first=len(prompt))
        tokens += len(answer)
    assert found.loc["a", "tokens"] == found.loc[ALL, "tokens"] == tokens
    assert found.loc["a", "bytes"] == sum(len(said.encode()) for _, _, said in rows)
    assert found.loc["a", "loss"] == pytest.approx(loss / tokens, rel=1e-5)
    assert found.loc["b", "tokens"] == 0 and np.isnan(found.loc["b", "loss"])


def test_a_model_in_memory_is_left_as_it_was(checkpoint: Folders, heldout: Path) -> None:
    directory = checkpoint("llama")
    model = AutoModelForCausalLM.from_pretrained(directory).train()
    found = loss_by_source(model, heldout / "heldout.parquet")
    assert model.training
    unnamed = AutoConfig.from_pretrained(directory)
    unnamed.name_or_path = ""
    named: Any = AutoModelForCausalLM.from_config(unnamed)
    with pytest.raises(InputError, match="give the directory of the model's as tokenizer"):
        loss_by_source(named, heldout)
    named.load_state_dict(model.state_dict())
    assert found.equals(loss_by_source(named, heldout, tokenizer=directory))


def test_what_cannot_be_measured_is_refused(checkpoint: Folders, heldout: Path, tmp_path: Path) -> None:
    directory = checkpoint("gpt2")
    model = AutoModelForCausalLM.from_pretrained(directory)
    with pytest.raises(InputError, match="a window of 1 tokens predicts none"):
        loss_by_source(model, heldout, batch_tokens=1)
    with pytest.raises(InputError, match="expected the folder of an output"):
        loss_by_source(model, tmp_path)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has no column 'source'"):
        loss_by_source(model, tmp_path / "a.parquet")
    nothing = {"source": pa.array([], pa.string()), "text": pa.array([], pa.string())}
    pq.write_table(pa.table(nothing), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="holds no document"):
        loss_by_source(model, tmp_path / "b.parquet")
    small = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory, vocab_size=100))
    with pytest.raises(InputError, match="only 100 rows"):
        loss_by_source(small, heldout, tokenizer=directory)
