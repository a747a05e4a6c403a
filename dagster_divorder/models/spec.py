"""How a Hugging Face model reads a document: pooling, window, special tokens, device and dtype, from its own files.

Guarantee: what sentence-transformers or transformers would do with the checkpoint, unless a setting says otherwise.
Only JSON is read, and no code of a model runs (`trust_remote_code` stays off).
Cost: importing torch and transformers takes 5 s and more; the architecture is built once without memory, to see its
tables of positions.
Sources: sentence-transformers' files (modules.json, 1_Pooling, sentence_bert_config.json); tokenizer.json's
post-processor.
Known weakness: what sentence-transformers appends after pooling (Dense layers) and its prompts are left out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import (
    MODULES,
    POOLING,
    SENTENCE,
    read_json,
    read_object,
    stored_tensors,
    weight_files,
)
from dagster_divorder.models.tokenize import load_reference

Pooling = Literal["mean", "last", "cls"]

NO_LIMIT = 8192
"""Tokens of a window of a model that knows no limit, such as one with relative positions or a state space."""
UNLIMITED = 1 << 31
"""A tokenizer without a limit gives a number above this."""
LAYERS = 4096
"""More are a mistake: the deepest models have some hundreds."""
NUMBERS_A_BYTE, SMALL = 16, 1 << 26
"""Weights and tables that a configuration may describe for a byte of stored weights (quantised ones pack up to 8), and
what a small model may have besides."""
DTYPES = {"F32": "float32", "F64": "float32", "BF16": "bfloat16", "F16": "float16"}

POOLING_MODES: dict[str, Pooling] = {
    "mean": "mean",
    "mean_sqrt_len": "mean",  # a mean times a number: the same once it has length 1
    "cls": "cls",
    "lasttoken": "last",
}
"""By sentence-transformers' names."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """How a model reads documents: all that decides its vectors beside weights and tokens.

    `window`: tokens that it sees at once, `prefix` and `suffix` among them, which stand around each window; `pad`: id
    of what is masked out; `device` cpu, cuda or mps; `dtype` of the forward pass.
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
    pooling: Literal["auto", "mean", "last", "cls"] = "auto",
    max_tokens: int = 0,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
) -> EmbeddingSpec:
    """What settings and a checkpoint's own files come to. `max_tokens` 0: the model's context; `dtype` auto: the
    checkpoint's own on a GPU, `cpu_dtype` on a CPU.

    Raises:
        InputError: no usable configuration, a pooling that is not offered, more tokens than the model has positions or
            no more than it adds of its own, a device that is not there.
    """
    directory = Path(directory)
    config = load_config(directory)
    hard, usual = context(directory, config)
    if hard is not None and max_tokens > hard:
        raise InputError(
            f"deep.max_tokens is {max_tokens:,} and {directory} has {hard:,} positions; set it to {hard:,} at most "
            '(deep.long_documents = "chunk" reads longer documents in windows)'
        )
    prefix, suffix = special_tokens_around(directory)
    window = max_tokens or usual
    if window <= len(prefix) + len(suffix):
        raise InputError(
            f"deep.max_tokens is {window} and the tokenizer of {directory} adds {len(prefix) + len(suffix)} tokens of "
            "its own to every text; expected more"
        )
    found = find_device(device)
    return EmbeddingSpec(
        pooling=find_pooling(directory) if pooling == "auto" else pooling,
        window=window,
        prefix=prefix,
        suffix=suffix,
        pad=padding_id(config),
        device=found,
        dtype=dtype if dtype != "auto" else cpu_dtype() if found == "cpu" else _own_dtype(directory, config),
    )


def padding_id(config: Any) -> int:
    """The id of what is masked out: the configuration's own, or 0 where it has none or one without a row."""
    text = config.get_text_config()
    pad, rows = (getattr(text, name, None) for name in ("pad_token_id", "vocab_size"))
    return pad if isinstance(pad, int) and 0 <= pad < (rows or 0) else 0


