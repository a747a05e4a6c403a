"""A base model made from the corpus itself, with no download: a byte-level BPE tokenizer and a PPMI-SVD table.

Guarantee: an ordinary Hugging Face checkpoint, a Llama without layers, of which transformers draws no weight at random.
Its bytes depend on texts, settings and seed alone, not on the number of threads.
Cost (2-core EPYC, 16 MB of newsgroups, vocabulary 32,768, 128 dims): 12 to 22 s; memory: see core/vectors/ppmi.py.
Sources: Sennrich, Haddow and Birch 2016 (BPE); Levy, Goldberg and Dagan 2015 (PPMI-SVD).
Known weakness: a language that the sample lacks becomes bytes, whose vectors are useless. Measured choices:
docs/decisions/base-model.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder.engine.progress import Progress, Silent
from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import write_checkpoint, write_json
from dagster_divorder.models.tokenize import Encoder, capped, load_encoder, special_ids

SAMPLE_BYTES = 16 << 20
"""Bytes of text to train on. On newsgroups, half of it loses 0.02 of NMI; twice as much gains 0.02 and takes twice as
long."""

TOKENIZER_BYTES = 8 << 20
"""Bytes of the sample for the tokenizer: half as much saves 1 s and makes 1 to 2 % more tokens, with the same NMI."""

END = "<|endoftext|>"
CONTEXT = 8192
HEAD_DIM = 64


def train(
    texts: Sequence[str],
    directory: Path | str,
    *,
    vocab_size: int = 32_768,
    dim: int = 128,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Encoder, dict[str, Any]]:
    """Trains on texts and writes a checkpoint into `directory`, which is created if it is missing.

    A small corpus gives fewer tokens than `vocab_size` (256 bytes and END at least), and its table may have fewer
    independent columns than `dim`: the rest are zero. If nothing can be learnt, all are random (`rank` 0).

    Returns:
        Its encoder; tokens_seen, vocabulary, dim, rank, explained_variance, pieces, contexts.

    Raises:
        InputError: no text, a text that is not valid Unicode, vocab_size below 257 or dim below 1.
    """
    from dagster_divorder.core.vectors.ppmi import token_vectors

    if not texts or vocab_size < 257 or dim < 1:
        raise InputError(
            f"{len(texts)} texts, vocab_size {vocab_size} and dim {dim}; "
            "expected at least one text, 257 tokens and one column"
        )
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    progress = progress or Silent()
    # The library has no hook for progress.
    with progress("training the tokenizer"):
        _train_tokenizer(texts, directory, vocab_size, seed)
    with progress("comparing tokenizer engines"):
        encoder = load_encoder(directory, sample=texts)
    with progress("tokenising the sample"):
        ids, lengths = encoder.encode(texts)
    with progress("vectors of tokens"):
        table = token_vectors(ids, lengths, encoder.vocab_size, dim, seed=seed)
    vocabulary, eos = encoder.vocab_size, special_ids(directory)["eos"]
    # Llama asks that the heads divide the width: as many as leave at least HEAD_DIM columns to each.
    heads = next(heads for heads in range(max(1, dim // HEAD_DIM), 0, -1) if dim % heads == 0)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": dim,
        "intermediate_size": 4 * dim,
        "num_hidden_layers": 0,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": eos,
        "eos_token_id": eos,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    norm = np.ones(dim, np.float32)
    write_checkpoint(
        directory, config, {"model.embed_tokens.weight": table.vectors, "model.norm.weight": norm}
    )
    return encoder, {
        "tokens_seen": len(ids),
        "vocabulary": vocabulary,
        "dim": dim,
        "rank": table.rank,
        "explained_variance": round(table.explained, 6),
        "pieces": table.pieces,
        "contexts": table.contexts,
    }


def _train_tokenizer(texts: Sequence[str], directory: Path, vocab_size: int, seed: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # GPT-2's splitting, which gigatoken runs. GPT-4's splitting of numbers and newlines gives worse clusters.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    try:
        # Texts in an order drawn from the seed, up to TOKENIZER_BYTES.
        order = np.random.default_rng(seed).permutation(len(texts))
        tokenizer.train_from_iterator(capped((texts[at] for at in order), TOKENIZER_BYTES), trainer)
    except UnicodeEncodeError as error:
        raise InputError("a text holds a lone surrogate; expected valid Unicode") from error
    (directory / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END,
            "eos_token": END,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
        },
    )
