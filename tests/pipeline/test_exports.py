"""The stage `exports`: what is written anew and what stays, whose files, bad input, what a check and a trainer say; of
conversations the loss mask in the files and in the reader is that of the stored documents."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from dagster_divorder import run_all
from dagster_divorder.core.ranks import slowest_rank
from dagster_divorder.corpus.peek import recognised
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.models.chat_tokens import SELECTED
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.readers.export import read_export_manifest
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.output import exports
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at
from dagster_divorder.summary import summarise
from dagster_divorder.torch import SequenceStream, open_export
from dagster_divorder.verify import verify
from tests.conftest import topic_chats, topic_records, write_jsonl
from tests.pipeline.runs import Make, exported_rows, sequences_of
from tests.tiny_models import BOS, EOS, save_model, save_tokenizer


@pytest.fixture
def make(tmp_path: Path, make_settings: Make) -> Make:
    """Settings with exports below tmp_path."""

    def made(*formats: str, **sections: Any) -> Settings:
        exports = {"formats": formats, "path": tmp_path / "exports", **sections.pop("exports", {})}
        return make_settings(exports=exports, **sections)

    write_jsonl(tmp_path / "docs.jsonl", topic_records(12))
    return made


def inodes(settings: Settings) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in settings.exports.path.glob("*/*")
    }


def test_only_what_is_missing_or_of_another_plan_is_written(make: Make, tmp_path: Path) -> None:
    one = make("parquet")
    assert run_all(one, Silent())["exports"].figures["new_documents"] == 48
    before = inodes(one)
    assert run_all(one, Silent())["exports"].figures["new_documents"] == 0
    both = make("parquet", "megatron")
    plan = {stage.stage: stage for stage in make_plan(GRAPH, both).stages}
    assert plan["exports"].scope == "all"
    run_all(both, Silent())
    assert before.items() < inodes(both).items()
    # A layout is of formats whose trainers slice; a global batch is part of what every manifest says.
    before = inodes(both)
    run_all(make("parquet", "megatron", exports={"world_size": 2}), Silent())
    after = inodes(both)
    same = {path for path in before if before[path] == after.get(path)}
    assert same == {path for path in before if "megatron/" in path}
    run_all(both, Silent())
    run_all(make("parquet", "megatron", sequence={"length": 128, "batch": 8}), Silent())
    assert orjson.loads((both.exports.path / "_megatron/manifest.json").read_bytes())["batch"] == 8
    run_all(both, Silent())
    before = inodes(both)
    # Another plan writes all of them anew.
    write_jsonl(tmp_path / "docs.jsonl", topic_records(13))
    run_all(both, Silent())
    assert before.items().isdisjoint(inodes(both).items())


def test_a_damaged_file_is_named_and_written_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "EXPORT_SHARD_BYTES", 3000)
    settings = make("olmo", sequence={"length": 64, "batch": 4})
    run_all(settings, Silent())
    whole = {path: path.read_bytes() for path in settings.exports.path.glob("*/*")}
    _, shard = sorted((settings.exports.path / "olmo").glob("train-*.npy"))
    data = bytearray(shard.read_bytes())
    data[7] ^= 1
    shard.write_bytes(data)
    with pytest.raises(InputError, match=f"{shard} was altered: its sha256 is"):
        verify(settings, settings.exports.path / "olmo", None)
    run_all(settings, Silent())
    assert {path: path.read_bytes() for path in settings.exports.path.glob("*/*")} == whole
    (settings.exports.path / "_olmo/manifest.json").write_bytes(b"{}")
    with pytest.raises(InputError, match=r"/_olmo has no complete manifest\.json; .*copy both"):
        verify(settings, settings.exports.path / "olmo", None)


@pytest.mark.parametrize("name", ["_parquet/manifest.json", "mds/index.json"])
def test_a_strangers_file_is_never_overwritten(name: str, make: Make) -> None:
    settings = make(name.split("/")[0].lstrip("_"))
    mine = settings.exports.path / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    for refused in (lambda: run_all(settings, Silent()), lambda: make_plan(GRAPH, settings)):
        with pytest.raises(InputError, match=r"is there and was not written by this store; exports\.path"):
            refused()
    assert os.listdir(mine.parent) == [mine.name] and mine.read_text() == "mine"
    mine.rename(mine.with_name("notes.json"))
    run_all(settings, Silent())
    assert mine.with_name("notes.json").read_text() == "mine"


def test_a_layout_keeps_the_order_of_the_trainer_that_slices_and_loses_that_of_others(make: Make) -> None:
    settings = make(
        "parquet", sequence={"length": 64, "batch": 4}, exports={"world_size": 2, "micro_batch": 2}
    )
    run_all(settings, Silent())
    folder = settings.exports.path / "parquet"
    assert verify(settings, folder, "torchtitan").passed
    answer = verify(settings, folder, "hf-trainer")
    assert not answer.passed and 'with exports.trainer = "hf-trainer", and its lines' in str(answer)
    # The plan as it would be exported for it.
    assert verify(settings, None, "torchtitan", world_size=4).passed
    for asked, message in [
        ({"trainer": "trl", "world_size": 3}, "divides the batch"),
        ({"trainer": "trl", "world_size": 0}, "world_size is 0, expected 1 or more"),
    ]:
        with pytest.raises(InputError, match=message):
            verify(settings, folder, **asked)


def test_ranks_that_need_more_sequences_than_there_are_are_refused_before_anything_is_written(
    make: Make,
) -> None:
    settings = make("megatron", "parquet", sequence={"length": 64, "batch": 64}, exports={"world_size": 64})
    with pytest.raises(InputError, match=r"parquet would hold none of the plan's .*exports\.world_size = 64"):
        run_all(settings, Silent())
    assert not settings.exports.path.exists()


@pytest.mark.parametrize(
    ("format", "trainer", "epochs"),
    [("parquet", "hf-trainer", 1), ("parquet", "torchtitan", 1), ("parquet", None, 3), ("olmo", None, 3)],
)
def test_equal_ranks_keep_every_batch_and_wait_less(
    make: Make, tmp_path: Path, format: str, trainer: str | None, epochs: int
) -> None:
    """Batches cross the ends of epochs. Rows are those in the files, as the ranks of a trainer read them."""
    short = ({"text": f"short {n}"} for n in range(300 if epochs == 1 else 320))
    write_jsonl(tmp_path / "docs.jsonl", [*topic_records(40), *short])
    world, micro, batch = 4, 2, 16
    numbers = {"trainer": trainer, "world_size": world, "micro_batch": micro}
    read, costs, files = [], [], []
    for equal in (False, True):
        settings = make(
            format,
            sequence={"length": 64, "batch": batch, "epochs": epochs},
            exports={**numbers, "equal_ranks": equal, "path": tmp_path / f"exports {equal}"},
            output={"path": tmp_path / f"out {equal}"},
        )
        run_all(settings, Silent())
        export = open_export(settings.exports.path / format, rows=format == "parquet")
        rows = len(export) // batch * batch
        assert epochs == 1 or export.manifest["sequences"] % batch
        of_ranks = np.arange(rows).reshape(-1, world, micro)
        if trainer == "torchtitan":
            slices = np.split(np.arange(len(export)), world)
            of_ranks = np.stack([part[: rows // world].reshape(-1, micro) for part in slices], axis=1)
        batches = np.split(of_ranks, rows // batch)
        if format == "parquet":
            stored = exported_rows(settings) if trainer else export.block(range(rows)).ids.tolist()
            read.append([sorted(stored[row] for row in of_batch.ravel()) for of_batch in batches])
        else:
            # The files hold the same rows; the index deals them.
            read.append([sorted(export.in_file(of_batch.ravel()).tolist()) for of_batch in batches])
            named = export.manifest["files"].items()
            files.append({name: entry["sha256"] for name, entry in named if "epoch" not in name}.values())
        if trainer:
            costs.append(slowest_rank(export.table.attention[of_ranks.ravel()], world, micro))
            assert f"{costs[-1]:.2f} times the mean rank's" in str(verify(settings, None, trainer))
    assert read[0] == read[1]
    assert len({tuple(sorted(hashes)) for hashes in files}) <= 1
    assert not costs or costs[1] < min(1.1, costs[0])


def test_trainers_that_join_rows_take_none_that_are_short(make: Make) -> None:
    packing = {"method": "best_fit"}
    settings = make("parquet", sequence={"length": 64, "batch": 4}, packing=packing)
    run_all(settings, Silent())
    folder = settings.exports.path / "parquet"
    for place, message in [
        (folder, "the short rows of .*: it joins rows"),
        (None, "this plan: it joins rows"),
    ]:
        with pytest.raises(
            InputError, match=rf"torchtitan does not read {message}.*packing.method = \"concat\""
        ):
            verify(settings, place, "torchtitan")
        readers = {row["trainer"] for row in verify(settings, place, None).data["trainers"]}
        assert "hf-trainer" in readers and "torchtitan" not in readers
    assert "torchtitan" not in str(summarise(settings))


def test_end_of_text_is_the_token_that_the_files_name_as_they_are_now(make: Make, tmp_path: Path) -> None:
    """An edited file is another export, of another plan. Without such a token no text is tokenised."""
    checkpoint = save_tokenizer(save_model(tmp_path / "llama"))
    settings = make("parquet", model={"base": str(checkpoint)}, packing={"end_of_text": True})
    with pytest.raises(InputError, match=r"end_of_text is true, but .* names no end-of-text token"):
        run_all(settings, Silent(), ["raw_docs", "base_model"])
    about, manifests = orjson.loads((checkpoint / "tokenizer_config.json").read_bytes()), []
    added = orjson.loads((checkpoint / "tokenizer.json").read_bytes())["added_tokens"]
    ids = {each["content"]: each["id"] for each in added}
    for token in (BOS, EOS):
        (checkpoint / "tokenizer_config.json").write_bytes(orjson.dumps({**about, "eos_token": token}))
        run_all(settings, Silent())
        folder = settings.exports.path / "parquet"
        manifests.append(orjson.loads(file_at(folder, EXPORT_MANIFEST).read_bytes()))
        expected = ids[token]
        assert manifests[-1]["tokenizer"]["end_of_text"] == expected
        table = pq.ParquetFile(next(folder.glob("*.parquet"))).read()
        assert table["input_ids"].combine_chunks().flatten().to_pylist().count(expected) >= 20
    assert len({manifest["plan"] for manifest in manifests}) == 2


@pytest.fixture
def make_masked(tmp_path: Path, make_settings: Make) -> Make:
    """Settings with exports below tmp_path, of conversations and plain texts."""
    write_jsonl(tmp_path / "chats.jsonl", topic_chats(10))
    write_jsonl(tmp_path / "docs.jsonl", topic_records(3))

    def made(*formats: str, texts: bool = True, **sections: Any) -> Settings:
        exports = {"formats": formats, "path": tmp_path / "exports", **sections.pop("exports", {})}
        inputs = [{"paths": [str(tmp_path / name)]} for name in ("chats.jsonl", "docs.jsonl")[: 1 + texts]]
        return recognised(make_settings(**{"exports": exports, "input": inputs, **sections}))

    return made


def slow_labels(settings: Settings) -> list[list[int]]:
    """The labels of every row, epoch after epoch: of each token its id, or -100 where it is not trained on."""
    run = open_run(settings)
    documents, wanted = list[list[int]](), SELECTED[settings.chats.train_on]
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
    return [
        [label for record, start, length in runs for label in documents[record][start : start + length]]
        for runs in sequences_of(run)
    ]


def test_the_tokenizer_beside_an_export_renders_what_was_exported(make_masked: Make, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "t.jinja").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}")
    chats_read = {"template": tmp_path / "t.jinja"}
    settings = make_masked("parquet", texts=False, sequence={"length": 512}, chats=chats_read)
    run_all(settings, Silent())
    rows = pq.read_table(tmp_path / "exports/parquet").to_pylist()
    exported = {
        tuple(row["input_ids"][end - length : end])
        for row in rows
        for length, end in zip(row["seq_lengths"], np.cumsum(row["seq_lengths"]), strict=True)
    }
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exports/_parquet")
    rendered = [tokenizer.apply_chat_template(record["messages"])["input_ids"] for record in topic_chats(10)]
    assert {tuple(ids) for ids in rendered} == exported


@pytest.mark.parametrize(("method", "train_on"), [("concat", "assistant"), ("best_fit", "last")])
def test_labels_are_those_of_the_documents(
    train_on: str, method: str, make_masked: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "EXPORT_SHARD_BYTES", 5000)
    settings = make_masked(
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


def test_another_mask_is_another_export_and_another_plan(make_masked: Make) -> None:
    plans = []
    for train_on in ("assistant", "last", "all"):
        settings = make_masked("parquet", texts=False, chats={"train_on": train_on})
        run_all(settings, Silent())
        plans.append(read_export_manifest(settings.exports.path / "parquet"))
    assert len({manifest["plan"] for manifest in plans}) == 3
    assert [manifest["format_version"] for manifest in plans] == [4, 4, 3]


@pytest.mark.parametrize("name", ["megatron", "ds"])
def test_a_format_without_a_mask_is_refused_before_anything_is_computed(name: str, make_masked: Make) -> None:
    settings = make_masked("parquet", name)
    with pytest.raises(
        InputError, match=rf"names '{name}', which cannot mark .*use a format that can: parquet, olmo"
    ):
        run_all(settings, Silent())
    assert not settings.exports.path.exists()


def test_pairs_are_no_tokens(make_masked: Make, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "pairs.jsonl", [{"prompt": "What?", "chosen": "It.", "rejected": "No idea."}])
    with pytest.raises(
        InputError, match=r"names 'parquet', 'olmo', but a sequence of tokens cannot hold a pair"
    ):
        run_all(make_masked("parquet", "olmo", input={"paths": [str(tmp_path / "pairs.jsonl")]}), Silent())
