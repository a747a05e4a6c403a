"""The tokenizer beside an export: files with which transformers gives exactly the ids of the export.

Guarantee: `AutoTokenizer.from_pretrained(folder)` of the installed transformers gives the stored ids of the conformance
texts and of a sample of the corpus, without special tokens, and no other eos, bos or pad than the stored ones. The
files are the checkpoint's own, without BPE dropout, if these give the ids. Else tokenizer_config.json names the class
that runs tokenizer.json as it is: without the config.json of a model, transformers chooses another class, and several
classes replace the splitting of text by their own.
Cost: a process that imports a part of transformers, some 0.7 s of processor time, and where ids differ the whole
without torch, 1.2 s more; the sample takes 0.3 s unless `base_model` has just read it.
Known weakness: another version of transformers may read the same files in another way. Texts that are appended later
are not compared.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dagster_divorder.engine.local import Worker
from dagster_divorder.models.auto_tokenizer import VARIABLES, difference
from dagster_divorder.models.checkpoint import TOKENIZER, has_dropout, read_object
from dagster_divorder.models.conformance import conformance_texts
from dagster_divorder.models.tokenize import NAMES_IN, SPECIALS, Encoder, load_reference, named_specials

CONFIG, SPECIAL_TOKENS = NAMES_IN
TOKENIZER_FILES = (TOKENIZER, CONFIG, SPECIAL_TOKENS, "chat_template.jinja")

SAMPLE_BYTES, SAMPLE_ROWS = 1 << 19, 5_000
"""Bytes and rows of the corpus's texts that are compared."""

PLAIN_CLASS = "PreTrainedTokenizerFast"
"""Runs tokenizer.json as it is."""
KEPT = ("chat_template", "model_max_length", "model_input_names", "padding_side", "truncation_side")
"""Keys of a tokenizer_config.json that stay beside the special tokens when the class is replaced: they change no id."""


Form = Literal["own", "plain", "none"]
"""Which files lie beside an export: the checkpoint's own, those of PLAIN_CLASS, or none."""


def choose_form(
    directory: Path, encoder: Encoder, special: Mapping[str, int], texts: Sequence[str]
) -> tuple[Form, str]:
    """(the form of a checkpoint's tokenizer whose files give the ids of `encoder` for `texts`; a note if they are not
    the checkpoint's own, or ""). special: known ids of `eos`, `bos` and `pad`.

    Raises:
        InputError: a file that is no JSON.
    """
    added = read_object(directory / TOKENIZER).get("added_tokens") or []
    compared = [*conformance_texts(token["content"] for token in added), *texts]
    ids, lengths = encoder.encode(compared)
    expected = [of_text.tolist() for of_text in np.split(ids, np.cumsum(lengths)[:-1])]
    # A process of its own, where transformers does without torch.
    with Worker(VARIABLES) as worker:
        why = worker(difference, (tokenizer_files(directory, "own"), compared, expected, special))
        if not why:
            return "own", ""
        if worker(difference, (tokenizer_files(directory, "plain"), compared, expected, special)):
            return (
                "none",
                f"no tokenizer is written beside the exports, since none gives their ids in transformers: {why}",
            )
    return "plain", (
        f"{CONFIG} beside the exports names the class {PLAIN_CLASS}: with the checkpoint's own files alone, "
        f"AutoTokenizer does not give the ids of the exports ({why})"
    )


def tokenizer_files(directory: Path, form: Form) -> dict[str, bytes]:
    """The files of a checkpoint's tokenizer in a form, by name.

    Raises:
        InputError: a file that is no JSON.
    """
    if form == "none":
        return {}
    files = {
        name: (directory / name).read_bytes() for name in TOKENIZER_FILES if (directory / name).is_file()
    }
    if has_dropout(directory / TOKENIZER, files[TOKENIZER]):
        content = read_object(directory / TOKENIZER)
        content["model"]["dropout"] = None
        files[TOKENIZER] = json.dumps(content, ensure_ascii=False).encode()
    return files if form == "own" else _of_plain_class(directory, files)


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
    data = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return {name: file for name, file in own_files.items() if name != SPECIAL_TOKENS} | {
        CONFIG: data.encode()
    }
