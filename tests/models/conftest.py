"""Tiny tokenizers and checkpoints as real files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

WORDS = "the cat sat on the mat, 12 dogs didn't; Äpfel über 漢字 👍🏽 naïve  x=y\n\tcode() " * 5
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(split: str | None = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = (
        alone
        if split is None
        else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), alone])
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS], trainer)
    return tokenizer


def with_added_text_tokens() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens(
        [AddedToken("<tool>", special=False), AddedToken(" mask", special=False, lstrip=True)]
    )
    return tokenizer


def truncating_and_padding() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    return tokenizer


def sentencepiece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, show_progress=False, max_token_length=6
    )
    tokenizer.train_from_iterator([WORDS], trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]", "[CLS]"], show_progress=False
    )
    tokenizer.train_from_iterator([WORDS], trainer)
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": byte_level,
    "cl100k": lambda: byte_level(CL100K),
    "added text tokens": with_added_text_tokens,
    "truncating and padding": truncating_and_padding,
    "sentencepiece": sentencepiece,
    "wordpiece": wordpiece,
    "unknown splitting": lambda: byte_level(r"\w+|[^\w\s]+|\s+"),
}


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a named tokenizer into a directory of its own."""

    def make(name: str) -> Path:
        directory = tmp_path / name.replace(" ", "-")
        directory.mkdir()
        TOKENIZERS[name]().save(str(directory / "tokenizer.json"))
        return directory

    return make


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads that share tiny matrices wait for each other longer than they work."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file; uint16 arrays are stored as bfloat16."""
    import torch
    from safetensors.torch import save

    kinds = {key: torch.bfloat16 if tensor.dtype == np.uint16 else None for key, tensor in tensors.items()}
    stored = {key: torch.from_numpy(tensor.copy()) for key, tensor in tensors.items()}
    return save({key: stored[key].view(kind) if kind else stored[key] for key, kind in kinds.items()})


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Writes files of tensors, with an index if there are several, beside a tokenizer.json."""

    def make(*shards: Mapping[str, np.ndarray], name: str = "checkpoint") -> Path:
        directory = tmp_path / name
        directory.mkdir(parents=True)
        (directory / "tokenizer.json").write_text("{}")
        (directory / "config.json").write_text("{}")
        if len(shards) == 1:
            (directory / "model.safetensors").write_bytes(safetensors(shards[0]))
        else:
            names = [f"model-{at:05}-of-{len(shards):05}.safetensors" for at in range(1, 1 + len(shards))]
            for file, shard in zip(names, shards, strict=True):
                (directory / file).write_bytes(safetensors(shard))
            places = {key: file for file, shard in zip(names, shards, strict=True) for key in shard}
            (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        return directory

    return make
