"""A Hugging Face checkpoint: where it is, its input embedding, its fingerprints.

Guarantee: only JSON files and safetensors are read; nothing is unpickled and no code of a model runs. From a sharded
checkpoint on the Hub only the file with the input embedding is downloaded, unless the caller asks for all weights.
Known weakness: the embedding is found by its name, so a new architecture may need one more name in TABLE_NAMES.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.settings.places import id_and_revision
from dagster_divorder.units import SETTLED_NS

TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
SPECIAL, ADDED = "special_tokens_map.json", "added_tokens.json"
TOKENIZER_FILES = (TOKENIZER, CONFIG, TEMPLATE)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
READ = ("*.json", "*.jinja", "*.safetensors", "*/config.json", "*/*.jinja")
"""Files that decide what a checkpoint computes: configurations, tokenizer, templates, weights, and in folders the
pooling of sentence-transformers and further templates."""
# Files of sentence-transformers: how hidden states are pooled, how many tokens a model takes.
POOLING = "1_Pooling/config.json"
SENTENCE = "sentence_bert_config.json"

# Names of the module that maps token ids to vectors. If several match, the first counts.
TABLE_NAMES = (
    "shared",  # T5, BART: encoder and decoder tables are copies of it
    "embed_tokens",  # Llama, Mistral, Qwen, Gemma, OPT, Phi
    "wte",  # GPT-2, GPT-J, MPT
    "word_embeddings",  # BERT, BLOOM, Falcon, ChatGLM
    "word_embedding",  # XLNet
    "tok_embeddings",  # ModernBERT, InternLM
    "embed_in",  # GPT-NeoX
    "tokens_embed",  # GPT
    "token_embedding",  # CLIP text models
    "token_embeddings",
    "embeddings",  # Mamba, RWKV
    "embedding",
)
KEYS_SHOWN = 40


class EmbeddingTable(NamedTuple):
    """The input embedding: its key in the checkpoint, and weights float32 (V, D)."""

    key: str
    weights: NDArray[np.float32]


def locate(base: str, *, all_weights: bool = False, setting: str = "model.base") -> Path:
    """The directory of a checkpoint: `base` itself if it is a directory, else the snapshot of a Hugging Face id, cached
    or downloaded. An id may include a branch, tag or commit, `org/name@revision`; by default the main branch.

    all_weights: all weight files must exist, not the one with the input embedding alone. setting: what errors name.

    Raises:
        InputError: `base` is neither a directory nor an id that can be reached; there is no tokenizer.json or no
            safetensors file; or a shard is missing and all weights are wanted.
    """
    directory = Path(os.path.expanduser(base))  # `Path.expanduser` raises for a user without a home
    if not directory.is_dir():
        name, revision = id_and_revision(base)
        if directory.is_file() or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
            fault = "it is a file" if directory.is_file() else "there is no such directory"
            raise InputError(
                f"{setting} is {base!r}: {fault}; expected the folder of a Hugging Face checkpoint, with {TOKENIZER} "
                "and weights as safetensors, or a Hugging Face id"
            )
        patterns = [pattern for pattern in READ if not pattern.endswith("safetensors")]
        directory = _fetch(name, revision, patterns, setting)
        files = [WEIGHTS]
        if (directory / INDEX).is_file():
            places = weight_map(directory)
            files = [*places.values()] if all_weights else [places[_choose(places, directory)]]
        # The commit, even if the repository changes meanwhile.
        _fetch(name, directory.name, files, setting)
    _refuse_incomplete(directory)
    if all_weights:
        weight_files(directory)
    return directory


def _fetch(name: str, revision: str | None, patterns: list[str], setting: str) -> Path:
    """The snapshot with the files of these names that the repository (or, offline, the cache) has."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:
        at = f" at {revision!r}" if revision else ""
        raise InputError(
            f"{setting} is {name!r}{at}: no such directory, and neither the Hugging Face Hub nor the local cache gives "
            f"it ({type(error).__name__}: {first_line(error)}); check the id and the network (HF_HUB_OFFLINE forbids "
            "it), log in for a gated model, see that the Hub's cache (HF_HOME) can be written to, or name a directory"
        ) from error


