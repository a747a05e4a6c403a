"""Conversations as people, models and files see them: their words, or what the model reads, and never the form in which
a store keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.chats.document import words
from dagster_divorder.cli import main
from dagster_divorder.corpus.stored import contents
from dagster_divorder.defs.metadata import result_metadata
from dagster_divorder.engine.progress import Silent
from dagster_divorder.models.tokenize import load_encoder
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.output import ordering_animation
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from tests.conftest import small_toml, topic_text, write_jsonl
from tests.tiny_models import AFFIXES, save_model, save_tokenizer

SETTINGS: dict[str, dict[str, Any]] = {
    "input": {"format": "messages", "id_field": "id", "source_field": "source", "max_reject_share": 0.1},
    "output": {"sidecars": ("plot",)},
    "advanced": {"token_dims": 8},
    "embedding": {"kind": "auto"},
    "clusters": {"k": (2, 4)},
    "heldout": {"documents": 0.1},
    "selection": {"method": "spokes", "tokens": 1000},
    "order": {"traits": {"cluster": 1.0, "length": 1.0, "source": 1.0}, "separate_copies": True},
    "sequence": {"length": 64, "batch": 4},
    "exports": {"formats": ("parquet", "olmo"), "path": "exports"},
    "engine": {"workers": 1},
}
TELLTALES = ('\x1e{"m', "\\u001e", "messages", '"trained":[')
"""Texts of which each would be in what a store keeps of a conversation, in some way of quoting it."""


def chat(topic: str, number: int) -> dict[str, Any]:
    said = [topic_text(topic, number + start, 10 + (number + start) % 40) for start in (0, 500, 900)]
    roles = ("user", "assistant", "user", "assistant")
    turns = [
        {"role": role, "content": text}
        for role, text in zip(roles, [*said[:2], "Go on.", said[2]], strict=True)
    ]
    return {"id": f"{topic}-{number}", "source": topic, "messages": turns}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of conversations, and all that a run makes of it with everything asked for."""
    folder = tmp_path_factory.mktemp("chats")
    records = [chat(topic, number) for topic in ("sea", "kitchen", "rail") for number in range(24)]
    unanswered = {"id": "unanswered", "messages": [{"role": "user", "content": "And?"}]}
    write_jsonl(folder / "docs.jsonl", [*records, unanswered])
    save_model(folder / "model", "llama", tie_word_embeddings=True)
    save_tokenizer(folder / "model", *AFFIXES["llama"])
    (folder / "divorder.toml").write_text(small_toml(**SETTINGS, deep={"model": str(folder / "model")}))
    settings = load_settings(folder / "divorder.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering_animation, "FRAMES", 2)  # pictures without a word of a record
        run_all(settings, Silent(), GRAPH.upstream(settings))
    return folder


def texts_in(path: Path) -> Iterator[str]:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        yield str(table.drop_columns(["record"] if "record" in table.column_names else []).to_pylist())
    else:
        yield path.read_bytes().decode(errors="replace")


def assert_none_shows(text: str, where: object, telltales: Sequence[str] = TELLTALES) -> None:
    for telltale in telltales:
        assert telltale not in text, (where, text[max(0, text.index(telltale) - 200) :][:400])


def test_no_file_shows_how_a_store_keeps_conversations(folder: Path) -> None:
    files = [path for part in ("curated", "exports") for path in (folder / part).rglob("*") if path.is_file()]
    assert {"ordering_report.html", "heldout.parquet", "left_out.parquet"} <= {path.name for path in files}
    # Cluster names, samples of fits: all results but the documents themselves.
    files += [path for part in ("fits", "stages") for path in (folder / "store" / part).rglob("*.*")]
    for path in files:
        if path.name == "chat_template.jinja":  # beside an export, as its model has it
            continue
        # Lines of JSON are records, as they were read.
        telltales = [text for text in TELLTALES if path.suffix != ".jsonl" or text != "messages"]
        for text in texts_in(path):
            # The report shows input.format, as it was set.
            assert_none_shows(text.replace("<td>messages</td>", ""), path, telltales)


def test_no_page_of_dagster_and_no_answer_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings(folder / "divorder.toml")
    run = open_run(settings)
    # raw_docs shows what was rejected, as it was read.
    for stage in set(GRAPH.upstream(settings)) - {"raw_docs"}:
        receipt = run.receipt(stage)
        for name, value in result_metadata(GRAPH[stage].show(run, receipt), receipt.figures).items():
            assert_none_shows(str(value), (stage, name))
    stages = ("k_calibration", "ari_comparison", "cluster_map", "subset_selection")
    for command in (["summary"], ["summary", "diversity_metrics", *stages]):
        assert main(["--config", str(folder / "divorder.toml"), *command]) == 0
        printed = capsys.readouterr()
        assert_none_shows(printed.out + printed.err, command)


def test_a_model_with_a_tokenizer_of_its_own_reads_the_words(folder: Path) -> None:
    run = open_run(load_settings(folder / "divorder.toml"))
    documents = contents(run.view.fragments, np.arange(len(run.view)), run.records.texts).to_pylist()
    _, lengths = load_encoder(folder / "model").encode([words(document) for document in documents])
    assert run.column("deep_embeddings", "tokens").tolist() == lengths.tolist()


def test_what_is_trained_on_is_told_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings(folder / "divorder.toml")
    run = open_run(settings)
    table = load_results(folder / "store").documents
    mask = load_loss_mask(run)
    own = mask.within(np.arange(len(run.view)), 0, np.diff(mask.begins))
    assert table["trained_tokens"].tolist() == own.tolist()
    tokens, trained = int(table["tokens"].sum()), int(table["trained_tokens"].sum())
    packed = load_packed(run)
    documents = load_stream(run).record_of[packed.document]
    in_plan = int(mask.within(documents, packed.start, packed.length).sum())
    assert run.receipt("packed_sequences").figures["trained_tokens"] == in_plan
    assert main(["--config", str(folder / "divorder.toml"), "summary"]) == 0
    told = f"+ 1 rejected; 72 different texts\n{packed.length.sum():,} tokens ({in_plan:,} trained on) in "
    assert told in capsys.readouterr().out
    page = (folder / "curated" / "ordering_report.html").read_text()
    assert f"{tokens:,} tokens, {trained:,} trained on" in page
