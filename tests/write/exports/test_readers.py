"""What real readers make of an export: Megatron-Core with the script that is written beside it, datatrove, datasets."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at
from dagster_divorder.write.exports import FORMATS
from dagster_divorder.write.exports.rows import Options, Rows
from tests.conftest import load_script
from tests.trainers.test_trl import QUIET, tokens_and_model
from tests.write.exports.made import TAG, Folder, masks_of, rows_of, runs_of

pytestmark = pytest.mark.slow

LENGTHS = [3, 30, 1, 9, 17, 5, 64, 2, 8, 11, 40]
LENGTH = 16


def written(name: str, path: Path, rows: Rows, shard_bytes: int = 200, labels: bool = False) -> Path:
    path.mkdir()
    folder = Folder(path)
    FORMATS[name].write(rows, folder, Options(tag=TAG, shard_bytes=shard_bytes, labels=labels))  # type: ignore[arg-type]
    padded = int((rows.tokens < rows.length).sum())
    manifest = {
        "sequence_length": rows.length,
        "padded_rows": padded,
        "prefix": f"train-{TAG}",
        "files": folder.entries,
    }
    file = file_at(path, EXPORT_MANIFEST)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(manifest))
    return path


def expected(rows: Rows) -> list[list[int]]:
    """The ids of what is read, epoch after epoch."""
    whole = [[token for _, _, ids in runs for token in ids] for runs in runs_of(rows)]
    return [whole[row] for row in rows.epochs.reshape(-1)]


class Tokenizer:
    """As much of a Megatron tokenizer as a GPTDataset asks for."""

    vocab_size, eod, pad = 1000, 1, 1005

    def __init__(self) -> None:
        self.unique_identifiers = OrderedDict(kind="made")


def config(path: Path, cache: Path, **different: Any) -> Any:
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

    return GPTDatasetConfig(
        **{
            "random_seed": 1234,
            "sequence_length": LENGTH,
            "blend_per_split": [([str(path / f"train-{TAG}")], None), None, None],
            "path_to_cache": str(cache),
            "tokenizer": Tokenizer(),
            "reset_position_ids": False,
            "reset_attention_mask": False,
            "eod_mask_loss": False,
        }
        | different
    )


@pytest.mark.parametrize(
    ("epochs", "whole", "extra"), [(1, True, True), (3, True, False), (3, False, True), (1, False, False)]
)
def test_megatron_reads_every_sequence_in_its_place(
    tmp_path: Path, epochs: int, whole: bool, extra: bool
) -> None:
    pytest.importorskip("megatron.core")
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset

    # 176 tokens with the ends of text fill 11 rows; best_fit leaves most of its rows short.
    lengths = [*LENGTHS[:-1], LENGTHS[-1] - 25] if whole else LENGTHS
    method = "concat" if whole else "best_fit"
    rows = rows_of(lengths, length=LENGTH, epochs=epochs, method=method)
    assert rows.padded is not whole
    path, cache = written("megatron", tmp_path / "export", rows), tmp_path / "cache"
    options = {"add_extra_token_to_sequence": extra, "reset_attention_mask": not whole}
    for samples in {len(rows) * epochs, len(rows) * epochs - 3}:
        settings = config(path, cache, **options)
        load_script(path / "megatron_cache.py").write_cache(settings, samples)
        files = sorted(file.name for file in cache.iterdir())
        data = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, settings).build()[0]
        assert sorted(file.name for file in cache.iterdir()) == files
        for place, ids in enumerate(expected(rows)[:samples]):
            sample = data[place]
            assert sample["tokens"].tolist() == ids + [0] * (LENGTH - len(ids))
            assert sample["labels"].tolist()[: len(ids) - 1] == ids[1:]
            # The last token of a sequence has no label of its own.
            assert sample["loss_mask"].tolist() == [1.0] * (len(ids) - 1) + [0.0] * (LENGTH - len(ids) + 1)


def test_megatron_is_refused_what_would_spoil_the_order_or_the_masks(tmp_path: Path) -> None:
    pytest.importorskip("megatron.core")
    rows = rows_of(LENGTHS, length=LENGTH, method="best_fit")
    path, cache = written("megatron", tmp_path / "export", rows), tmp_path / "cache"
    other = written("megatron", tmp_path / "other", rows)
    write = load_script(path / "megatron_cache.py").write_cache
    named = str(path / f"train-{TAG}")
    for different, samples, message in [
        ({}, 5, r"samples before the last one are padded.*--reset-attention-mask"),
        ({"sequence_length": 8}, 5, r"sequence_length is 8; expected 16"),
        ({}, len(rows) + 1, rf"num_samples is {len(rows) + 1}; expected 1 to {len(rows)}"),
        ({"blend_per_split": None, "blend": ([named], None), "split": "1,0,0"}, 5, r"split is '1,0,0'"),
        ({"blend_per_split": [([named, named], None), None, None]}, 5, r"expected this export alone"),
        ({"blend_per_split": [None, ([named], None), None]}, 5, r"the training data are \[\]"),
        (
            {"blend_per_split": [([str(other / f"train-{TAG}")], None), None, None]},
            5,
            r"other/train-\w+; expected the",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            write(config(path, cache, **different), samples)
    assert not cache.exists()


def test_datatrove_reads_every_sequence_in_its_place(tmp_path: Path) -> None:
    datatrove = pytest.importorskip("datatrove.utils.dataset")
    rows = rows_of([*LENGTHS, 400], length=LENGTH, epochs=2, index=False)
    path = written("ds", tmp_path / "export", rows, shard_bytes=64)
    data = datatrove.DatatroveFolderDataset(
        str(path), seq_len=LENGTH - 1, filename_pattern="*.ds", token_size=2, return_positions=True
    )
    assert len(data) == len(rows) > 30 and len(data.files) > 10
    for place, (ids, runs) in enumerate(zip(expected(rows), runs_of(rows), strict=True)):
        sample, missing = data[place], LENGTH - len(ids)
        assert sample["input_ids"].tolist() == ids + [1] * missing
        positions = np.concatenate([np.arange(len(run)) for _, _, run in runs])
        filled = positions[-1] + 1 + np.arange(missing)
        assert sample["positions"].tolist() == [*positions, *filled]


def sft_trainer(path: Path, **config: Any) -> Any:
    """TRL's trainer of a tiny model over an export in Parquet, in the order of its rows."""
    trl = pytest.importorskip("trl")
    from datasets import load_dataset

    tokens, model = tokens_and_model(1000)
    return trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(
            output_dir=str(path / "out"),
            train_sampling_strategy="sequential",
            max_length=None,
            per_device_train_batch_size=2,
            **QUIET,
            **config,
        ),
        train_dataset=load_dataset("parquet", data_dir=str(path), split="train", cache_dir=f"{path}-cache"),
        processing_class=tokens,
    )


