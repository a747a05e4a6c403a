"""Loads configurations, tokenizers and models with transformers' Auto classes, and turns their errors into sentences.

Guarantee: only JSON and safetensors are read and no code of a model runs (`trust_remote_code` stays off). A checkpoint
that lacks weights is refused if hidden states depend on them; no weight is filled at random.
Cost: importing torch and transformers takes 3 s of a processor.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_divorder.engine.base import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import (
    ADDED,
    CONFIG,
    SPECIAL,
    TEMPLATE,
    TOKENIZER,
    first_line,
    read_object,
    write_json,
)
from dagster_divorder.models.tokenize import check_ids, panics_as_errors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

AS_IT_IS = "PreTrainedTokenizerFast"
"""The class that runs tokenizer.json as it is; other classes replace parts of it. Version 5 of transformers calls it
TokenizersBackend, and versions before know it by this name alone."""
CHOSEN = {
    ("llama", AS_IT_IS): AS_IT_IS,
    ("llama", "TokenizersBackend"): AS_IT_IS,
    ("olmo2", AS_IT_IS): AS_IT_IS,
    ("olmo2", "TokenizersBackend"): AS_IT_IS,
    ("qwen2", "Qwen2Tokenizer"): "Qwen2Tokenizer",
    ("qwen3", "Qwen2Tokenizer"): "Qwen2Tokenizer",
}
"""The class that AutoTokenizer chooses, by the model's type and the class that the tokenizer names, where that is sure.
Importing AutoTokenizer imports torch."""
CHANGE_NOTHING = {
    *("backend", "is_local", "local_files_only"),
    *(
        "tokenizer_class",
        "model_max_length",
        "model_input_names",
        "clean_up_tokenization_spaces",
        "chat_template",
    ),
    *("bos_token", "eos_token", "pad_token", "unk_token", "padding_side", "truncation_side"),
    *("additional_special_tokens", "extra_special_tokens"),
}
"""Keys of tokenizer_config.json that leave tokenizer.json as it is, if that has their tokens."""
OWN_FILES: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


@contextmanager
def quiet() -> Iterator[None]:
    """In this context transformers writes no messages and shows no progress bar."""
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


@contextmanager
def explaining(directory: Path, place: str = "this process", relief: str = "free some") -> Iterator[None]:
    """Makes errors of reading a checkpoint readable, and silences transformers. place: what has the memory, for
    messages. relief: what to do when memory is short.

    Raises:
        InputError: transformers has no such architecture or cannot build it from these files; it does not fit into
            memory.
    """
    try:
        with quiet(), panics_as_errors():
            yield
    except InputError:
        raise
    except Exception as error:
        import transformers

        version, told = f"transformers {transformers.__version__}", first_line(error)
        if is_out_of_memory(error):
            message = f"{directory} does not fit into the memory of {place}; {relief}"
        elif "trust_remote_code" in str(error):
            message = (
                f"{directory} comes with code of its own, which is never run; expected a model of {version}"
            )
        elif "torch.distributed" in str(error):
            message = (
                f"the processes that share {directory} cannot join ({first_line(error.__cause__ or error)}); each "
                "needs a GPU of its own: lower deep.tensor_parallel"
            )
        else:
            message = (
                f"{version} cannot load {directory}: {type(error).__name__}: {told}; expected a causal or an encoder "
                "model of text with a fast tokenizer and its weights as safetensors"
            )
        raise InputError(message) from error


def load_config(directory: Path) -> Any:
    """
    Raises:
        InputError: there is no usable configuration.
    """
    from transformers import AutoConfig

    if not (directory / "config.json").is_file():
        raise InputError(f"{directory} has no config.json; expected a Hugging Face checkpoint")
    with explaining(directory):
        return AutoConfig.from_pretrained(directory, **OWN_FILES)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint, without truncation, padding and BPE dropout.

    Raises:
        InputError: there is no usable tokenizer.json.
    """
    import transformers

    check_ids(directory)  # libraries allocate memory for the largest id, or abort
    with explaining(directory):
        kind = getattr(transformers, _chosen(directory) or "AutoTokenizer")
        tokenizer = kind.from_pretrained(directory, **OWN_FILES)
        if not isinstance(tokenizer, transformers.PreTrainedTokenizerFast):
            raise TypeError(f"{type(tokenizer).__name__} is not a fast tokenizer")
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None):
            backend.model.dropout = None
    return tokenizer


