"""Finds how a Hugging Face model reads a document: pooling, window, special tokens, device and dtype, from its files.

Guarantee: a model reads a document as in sentence-transformers or transformers, unless a setting says otherwise.
Sources: 1_Pooling and sentence_bert_config.json of sentence-transformers; the tokenizer's post-processor.
Known weakness: sentence-transformers' layers after pooling (Dense) and its prompts are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import POOLING, SENTENCE, read_object
from dagster_divorder.models.pretrained import explaining, load_config, load_tokenizer

Pooling = Literal["mean", "last", "cls"]

NO_LIMIT = 8192
"""Tokens in a window of a model without a limit, such as a model with relative positions or a state space."""
UNLIMITED = 1 << 31
"""A tokenizer without a limit reports a larger number."""

POOLING_MODES: dict[str, Pooling] = {
    "mean": "mean",
    "mean_sqrt_len": "mean",  # a mean times a number, equal once vectors have length 1
    "cls": "cls",
    "lasttoken": "last",
}
"""By sentence-transformers' names."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """How a model reads documents: everything but weights and tokens that decides its vectors.

    window: tokens that it sees at once, including `prefix` and `suffix`, the ids around each window. pad: the id of
    padding. device: cpu, cuda or mps. dtype: of the forward pass.
    """

    pooling: Pooling
    window: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad: int
    device: str
    dtype: str

    @property
    def room(self) -> int:
        """Tokens of the document in a window."""
        return self.window - len(self.prefix) - len(self.suffix)


def read_spec(
    directory: Path | str,
    *,
    pooling: Pooling | None = None,
    max_tokens: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
) -> EmbeddingSpec:
    """How a model reads documents, by settings and a checkpoint's own files. pooling: None for the checkpoint's own.
    max_tokens: 0 for the model's context. The dtype is the checkpoint's own on a GPU, `cpu_dtype` on a CPU.

    Raises:
        InputError: there is no usable configuration; the pooling is unknown; max_tokens is above the model's positions,
            or not above the tokens that its tokenizer adds; or this machine does not have the device.
    """
    directory = Path(directory)
    config = load_config(directory)
    hard, usual = context(directory, config)
    if hard is not None and max_tokens > hard:
        raise InputError(
            f"deep.max_tokens is {max_tokens:,}, but {directory} has {hard:,} positions; set it to at most {hard:,}"
        )
    prefix, suffix = special_tokens_around(directory)
    window = max_tokens or usual
    if window <= len(prefix) + len(suffix):
        raise InputError(
            f"deep.max_tokens is {window}, but the tokenizer of {directory} adds {len(prefix) + len(suffix)} tokens of "
            "its own to every text; expected more"
        )
    text, chosen_device, dtype = config.get_text_config(), find_device(device), cpu_dtype()
    pad, rows = getattr(text, "pad_token_id", None), getattr(text, "vocab_size", None)
    if chosen_device != "cpu":
        named = getattr(config, "dtype", None) or getattr(text, "dtype", None)
        dtype = str(named).removeprefix("torch.")
        dtype = dtype if dtype in ("bfloat16", "float16") else "float32"
    return EmbeddingSpec(
        pooling=pooling or find_pooling(directory),
        window=window,
        prefix=prefix,
        suffix=suffix,
        # The embedding may have no row for the id.
        pad=pad if isinstance(pad, int) and 0 <= pad < (rows or 0) else 0,
        device=chosen_device,
        dtype=dtype,
    )


def find_device(device: str) -> str:
    """`device`, or for "auto" the first of `cuda`, `mps` and `cpu` that torch finds. Raises InputError if torch does
    not find `device`."""
    import torch

    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    names = [name for name in usable if usable[name]]
    if device not in ("auto", *names):
        raise InputError(
            f'engine.device is "{device}", which torch {torch.__version__} does not find on this machine; expected '
            f"{' or '.join(names)}, or auto"
        )
    return names[0] if device == "auto" else device


def cpu_dtype() -> str:
    """bfloat16 if the processor has matrix units, which make it three times as fast (benchmarks/deep), else float32."""
    import torch

    # An older torch has no such function.
    known: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bfloat16" if known.get("amx_bf16") else "float32"


def find_pooling(directory: Path) -> Pooling:
    """The pooling in a checkpoint's sentence-transformers files; `mean` if there are none.

    Raises:
        InputError: the pooling is unknown, or there are several.
    """
    path = directory / POOLING
    if not path.is_file():
        return "mean"
    content = read_object(path)
    named = [key for key, on in content.items() if key.startswith("pooling_mode_") and on is True]
    modes = [re.sub("^pooling_mode_|_tokens?$", "", key) for key in named]
    if isinstance(mode := content.get("pooling_mode"), str):  # the form of newer versions
        modes = [mode]
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise InputError(
            f"{path} asks for {', '.join(modes) or 'no pooling'}; expected one of {', '.join(POOLING_MODES)}: "
            "correct it, or set deep.model to another model"
        )
    return POOLING_MODES[modes[0]]


def special_tokens_around(directory: Path | str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the checkpoint's tokenizer puts before and after a text, such as [CLS] and [SEP]."""
    tokenizer = load_tokenizer(Path(directory)).backend_tokenizer
    for text in ("a", "1", ".", "é", "中"):  # a tokenizer may have no token for a script
        encoding = tokenizer.encode(text)
        own = [at for at, special in enumerate(encoding.special_tokens_mask) if not special]
        if own:
            return tuple(encoding.ids[: own[0]]), tuple(encoding.ids[own[-1] + 1 :])
    return tuple(tokenizer.encode("").ids), ()


def context(directory: Path, config: Any) -> tuple[int | None, int]:
    """(positions of a model, None without a limit; default tokens of its window)."""
    import torch
    from transformers import AutoModel

    with explaining(directory), torch.device("meta"):
        # Without the vision part of a multimodal model, which has tables of positions in images.
        model = AutoModel.from_config(config.get_text_config(), trust_remote_code=False)
    names = ("max_position_embeddings", "max_seq_len")
    limits = [getattr(config.get_text_config(), name, None) for name in names]
    # Learned tables of positions: RoBERTa counts from after its padding id, OPT from an offset.
    for name, table in model.named_modules():
        tables = ("position_embeddings", "embed_positions", "position_embedding", "wpe")
        if isinstance(table, torch.nn.Embedding) and name.rpartition(".")[2] in tables:
            padding = 0 if table.padding_idx is None else table.padding_idx + 1
            limits.append(int(table.num_embeddings - getattr(table, "offset", 0) - padding))
    hard = min((limit for limit in limits if isinstance(limit, int) and 0 < limit < UNLIMITED), default=None)
    return hard, min([*declared_lengths(directory), *([] if hard is None else [hard])], default=NO_LIMIT)


def declared_lengths(directory: Path) -> list[int]:
    """Limits of a window in a model's files of the tokenizer and of sentence-transformers."""
    limits = [
        read_object(directory / name).get(key)
        for name, key in (("tokenizer_config.json", "model_max_length"), (SENTENCE, "max_seq_length"))
        if (directory / name).is_file()
    ]
    return [int(limit) for limit in limits if isinstance(limit, int | float) and 1 <= limit < UNLIMITED]
