"""Exports of conversations: the loss mask in the files and in the reader is that of the stored documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dagster_divorder import run_all
from dagster_divorder.corpus.peek import recognised
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.models.chat_tokens import SELECTED
from dagster_divorder.readers.export import read_export_manifest
from dagster_divorder.settings import Settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.output import exports
from dagster_divorder.torch import SequenceStream
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
TOPICS = ("bread dough oven flour", "star orbit moon planet", "sail rope wind wave")


def chats(count: int) -> list[dict[str, Any]]:
    """Conversations of one to four questions and answers."""
    random = np.random.default_rng(0)
    records = []
    for number in range(count):
        words = TOPICS[number % len(TOPICS)].split()
        said = [
            {"role": role, "content": " ".join(random.choice(words, random.integers(2, 30)))}
            for _ in range(number % 4 + 1)
            for role in ("user", "assistant")
        ]
        records.append({"messages": said, "number": number})
    return records


@pytest.fixture
def make(tmp_path: Path, make_settings: Make) -> Make:
    """Settings with exports below tmp_path, of conversations and plain texts."""
    write_jsonl(tmp_path / "chats.jsonl", chats(40))
    write_jsonl(tmp_path / "docs.jsonl", topic_records(3))

    def made(*formats: str, texts: bool = True, **sections: Any) -> Settings:
        exports = {"formats": formats, "path": tmp_path / "exports", **sections.pop("exports", {})}
        inputs = [{"paths": [str(tmp_path / name)]} for name in ("chats.jsonl", "docs.jsonl")[: 1 + texts]]
        return recognised(make_settings(**{"exports": exports, "input": inputs, **sections}))

    return made


def slow_labels(settings: Settings) -> list[list[int]]:
    """The labels of every row, epoch after epoch: of each token its id, or -100 where it is not trained on."""
    run = open_run(settings)
    packed, documents, wanted = load_packed(run), [], SELECTED[settings.chats.train_on]
    for _, arrays in run.files("token_counts").each(run.view.fragments):
        tokens, spans = (
            iter(arrays["ids"].tolist()),
            iter(zip(*(arrays[f"span_{name}"].tolist() for name in ("first", "last", "kind")), strict=True)),
        )
        for length, count in zip(arrays["lengths"].tolist(), arrays["spans"].tolist(), strict=True):
            ids = [next(tokens) for _ in range(length)]
            trained = [False] * length
            for first, last, kind in [next(spans) for _ in range(count)]:
                if kind & wanted == wanted:
                    trained[first:last] = [True] * (last - first)
            labels = [token if is_trained else -100 for token, is_trained in zip(ids, trained, strict=True)]
            documents.append([*labels, 0 if trained[-1] else -100])
    rows = []
    for sequence in load_sequence_order(run).reshape(-1).tolist():
        row: list[int] = []
        for at in range(packed.indptr[sequence], packed.indptr[sequence + 1]):
            document = documents[packed.document[at]]
            row += document[packed.start[at] : packed.start[at] + packed.length[at]]
        rows.append(row)
    return rows


def test_the_tokenizer_beside_an_export_renders_what_was_exported(make: Make, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "t.jinja").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}")
    chats_read = {"template": tmp_path / "t.jinja"}
    settings = make("parquet", texts=False, sequence={"length": 512}, chats=chats_read)
    run_all(settings, Silent())
    rows = pq.read_table(tmp_path / "exports/parquet").to_pylist()
    exported = {
        tuple(row["input_ids"][end - length : end])
        for row in rows
        for length, end in zip(row["seq_lengths"], np.cumsum(row["seq_lengths"]), strict=True)
    }
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exports/_parquet")
    rendered = [tokenizer.apply_chat_template(record["messages"])["input_ids"] for record in chats(40)]
    assert {tuple(ids) for ids in rendered} == exported


@pytest.mark.parametrize(("method", "train_on"), [("concat", "assistant"), ("best_fit", "last")])
def test_labels_are_those_of_the_documents(
    train_on: str, method: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "EXPORT_SHARD_BYTES", 5000)
    settings = make(
        "parquet",
        "olmo",
        packing={"method": method, "end_of_text": True},
        sequence={"length": 64, "batch": 4, "epochs": 2},
        chats={"train_on": train_on},
    )
    run_all(settings, Silent())
    folder, expected = settings.exports.path, slow_labels(settings)
    files = sorted((folder / "parquet").glob("*.parquet"))
    assert len(files) > 2
    assert [row for file in files for row in pq.read_table(file)["labels"].to_pylist()] == expected
    trained = sum(label != -100 for row in expected for label in row)
    manifest = read_export_manifest(folder / "parquet")
    assert manifest["loss_mask"] == {
        "train_on": train_on,
        "trained_tokens": trained,
        "untrained_rows": sum(set(row) == {-100} for row in expected),
    }
    assert manifest["columns"] == ["labels"]
    assert 0 < trained < manifest["tokens"]
    padded = [row + [-100] * (64 - len(row)) for row in expected]
    read = [row for batch in SequenceStream(folder / "parquet", batch=1) for row in batch["labels"].tolist()]
    assert read == padded
    masks = [np.fromfile(file, bool).reshape(-1, 64) for file in sorted((folder / "olmo").glob("*.mask"))]
    assert np.concatenate(masks).tolist() == [
        [label != -100 for label in row] for row in padded[: len(padded) // 2]
    ]


def test_another_mask_is_another_export_and_another_plan(make: Make) -> None:
    plans = []
    for train_on in ("assistant", "last", "all"):
        settings = make("parquet", texts=False, chats={"train_on": train_on})
        run_all(settings, Silent())
        plans.append(read_export_manifest(settings.exports.path / "parquet"))
    assert len({manifest["plan"] for manifest in plans}) == 3
    assert [manifest["format_version"] for manifest in plans] == [4, 4, 3]


@pytest.mark.parametrize("name", ["megatron", "ds"])
def test_a_format_without_a_mask_is_refused_before_anything_is_computed(name: str, make: Make) -> None:
    settings = make("parquet", name)
    with pytest.raises(
        InputError, match=rf"names '{name}', which cannot mark .*use a format that can: parquet, olmo"
    ):
        run_all(settings, Silent())
    assert not settings.exports.path.exists()


def test_pairs_are_no_tokens(make: Make, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "pairs.jsonl", [{"prompt": "What?", "chosen": "It.", "rejected": "No idea."}])
    with pytest.raises(
        InputError, match=r"names 'parquet', 'olmo', but a sequence of tokens cannot hold a pair"
    ):
        run_all(make("parquet", "olmo", input={"paths": [str(tmp_path / "pairs.jsonl")]}), Silent())