def _chosen(directory: Path) -> str | None:
    """The class of `CHOSEN` for a checkpoint; None: AutoTokenizer has to choose."""
    named, config = (
        read_object(directory / name) if (directory / name).is_file() else {}
        for name in (CONFIG, "config.json")
    )
    if "auto_map" in named:
        return None
    return CHOSEN.get((str(config.get("model_type")), str(named.get("tokenizer_class"))))


def _says_all(directory: Path) -> bool:
    """Whether tokenizer.json holds all that transformers would make of the files of a checkpoint, so that a copy is as
    good. Importing transformers takes a second."""
    if _chosen(directory) != AS_IT_IS or any((directory / name).exists() for name in (TEMPLATE, ADDED)):
        return False
    content, config = check_ids(directory), read_object(directory / CONFIG)
    listed = config.pop("added_tokens_decoder", None)
    mapped = read_object(directory / SPECIAL) if (directory / SPECIAL).exists() else {}
    added = content.get("added_tokens") or []
    special = [None, *(token["content"] for token in added if token.get("special"))]
    named = [value for name, value in config.items() if name.endswith("_token")]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        further = config.get(name) or []
        named += further if isinstance(further, list) else [further]
    return (
        config.keys() <= CHANGE_NOTHING
        and all(token in special for token in named)
        and all(config.get(name) == value for name, value in mapped.items())
        and listed in (None, {str(token.pop("id")): token for token in added})
        and not (content.get("truncation") or content.get("padding") or content["model"].get("dropout"))
    )


def save_tokenizer(directory: Path, folder: Path, template: str | None = None) -> None:
    """Writes the tokenizer of a checkpoint into an existing folder: tokenizer.json with all control tokens, and
    tokenizer_config.json with special tokens and chat templates. AutoTokenizer, `tokenizers` and gigatoken read the
    same tokenizer from them, since its class is `AS_IT_IS`. template: the chat template in place of the checkpoint's
    own.

    Raises:
        InputError: there is no usable tokenizer.json.
    """
    if template is None and _says_all(directory):
        for name in (TOKENIZER, CONFIG):
            shutil.copyfile(directory / name, folder / name)
    else:
        _save_loaded(directory, folder, template)
    config = read_object(folder / CONFIG)
    if config["tokenizer_class"] != AS_IT_IS:
        write_json(folder / CONFIG, {**config, "tokenizer_class": AS_IT_IS})


def _save_loaded(directory: Path, folder: Path, template: str | None) -> None:
    from transformers import PreTrainedTokenizerFast

    own = load_tokenizer(directory)
    kept = ("model_max_length", "model_input_names", "padding_side", "truncation_side", "chat_template")
    options = {name: getattr(own, name) for name in kept} | dict(own.special_tokens_map)
    with explaining(directory):
        saved = PreTrainedTokenizerFast(tokenizer_object=own.backend_tokenizer, **options)
        if template is not None:
            saved.chat_template = template
        saved.save_pretrained(folder, save_jinja_files=False)


def load_module(directory: Path, kind: str, device: str, dtype: str, *, processes: int = 1) -> Any:
    """A checkpoint's module, of a class of transformers (`kind`), on a device; of an encoder-decoder model only the
    encoder. processes: how many processes share the model; each of them calls this.

    Raises:
        InputError: as `explaining`; weights are missing.
    """
    import torch
    import transformers

    config = load_config(directory)
    for level in (config, config.get_text_config()):
        level.use_cache = False
    options: dict[str, Any] = {"config": config, "dtype": getattr(torch, dtype)}
    if processes > 1:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=processes)
    relief = "spread it over several GPUs with deep.tensor_parallel, or set deep.model to a smaller one"
    with explaining(directory, f"{device} in {dtype}", relief):
        module, report = getattr(transformers, kind).from_pretrained(
            directory, use_safetensors=True, output_loading_info=True, **OWN_FILES, **options
        )
        used = module.get_encoder() if config.is_encoder_decoder else module
        # Weights that hidden states depend on would be random.
        needed = {id(parameter) for parameter in used.parameters()}
        names = {name for name, parameter in module.named_parameters() if id(parameter) in needed}
        missing = (name for name in report["missing_keys"] if name in names)
        lacking = sorted(name for name in missing if "pooler" not in name.split("."))
        lacking += sorted(str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"])
        if lacking:
            raise InputError(
                f"{directory} lacks {len(lacking)} of {len(names)} weights of {type(module).__name__} (or has them in "
                f"another shape): {', '.join(lacking[:3])}; download or save the model again"
            )
        return used.eval() if processes > 1 else used.eval().to(device)
