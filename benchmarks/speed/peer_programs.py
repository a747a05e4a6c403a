"""What one would write with each library to turn JSONL into training sequences, and how each result is read back.

    python peer_programs.py write|read NAME FOLDER

FOLDER holds corpus.jsonl, its halves in parts/, and model/; a program writes into FOLDER/NAME. Every document is
tokenised and followed by the end-of-text token. Two processes work. `read` prints the number of tokens that are there
and the sum of their ids, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 8192
SEED = 0
PROCESSES = 2


@cache
def tokenizer(model: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(model, model_max_length=sys.maxsize)


def with_end(texts: list[str], model: str) -> list[list[int]]:
    asked = {"return_attention_mask": False, "return_token_type_ids": False}
    end = tokenizer(model).eos_token_id
    return [[*ids, end] for ids in tokenizer(model)(texts, **asked)["input_ids"]]


@cache
def gigatoken(model: str) -> Any:
    from dagster_divorder.models.tokenize import load_encoder

    return load_encoder(model, "gigatoken")


def gigatoken_with_end(texts: list[str], model: str) -> list[np.ndarray]:
    ids, lengths = gigatoken(model).encode(texts)
    ends = np.cumsum(lengths)
    return np.split(np.insert(ids, ends, tokenizer(model).eos_token_id), ends[:-1] + np.arange(1, len(ends)))


def write_datasets(folder: Path, out: Path, with_end: Any = with_end) -> None:
    from datasets import load_dataset

    def tokenised(batch: dict[str, Any], model: str) -> dict[str, Any]:
        return {"input_ids": with_end(batch["text"], model)}

    def packed(batch: dict[str, Any]) -> dict[str, Any]:
        """As in transformers' run_clm, with a shorter last row instead of a remainder that is dropped."""
        ids = list(chain.from_iterable(batch["input_ids"]))
        return {"input_ids": [ids[at : at + LENGTH] for at in range(0, len(ids), LENGTH)]}

    files = [str(part) for part in sorted((folder / "parts").iterdir())]
    corpus = load_dataset("json", data_files=files, split="train", num_proc=PROCESSES).shuffle(seed=SEED)
    mapped: dict[str, Any] = {"batched": True, "num_proc": PROCESSES}
    ids = corpus.map(
        tokenised, remove_columns=corpus.column_names, fn_kwargs={"model": str(folder / "model")}, **mapped
    )
    ids.map(packed, **mapped).save_to_disk(out / "train", num_proc=PROCESSES)


def write_datasets_gigatoken(folder: Path, out: Path) -> None:
    write_datasets(folder, out, gigatoken_with_end)


def read_datasets(out: Path) -> Iterator[np.ndarray]:
    from datasets import load_from_disk

    for table in load_from_disk(out / "train").with_format("arrow").iter(1000):
        yield table["input_ids"].combine_chunks().flatten().to_numpy()


def write_datatrove(folder: Path, out: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger

    names = {
        "tokenizer_name_or_path": str(folder / "model" / "tokenizer.json"),
        "eos_token": tokenizer(str(folder / "model")).eos_token,
    }
    LocalPipelineExecutor(
        [JsonlReader(str(folder / "parts")), DocumentTokenizer(str(out / "parts"), **names, seed=SEED)],
        tasks=PROCESSES,
        workers=PROCESSES,
        logging_dir=str(out / "logs" / "tokenised"),
    ).run()
    LocalPipelineExecutor(
        [DocumentTokenizerMerger(str(out / "parts"), str(out / "train"), "train", seed=SEED)],
        tasks=1,
        logging_dir=str(out / "logs" / "merged"),
    ).run()


def read_datatrove(out: Path) -> Iterator[np.ndarray]:
    for path in (out / "train").glob("*.ds"):
        yield np.fromfile(path, np.uint16)


def _ids_of_line(line: str, model: str) -> list[int]:
    return with_end([json.loads(line)["text"]], model)[0]


def write_megatron(folder: Path, out: Path) -> None:
    """What tools/preprocess_data.py does, which is not in the wheel: a pool of tokenizers before its own builder."""
    import multiprocessing

    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    model = str(folder / "model")
    builder = IndexedDatasetBuilder(str(out / "train.bin"), DType.optimal_dtype(len(tokenizer(model))))
    with (folder / "corpus.jsonl").open() as lines, multiprocessing.Pool(PROCESSES) as pool:
        for ids in pool.imap(partial(_ids_of_line, model=model), lines, 32):
            builder.add_document(ids, [len(ids)])
        pool.close()
        pool.join()
    builder.finalize(str(out / "train.idx"))


def read_megatron(out: Path) -> Iterator[np.ndarray]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    yield from IndexedDataset(str(out / "train"))


def _documents(part: str, model: str) -> Iterator[Any]:
    import torch

    with open(part) as lines:
        for line in lines:
            yield torch.tensor(with_end([json.loads(line)["text"]], model)[0], dtype=torch.int32)


def write_litdata(folder: Path, out: Path) -> None:
    from litdata import TokensLoader, optimize

    optimize(
        partial(_documents, model=str(folder / "model")),
        [str(part) for part in sorted((folder / "parts").iterdir())],
        str(out / "train"),
        chunk_bytes="64MB",
        num_workers=PROCESSES,
        item_loader=TokensLoader(),
    )


def read_litdata(out: Path) -> Iterator[np.ndarray]:
    """A chunk: the number of items, where each begins and the last ends, uint32; then their bytes."""
    index = json.loads((out / "train" / "index.json").read_bytes())
    for chunk in index["chunks"]:
        values = np.fromfile(out / "train" / chunk["filename"], np.int32)
        yield values[2 + chunk["chunk_size"] :]


def read_parquet(out: Path) -> Iterator[np.ndarray]:
    import pyarrow.parquet as pq

    for path in (out / "exports" / "parquet").iterdir():
        for batch in pq.ParquetFile(path).iter_batches(1000, columns=["input_ids"]):
            yield batch["input_ids"].flatten().to_numpy()


def read_ds(out: Path) -> Iterator[np.ndarray]:
    """`ds` cannot mark padding: the manifest says how many tokens there are before it."""
    left = json.loads((out / "exports" / "_ds" / "manifest.json").read_bytes())["tokens"]
    for path in sorted((out / "exports" / "ds").glob("*.ds")):
        ids = np.fromfile(path, np.uint16)[:left]
        left -= len(ids)
        yield ids


WRITE = {
    "datatrove": write_datatrove,
    "datasets": write_datasets,
    "datasets-gigatoken": write_datasets_gigatoken,
    "megatron": write_megatron,
    "litdata": write_litdata,
}
READ = {
    "ds": read_ds,
    "parquet": read_parquet,
    "datatrove": read_datatrove,
    "datasets": read_datasets,
    "datasets-gigatoken": read_datasets,
    "megatron": read_megatron,
    "litdata": read_litdata,
}


def counted(blocks: Iterable[np.ndarray]) -> dict[str, int]:
    tokens = total = 0
    for block in blocks:
        tokens, total = tokens + len(block), total + int(block.sum(dtype=np.int64))
    return {"tokens": tokens, "sum": total}


if __name__ == "__main__":
    verb, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if verb == "write":
        WRITE[name](folder, folder / name)
    else:
        print(json.dumps(counted(READ[name](folder / name))))