def _refuse_incomplete(directory: Path) -> None:
    """
    Raises:
        InputError: a directory holds an adapter, or lacks tokenizer.json or weights as safetensors.
    """
    has_weights = any((directory / name).is_file() for name in (WEIGHTS, INDEX))
    if (directory / ADAPTER).is_file() and not has_weights:
        model = read_object(directory / ADAPTER).get("base_model_name_or_path") or "its base model"
        raise InputError(
            f"{directory} is an adapter of {model} and has no input embedding; name {model}, or merge them with peft: "
            "merge_and_unload().save_pretrained(folder), with the tokenizer beside it"
        )
    if not (directory / TOKENIZER).is_file():
        inside = [*directory.glob("*/config.json"), *directory.glob("snapshots/*/config.json")]
        folder = f"; the folder {min(inside).parent} looks like one" if inside else ""
        raise InputError(
            f"{directory} has no {TOKENIZER}; expected the folder of a checkpoint with a fast tokenizer{folder}. "
            "Convert a slow one with transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        )
    if not has_weights:
        raise InputError(
            f"{directory}: expected weights as {WEIGHTS} (or shards with {INDEX}) and found none. Weights as .bin or "
            ".pt are pickle, which could run code, and GGUF is llama.cpp's form; save the model again with "
            "model.save_pretrained(folder, safe_serialization=True)"
        )


def weight_files(directory: Path | str) -> list[Path]:
    """All weight files of a checkpoint, by name: model.safetensors, or the shards of its index.

    Raises:
        InputError: a file is missing.
    """
    directory = Path(directory)
    names = sorted({*weight_map(directory).values()})
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise InputError(
            f"{directory / INDEX} names {len(names)} weight files, but {len(missing)} of them are missing "
            f"({', '.join(missing[:3])}); download or save the model again"
        )
    return [directory / name for name in names]


def embedding_table(directory: Path | str, *, vocabulary: int | None = None) -> EmbeddingTable:
    """The input embedding of a checkpoint. vocabulary: rows to read, one more than the largest token id; None for all.

    Raises:
        InputError: a file is damaged; the embedding is absent, ambiguous, not finite, or not of 16, 32 or 64 bit
            floats; or it has fewer rows than `vocabulary`.
    """
    from safetensors import safe_open

    directory = Path(directory)
    files = weight_map(directory)
    key = _choose(files, directory)
    path = directory / files[key]
    tensors = stored_tensors(path) if path.is_file() else {}
    if key not in tensors:
        fault = "does not hold it" if tensors else "is not there"
        raise InputError(f"{key} should be in {path}, which {fault}; download or save the model again")
    dtype, shape = tensors[key]
    if dtype not in ("F64", "F32", "F16", "BF16") or len(shape) != 2 or not min(shape):
        raise InputError(
            f"{key} in {path} is {dtype} of shape {shape}; expected a matrix of F32, F16, BF16 or F64 with a row for "
            "each token: save the embedding whole and unquantised"
        )
    check_vocabulary(directory, shape[0], vocabulary or 0)
    with safe_open(path, "pt" if dtype == "BF16" else "numpy") as file:
        rows = file.get_slice(key)[:vocabulary]
    weights: NDArray[Any] = rows.float().numpy() if dtype == "BF16" else rows.astype(np.float32, copy=False)
    if unusable := np.count_nonzero(~np.isfinite(weights).all(axis=1)):
        raise InputError(
            f"{unusable:,} rows of {key} in {path} hold NaN or infinity; expected finite numbers"
        )
    return EmbeddingTable(key, weights)


def check_vocabulary(directory: Path, rows: int, vocabulary: int) -> None:
    """Raises InputError if the model's embedding has fewer `rows` than `vocabulary`, one more than the largest id of
    the directory's tokenizer."""
    if vocabulary > rows:
        raise InputError(
            f"the tokenizer of {directory} has ids up to {vocabulary - 1:,} and the model's embedding has only "
            f"{rows:,} rows; use the tokenizer and the weights of one model"
        )


def table_fingerprint(table: EmbeddingTable) -> str:
    """xxh3-128, in hex, of the table's shape, dtype and bytes."""
    from xxhash import xxh3_128

    state = xxh3_128(f"{table.weights.dtype} {table.weights.shape} ".encode())
    state.update(np.ascontiguousarray(table.weights).data)
    return state.hexdigest()


def tokenizer_fingerprint(directory: Path | str) -> str:
    """xxh3-128, in hex, of tokenizer.json."""
    from xxhash import xxh3_128_hexdigest

    return xxh3_128_hexdigest((Path(directory) / TOKENIZER).read_bytes())


def signature(directory: Path) -> list[list[str | int]] | None:
    """Name, size, modification time and status change time (ns) of each file in READ. While they are the same, the
    files are. None if a file is so young that a later write may not change its times."""
    paths = sorted({path for pattern in READ for path in directory.glob(pattern)})
    stats = {str(path.relative_to(directory)): path.stat() for path in paths if path.is_file()}
    if max((stat.st_ctime_ns for stat in stats.values()), default=0) > time.time_ns() - SETTLED_NS:
        return None
    return [[name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats.items()]


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file that holds an object. InputError, naming it, if it is damaged or does not."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(
            f"{path} is not readable JSON ({error}); download or save the model again"
        ) from error
    if not isinstance(content, dict):
        raise InputError(
            f"{path} holds a JSON {type(content).__name__}, expected an object; download or save the model again"
        )
    return content


def _choose(keys: Iterable[str], directory: Path) -> str:
    """The key of the input embedding: chosen by name, then the key nearest to the top, then the encoder's."""
    keys = sorted(keys)
    ranks: dict[tuple[int, int, bool], list[str]] = {}
    for key in keys:
        *above, name, parameter = ("", *key.split("."))
        if parameter == "weight" and name in TABLE_NAMES:
            ranks.setdefault((TABLE_NAMES.index(name), len(above), "encoder" not in above), []).append(key)
    if ranks:
        key, *others = ranks[min(ranks)]
        if others:
            raise InputError(
                f"the input embedding of {directory} is ambiguous: {', '.join([key, *others][:KEYS_SHOWN])}; save a "
                "checkpoint with one of them"
            )
        return key
    more = f" and {len(keys) - KEYS_SHOWN:,} more" if len(keys) > KEYS_SHOWN else ""
    raise InputError(
        f"no input embedding found in {directory}: expected a matrix whose key ends in one of "
        f"{', '.join(f'{name}.weight' for name in TABLE_NAMES)}; "
        f"there are {', '.join(keys[:KEYS_SHOWN]) or 'no keys'}{more}"
    )


def weight_map(directory: Path) -> Mapping[str, str]:
    """The file of each weight of a checkpoint, by its key.

    Raises:
        InputError: a checkpoint is incomplete, or its index or model.safetensors is damaged.
    """
    if (directory / WEIGHTS).is_file():
        return dict.fromkeys(stored_tensors(directory / WEIGHTS), WEIGHTS)
    _refuse_incomplete(directory)
    files = read_object(directory / INDEX).get("weight_map")
    if not isinstance(files, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in files.values()
    ):
        raise InputError(
            f"{directory / INDEX} has no usable weight_map (key -> file beside it); download or save the model again"
        )
    return files


def stored_tensors(path: Path) -> dict[str, tuple[str, list[int]]]:
    """(safetensors' name of the dtype, shape) of each tensor in a file. InputError if the file is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            return {key: (tensor.get_dtype(), tensor.get_shape()) for key, tensor in slices.items()}
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a whole safetensors file: {error}; download or save it again"
        ) from error


def write_checkpoint(
    directory: Path, config: Mapping[str, Any], weights: Mapping[str, NDArray[np.float32]]
) -> None:
    """Writes config.json and model.safetensors into an existing directory."""
    from safetensors.numpy import save

    write_json(directory / "config.json", config)
    # The library's own writer raises no OSError on a full disk.
    (directory / WEIGHTS).write_bytes(save(dict(weights), metadata={"format": "pt"}))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
