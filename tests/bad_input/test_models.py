"""Model directories as they come: without tokenizer, damaged, pickled, of two models."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file, save_file

from tests.bad_input.conftest import SOUND, Outcome

Divorder = Callable[..., Outcome]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sound checkpoint."""
    from dagster_divorder.models.bootstrap import train

    folder = tmp_path_factory.mktemp("checkpoint")
    texts = [orjson.loads(line)["text"] for line in SOUND]
    train(texts, folder, vocab_size=512, dim=8, seed=0)
    return folder


def weights(folder: Path) -> Path:
    return folder / "model.safetensors"


def rewrite(folder: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change every matrix of the checkpoint."""
    tensors = load_file(weights(folder))
    matrices = {key: np.ascontiguousarray(change(value)) for key, value in tensors.items() if value.ndim == 2}
    save_file(tensors | matrices, weights(folder))


def adapter(folder: Path) -> None:
    about = {"peft_type": "LORA", "base_model_name_or_path": "org/whole-model"}
    (folder / "adapter_config.json").write_bytes(orjson.dumps(about))
    (folder / "config.json").unlink()
    weights(folder).rename(folder / "adapter_model.safetensors")


def cache_of_the_hub(folder: Path) -> None:
    names = [path.name for path in folder.iterdir()]
    for snapshot in ("1a2b", "3c4d"):
        (folder / "snapshots" / snapshot).mkdir(parents=True)
        for name in names:
            shutil.copy(folder / name, folder / "snapshots" / snapshot)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("3c4d")
    for name in names:
        (folder / name).unlink()


def folder_of_a_training(folder: Path) -> None:
    (folder / "checkpoint-500").mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        path.rename(folder / "checkpoint-500" / path.name)


def gguf(folder: Path) -> None:
    weights(folder).rename(folder / "model-Q8_0.gguf")


A_MATRIX = "expected a matrix of F32, F16, BF16 or F64 with a row for each token"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no columns": (lambda folder: rewrite(folder, lambda table: table[:, :0]), f", 0]; {A_MATRIX}"),
    "no rows": (
        lambda folder: rewrite(folder, lambda table: table[:0]),
        f"is F32 of shape [0, 8]; {A_MATRIX}",
    ),
    "one dimension": (
        lambda folder: save_file({"model.embed_tokens.weight": np.zeros(8, np.float32)}, weights(folder)),
        f"is F32 of shape [8]; {A_MATRIX}",
    ),
    "whole numbers": (
        lambda folder: rewrite(folder, lambda table: np.zeros(table.shape, np.int32)),
        "is I32 of shape [",
    ),
    "not finite": (
        lambda folder: rewrite(folder, lambda table: np.append(table[:-1], table[-1:] * np.nan, axis=0)),
        "hold NaN or infinity; expected finite numbers",
    ),
    "SentencePiece alone": (
        lambda folder: (folder / "tokenizer.json").rename(folder / "tokenizer.model"),
        "has no tokenizer.json; expected the folder of a checkpoint with a fast tokenizer. Convert a slow one",
    ),
    "an adapter": (
        adapter,
        "is an adapter of org/whole-model and has no input embedding; name org/whole-model, or merge",
    ),
    "a cache of the Hub": (cache_of_the_hub, "model/snapshots/1a2b looks like one"),
    "a folder of a training": (folder_of_a_training, "model/checkpoint-500 looks like one"),
    "GGUF": (gguf, "GGUF is llama.cpp's form; save the model again"),
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS)
def test_a_model_directory_that_cannot_be_used_is_an_error(
    tmp_path: Path, divorder: Divorder, checkpoint: Path, fault: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    (tmp_path / "in/docs.jsonl").write_bytes(b"\n".join(SOUND))
    fault(folder)
    outcome = divorder(f'model.base = "{folder}"')
    assert outcome.status == 1
    assert said in outcome.error
    assert str(folder) in outcome.error
    assert not outcome.output.exists()


@pytest.mark.parametrize("pooling", ["idf", "mean"])
@pytest.mark.parametrize("more", [0, 58])
def test_a_table_may_have_more_rows_than_the_tokenizer_has_ids(
    tmp_path: Path, divorder: Divorder, checkpoint: Path, more: int, pooling: str
) -> None:
    """Most models pad their table to a round number of rows."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    rewrite(folder, lambda table: np.pad(table, ((0, more), (0, 0))))
    (tmp_path / "in/docs.jsonl").write_bytes(b"\n".join(SOUND))
    assert divorder(f'model.base = "{folder}"', f'embedding.pooling = "{pooling}"').status == 0


def test_a_file_is_no_model(tmp_path: Path, divorder: Divorder, checkpoint: Path) -> None:
    (tmp_path / "in/docs.jsonl").write_bytes(b"\n".join(SOUND))
    outcome = divorder(f'model.base = "{weights(checkpoint)}"')
    assert outcome.status == 1
    assert f"model.base is '{weights(checkpoint)}': it is a file; expected the folder" in outcome.error
