"""The tokenizer beside an export: files with which transformers gives exactly the ids of the export.

Guarantee: `AutoTokenizer.from_pretrained(folder)` of the installed transformers gives the stored ids of the conformance
texts and of a sample of the corpus, without special tokens, and no other eos, bos or pad than the stored ones. Its chat
template is the one that rendered the conversations, and gives their stored ids. The other files are the checkpoint's
own, without BPE dropout, if these give the ids. Else tokenizer_config.json names the class
that runs tokenizer.json as it is: without the config.json of a model, transformers chooses another class, and several
classes replace the splitting of text by their own.
Cost: importing transformers, some 5 s; the sample takes 0.3 s unless `base_model` has just read it.
Known weakness: another version of transformers may read the same files in another way. Texts that are appended later
are not compared.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.engine.memory import is_out_of_memory
from dagster_divorder.models.chat_templates import TEMPLATE, WITH_TOOLS
from dagster_divorder.models.checkpoint import TOKENIZER, first_line, read_object
from dagster_divorder.models.conformance import conformance_texts
from dagster_divorder.models.tokenize import NAMES_IN, SPECIALS, Encoder, load_reference, named_specials

CONFIG, SPECIAL_TOKENS = NAMES_IN
TOKENIZER_FILES = (TOKENIZER, CONFIG, SPECIAL_TOKENS, TEMPLATE)

SAMPLE_BYTES, SAMPLE_ROWS = 1 << 19, 5_000
"""Bytes and rows of the corpus's texts that are compared."""
SAMPLE_CHATS = 64
"""Records whose conversations are compared."""

PLAIN_CLASS = "PreTrainedTokenizerFast"
"""Runs tokenizer.json as it is."""
KEPT = ("chat_template", "model_max_length", "model_input_names", "padding_side", "truncation_side")
"""Keys of a tokenizer_config.json that stay beside the special tokens when the class is replaced: they change no id."""

Form = Literal["own", "plain", "none"]
"""Which files lie beside an export: the checkpoint's own, those of PLAIN_CLASS, or none."""
Conversation = tuple[list[dict[str, Any]], Sequence[Any] | None, list[int]]
"""(messages, tools, the expected ids)."""


def choose_form(
    directory: Path,
    encoder: Encoder,
    special: Mapping[str, int],
    texts: Sequence[str],
    template: ChatTemplate | None = None,
    conversations: Sequence[Conversation] = (),
) -> tuple[Form, str]:
    """(the form of a checkpoint's tokenizer whose files give the ids of `encoder` for `texts`, and those of
    `conversations`; a note if they are not the checkpoint's own, or ""). special: known ids of `eos`, `bos` and `pad`.
    template: of conversations.

    Raises:
        InputError: a file that is no JSON.
    """
    added = read_object(directory / TOKENIZER).get("added_tokens") or []
    compared = [*conformance_texts(token["content"] for token in added), *texts]
    ids, lengths = encoder.encode(compared)
    expected = [of_text.tolist() for of_text in np.split(ids, np.cumsum(lengths)[:-1])]
    wanted = compared, expected, special, conversations
    why = _difference(tokenizer_files(directory, "own", template), *wanted)
    if not why:
        return "own", ""
    if _difference(tokenizer_files(directory, "plain", template), *wanted):
        return (
            "none",
            f"no tokenizer is written beside the exports, since none gives their ids in transformers: {why}",
        )
    return "plain", (
        f"{CONFIG} beside the exports names the class {PLAIN_CLASS}: with the checkpoint's own files alone, "
        f"AutoTokenizer does not give the ids of the exports ({why})"
    )


def _difference(
    files: Mapping[str, bytes],
    texts: Sequence[str],
    expected: Sequence[list[int]],
    special: Mapping[str, int],
    conversations: Sequence[Conversation],
) -> str:
    """The first difference between AutoTokenizer's ids and the expected ones, in words, or ""."""
    from transformers import AutoTokenizer

    from dagster_divorder.models.spec import quiet

    with TemporaryDirectory() as folder, quiet():
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            rendered = [
                str(tokenizer.apply_chat_template(messages, tools=list(tools or ()) or None, tokenize=False))
                for messages, tools, _ in conversations
            ]
            rendered_ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in rendered]
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return f"{type(error).__name__}: {first_line(error)}"
    for text, ids, wanted in zip(texts, encoded, expected, strict=True):
        if ids != wanted:
            return f"{type(tokenizer).__name__} makes {len(ids)} tokens of {text[:40]!r}, not {len(wanted)}"
    for text, ids, (*_, wanted) in zip(rendered, rendered_ids, conversations, strict=True):
        if ids != wanted:
            return f"its chat template gives {len(ids)} tokens, not {len(wanted)}: {text[:40]!r}"
    for name, number in special.items():
        if (its_id := getattr(tokenizer, f"{name}_token_id")) not in (None, number):
            return f"{type(tokenizer).__name__} has {its_id} as {name}, not {number}"
    return ""


def tokenizer_files(directory: Path, form: Form, template: ChatTemplate | None = None) -> dict[str, bytes]:
    """The files of a checkpoint's tokenizer in a form, by name. template: the chat template in place of its own.

    Raises:
        InputError: a file that is no JSON.
    """
    if form == "none":
        return {}
    files = {
        name: (directory / name).read_bytes() for name in TOKENIZER_FILES if (directory / name).is_file()
    }
    content = read_object(directory / TOKENIZER)
    if content["model"].get("dropout"):
        content["model"]["dropout"] = None
        files[TOKENIZER] = json.dumps(content, ensure_ascii=False).encode()
    if form == "plain":
        files = _of_plain_class(directory, files)
    if template is None:
        return files
    if template.with_tools is None:
        return {**files, TEMPLATE: template.template.encode()}
    # Names of several templates stand in the configuration, unless there is a file of one.
    named = {"default": template.template, WITH_TOOLS: template.with_tools.template}
    config = json.loads(files.get(CONFIG, b"{}"))
    config["chat_template"] = [{"name": name, "template": jinja} for name, jinja in named.items()]
    files = {name: data for name, data in files.items() if name != TEMPLATE}
    return {**files, CONFIG: _json(config)}


def form_version(directory: Path) -> list[str]:
    """What `choose_form` depends on besides the ids: the files of the tokenizer, and the versions of packages."""
    files = [hashlib.sha256(data).hexdigest() for data in tokenizer_files(directory, "own").values()]
    return [*files, *map(importlib.metadata.version, ("transformers", "tokenizers"))]


def _of_plain_class(directory: Path, own_files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files with a tokenizer_config.json whose class runs tokenizer.json as it is."""
    old = read_object(directory / CONFIG) if CONFIG in own_files else {}
    tokens = load_reference(directory).get_vocab(with_added_tokens=True)
    specials = named_specials(directory, (*SPECIALS, "unk", "sep", "cls", "mask")).values()
    config = {"tokenizer_class": PLAIN_CLASS, **{key: old[key] for key in KEPT if key in old}}
    config |= {name.key: name.value for names in specials for name in names[:1] if name.value in tokens}
    return {name: file for name, file in own_files.items() if name != SPECIAL_TOKENS} | {
        CONFIG: _json(config)
    }


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