def find_device(device: str) -> str:
    """`cuda`, `mps` or `cpu`: the one asked for, or the best there is. InputError where it is not there."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(name for name, usable in there.items() if usable)
    if not there[device]:
        raise InputError(
            f'engine.device is "{device}", which torch {torch.__version__} does not find on this machine; expected '
            f"{' or '.join(name for name, usable in there.items() if usable)}, or auto"
        )
    return device


def cpu_dtype() -> str:
    """bfloat16 on a processor with matrix units for it (AMX), three times as fast there (benchmarks/deep); float32 on
    any other."""
    import torch

    # An older torch tells nothing.
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bfloat16" if capabilities.get("amx_bf16") else "float32"


def find_pooling(directory: Path) -> Pooling:
    """What the sentence-transformers files of a checkpoint say, `mean` where there are none.

    Raises:
        InputError: it is pooled in a way, or in several at once, that is not offered.
    """
    path = directory / POOLING
    if not path.is_file():
        return "mean"
    content = read_object(path)
    if isinstance(mode := content.get("pooling_mode"), str):  # as newer versions write it
        modes = [mode]
    else:
        named = [key for key, on in content.items() if key.startswith("pooling_mode_") and on is True]
        modes = [re.sub("^pooling_mode_|_tokens?$", "", key) for key in named]
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise InputError(
            f"{path} asks for {', '.join(modes) or 'no pooling'}; expected one of {', '.join(POOLING_MODES)}. "
            'Name what comes nearest: deep.pooling = "mean", "last" or "cls"'
        )
    return POOLING_MODES[modes[0]]


def modules_after_pooling(directory: Path | str) -> tuple[str, ...]:
    """Layers that sentence-transformers applies after pooling and that are not applied here, by their kinds."""
    path = Path(directory) / MODULES
    modules = read_json(path) if path.is_file() else []
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise InputError(f"{path} is not a list of modules (JSON objects); fetch or save the model again")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    return tuple(kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize"))


def special_tokens_around(directory: Path | str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the checkpoint's own tokenizer puts before and after a text, such as [CLS] and [SEP]."""
    tokenizer = load_reference(Path(directory))
    for probe in ("a", "1", ".", "é", "中"):  # a tokenizer may know nothing of a script
        encoding = tokenizer.encode(probe)
        own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        if len(own):
            return tuple(encoding.ids[: own[0]]), tuple(encoding.ids[own[-1] + 1 :])
    return tuple(tokenizer.encode("").ids), ()


def context(directory: Path, config: Any) -> tuple[int | None, int]:
    """Positions that a model has, None where it has no limit, and the tokens that it is used with by default."""
    limits = [
        getattr(config.get_text_config(), name, None) for name in ("max_position_embeddings", "max_seq_len")
    ]
    limits += _position_tables(directory, config)
    hard = min((limit for limit in limits if isinstance(limit, int) and 0 < limit < UNLIMITED), default=None)
    return hard, min([*declared_lengths(directory), *([] if hard is None else [hard])], default=NO_LIMIT)


def declared_lengths(directory: Path) -> list[int]:
    """Tokens that a model takes, as its tokenizer's and sentence-transformers' files say, where that is a limit."""
    said = [
        read_object(directory / name).get(key)
        for name, key in (("tokenizer_config.json", "model_max_length"), (SENTENCE, "max_seq_length"))
        if (directory / name).is_file()
    ]
    return [int(limit) for limit in said if isinstance(limit, int | float) and 1 <= limit < UNLIMITED]


def _position_tables(directory: Path, config: Any) -> list[int]:
    """Positions that learned tables leave to tokens: RoBERTa counts from after its padding id, OPT from an offset."""
    import torch
    from transformers import AutoModel

    with quiet(), torch.device("meta"):
        try:
            model = AutoModel.from_config(config, trust_remote_code=False)
        except Exception as error:
            raise unusable(directory, error) from error
    numbers = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    stored = sum(path.stat().st_size for path in weight_files(directory))
    if numbers > NUMBERS_A_BYTE * stored + SMALL:
        raise InputError(
            f"{directory / 'config.json'} describes a model of {numbers:,} numbers, and its weights have {stored:,} "
            "bytes; expected the configuration and the weights of one model"
        )
    tables = [
        module.num_embeddings
        - getattr(module, "offset", 0)
        - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding)
        and name.rpartition(".")[2] in ("position_embeddings", "embed_positions", "position_embedding", "wpe")
    ]
    return [int(table) for table in tables]


def load_config(directory: Path) -> Any:
    from transformers import AutoConfig

    if not (directory / "config.json").is_file():
        raise InputError(f"{directory} has no config.json; expected a Hugging Face checkpoint")
    with quiet():
        try:
            config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
            # Building them takes milliseconds each, also without their weights.
            layers = [
                value
                for part in (config, config.get_text_config())
                for name, value in part.to_dict().items()
                if "layer" in name and isinstance(value, int)
            ]
        except Exception as error:
            raise unusable(directory, error) from error
    if max(layers, default=0) > LAYERS:
        raise InputError(
            f"{directory / 'config.json'} asks for {max(layers):,} layers; expected {LAYERS:,} at most: fetch or save "
            "the model again"
        )
    return config


def _own_dtype(directory: Path, config: Any) -> str:
    """The dtype that a checkpoint is stored in."""
    said = str(
        getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    ).removeprefix("torch.")
    if said in DTYPES.values():
        return said
    stored = {dtype for dtype, _ in stored_tensors(weight_files(directory)[0]).values()}
    return next((DTYPES[kind] for kind in ("BF16", "F16", "F32") if kind in stored), "float32")


def unusable(directory: Path, error: Exception) -> InputError:
    import transformers

    if "trust_remote_code" in str(error):
        return InputError(
            f"{directory} comes with code of its own, which is never run; expected an architecture of "
            f"transformers {transformers.__version__}"
        )
    return InputError(
        f"transformers {transformers.__version__} cannot load {directory}: {type(error).__name__}: "
        f"{first_line(error)}; expected a causal or an encoder model of text with its weights as safetensors"
    )


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")


@contextmanager
def quiet() -> Iterator[None]:
    """transformers says nothing, and shows no progress bar, meanwhile."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
