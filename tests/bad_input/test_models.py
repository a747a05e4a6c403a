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


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def tokenizer_is_no_json(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b'{"version": "1.0", ')


def tokenizer_is_none(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(b'{"version": "1.0"}')


def truncated(folder: Path) -> None:
    weights(folder).write_bytes(weights(folder).read_bytes()[:-100])


def empty(folder: Path) -> None:
    weights(folder).write_bytes(b"")


def header_cut(folder: Path) -> None:
    weights(folder).write_bytes(weights(folder).read_bytes()[:20])


def header_altered(folder: Path) -> None:
    data = bytearray(weights(folder).read_bytes())
    data[8:12] = b"\xff\xff\xff\xff"
    weights(folder).write_bytes(data)


def not_finite(folder: Path) -> None:
    rewrite(folder, lambda table: np.where(np.arange(len(table))[:, None] == 3, np.float32(np.nan), table))


def too_few_rows(folder: Path) -> None:
    rewrite(folder, lambda table: table[:100])


def other_names(folder: Path) -> None:
    save_file({f"{key}_x": value for key, value in load_file(weights(folder)).items()}, weights(folder))


def quantised(folder: Path) -> None:
    rewrite(folder, lambda table: table.astype(np.int8))


def pickled_only(folder: Path) -> None:
    weights(folder).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")


def no_weights(folder: Path) -> None:
    weights(folder).unlink()


def index_of_missing_shards(folder: Path) -> None:
    index = {"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_bytes(orjson.dumps(index))


FAULTS = {
    no_tokenizer: "has no tokenizer.json; expected a fast tokenizer",
    tokenizer_is_no_json: "tokenizer.json is not readable JSON",
    tokenizer_is_none: "tokenizer.json is not a tokenizer that tokenizers can load",
    truncated: "is not a whole safetensors file: Error while deserializing header: incomplete metadata",
    empty: "is not a whole safetensors file: Error while deserializing header: header too small",
    header_cut: "is not a whole safetensors file: Error while deserializing header: invalid header length",
    header_altered: "is not a whole safetensors file: Error while deserializing header: invalid UTF-8 in header",
    not_finite: "hold NaN or infinity; expected finite numbers",
    too_few_rows: "use the tokenizer and the weights of one model",
    other_names: "no input embedding found in",
    quantised: "expected a matrix of F32, F16, BF16 or F64",
    pickled_only: "only pytorch_model.bin, which is pickle and could run code",
    no_weights: "expected weights as model.safetensors (or shards with model.safetensors.index.json) and found none",
    index_of_missing_shards: "which is not there; fetch or save the model again",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_model_directory_that_cannot_be_used_is_an_error(
    tmp_path: Path, divorder: Divorder, checkpoint: Path, fault: Callable[[Path], None]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    (tmp_path / "in/docs.jsonl").write_bytes(b"\n".join(SOUND))
    fault(folder)
    outcome = divorder(f'model.base = "{folder}"')
    assert outcome.status == 1
    assert FAULTS[fault] in outcome.error
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


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path, divorder: Divorder) -> None:
    (tmp_path / "in/docs.jsonl").write_bytes(b"\n".join(SOUND))
    outcome = divorder(f'model.base = "{tmp_path}/nowhere"')
    assert outcome.status == 1
    assert "there is no such directory" in outcome.error