@pytest.mark.parametrize(("form", "method"), [("plain", "best_fit"), ("flattened", "concat")])
def test_labels_of_trl_are_those_of_the_mask(form: str, method: str, tmp_path: Path) -> None:
    rows = rows_of(LENGTHS, length=LENGTH, method=method, index=False, masked=True)
    path = written("parquet", tmp_path / "export", rows, shard_bytes=1 << 20, labels=True)
    trainer = sft_trainer(path, packing=False, padding_free=form == "flattened")
    batches = list(trainer.get_train_dataloader())
    assert len(batches) == -(-len(rows) // 2)
    for at, batch in enumerate(batches):
        ids, labels = [], []
        for runs, mask in zip(
            runs_of(rows)[2 * at : 2 * at + 2], masks_of(rows)[2 * at : 2 * at + 2], strict=True
        ):
            tokens = [token for _, _, run in runs for token in run]
            row = [token if trained else -100 for token, trained in zip(tokens, mask, strict=True)]
            if form == "flattened":
                # No token of the same document comes before the first.
                for begin in np.cumsum([0, *(len(run) for _, _, run in runs[:-1])]).tolist():
                    row[begin] = -100
            ids.append(tokens)
            labels.append(row)
        longest = max(map(len, ids))
        if form == "flattened":
            ids, labels = (
                [[token for row in ids for token in row]],
                [[label for row in labels for label in row]],
            )
            longest = len(ids[0])
        assert batch["input_ids"].tolist() == [row + [0] * (longest - len(row)) for row in ids]
        assert batch["labels"].tolist() == [row + [-100] * (longest - len(row)) for row in labels]


def test_the_flattened_form_of_the_reader_is_trls(tmp_path: Path) -> None:
    from dagster_divorder.torch import SequenceDataset
    from tests.readers.made import write_export

    corpus = {"lengths": LENGTHS, "length": LENGTH, "method": "best_fit", "masked": True}
    write_export(tmp_path / "parquet", "parquet", corpus, labels=True)
    dataset = SequenceDataset(tmp_path / "parquet", form="flattened")
    trainer = sft_trainer(tmp_path / "parquet", packing=False, padding_free=True)
    for at, batch in enumerate(trainer.get_train_dataloader()):
        ours = dataset.__getitems__(range(2 * at, min(2 * at + 2, len(dataset))))
        for name in ("input_ids", "labels", "position_ids", "cu_seq_lens_q", "seq_idx"):
            assert batch[name].tolist() == ours[name].tolist()
