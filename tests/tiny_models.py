"""Tiny checkpoints of real architectures, with random weights and a tokenizer of their own, as files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.conftest import topic_records

CONTEXT = 48
BOS, EOS, PAD = "<|endoftext|>", "<eos>", "<pad>"
TEXTS = [record["text"] for record in topic_records(6)]


def save_model(
    folder: Path, kind: str = "llama", *, seed: int = 0, scale: float = 0.3, **changes: Any
) -> Path:
    """Weights and configuration of a tiny model; larger `scale`, larger differences between vectors."""
    import torch
    import transformers

    from dagster_divorder.models.pretrained import quiet

    sizes = {
        "vocab_size": 600,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
        "initializer_range": scale,
    }
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "llama": ("Llama", {"num_key_value_heads": 2}),
        "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 8}),
        "mixtral": ("Mixtral", {"num_key_value_heads": 2, "num_local_experts": 3}),
        "bert": ("Bert", {"type_vocab_size": 2}),
        # Positions count from after the padding id.
        "roberta": ("Roberta", {"pad_token_id": 1, "max_position_embeddings": CONTEXT + 2}),
        "gpt2": ("GPT2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": CONTEXT}),
        "t5": ("T5", {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4}),
        "vit": ("ViT", {"image_size": 8, "patch_size": 4}),
    }
    name, own = kinds[kind]
    if kind in ("gpt2", "t5"):
        sizes = {"vocab_size": 600, "initializer_range": scale, "initializer_factor": 1 + scale}
    config = getattr(transformers, f"{name}Config")(**{**sizes, **own, **changes})
    torch.manual_seed(seed)
    with quiet():
        getattr(transformers, f"{name}Model")(config).eval().save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path, before: Sequence[str] = (), after: Sequence[str] = ()) -> Path:
    """A byte-level tokenizer trained here, that puts special tokens around a text."""
    from tokenizers import AddedToken, Tokenizer, processors

    from dagster_divorder.models.bootstrap import train

    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "made"
    train(TEXTS, made, vocab_size=500, dim=2)
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (EOS, PAD)])
    if before or after:
        template = " ".join([*before, "$A", *after])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template,
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in {*before, *after}],
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.rmtree(made)
    # Without a class AutoTokenizer takes the one of the model's type, which has a splitting of its own.
    limit = 1000000000000000019884624838656
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": limit},
    )
    return folder


def write_json(path: Path, content: dict[str, Any] | list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


AFFIXES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "llama": ((BOS,), ()),
    "qwen3": ((), (EOS,)),
    "bert": ((BOS,), (EOS,)),
    "roberta": ((BOS,), (EOS,)),
    "gpt2": ((), ()),
    "t5": ((), (EOS,)),
    "vit": ((), ()),
}
"""Special tokens around a text, as models of these kinds have them."""

Folders = Callable[[str], Path]
"""From a kind of checkpoint to its folder."""


def save_checkpoint(folder: Path, kind: str) -> Path:
    """A tiny model with a tokenizer that puts tokens around a text as models of its kind do."""
    save_model(folder, kind)
    return save_tokenizer(folder, *AFFIXES[kind])


def each_made_once(folder: Path, make: Callable[[Path, str], object]) -> Folders:
    def get(kind: str) -> Path:
        if not (folder / kind).exists():
            make(folder / kind, kind)
        return folder / kind

    return get


CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3": ("qwen3", {}),
    "gpt2": ("gpt2", {}),
    "mixtral": ("mixtral", {}),
}
"""Shapes of models: scales of heads, biases, one matrix for queries, keys and values, experts."""


def causal_checkpoints(folder: Path) -> Folders:
    """Checkpoints in a folder by kind: one of CAUSAL, or `bootstrap`."""
    save_tokenizer(folder / "tokenizer")

    def make(made: Path, kind: str) -> None:
        if kind == "bootstrap":
            return decode(made)
        name, changes = CAUSAL[kind]
        save_model(made, name, tie_word_embeddings=True, **changes)
        for file in (folder / "tokenizer").iterdir():
            (made / file.name).write_bytes(file.read_bytes())

    def decode(made: Path) -> None:
        import numpy as np

        from dagster_divorder.models import bootstrap, decoder
        from dagster_divorder.models.checkpoint import embedding_table

        base = folder / "base"
        bootstrap.train(TEXTS, base, vocab_size=500, dim=16)
        made.mkdir()
        vocabulary = len(embedding_table(base).weights)
        decoder.make_decoder(base, made, np.ones(vocabulary, np.float32), seed=0)

    return each_made_once(folder, make)
