"""What transformers makes of a tokenizer's files, in a process that runs `difference` alone: it imports little."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module, metadata, util
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from dagster_divorder.engine.memory import is_out_of_memory

VARIABLES = {"TRANSFORMERS_VERBOSITY": "critical", "PYTHONWARNINGS": "ignore"}
"""Of the process's environment: transformers writes no messages."""

PACKAGES = ("transformers", "transformers.models")

Conversation = tuple[list[dict[str, Any]], Sequence[Any] | None, list[int]]
"""(messages, tools, the expected ids)."""
Compared = tuple[Mapping[str, bytes], list[str], list[list[int]], Mapping[str, int], Sequence[Conversation]]
"""(a tokenizer's files by name, texts, the expected ids of each, the expected ids of `eos`, `bos` and `pad`,
conversations)."""


class _Unread(ModuleType):
    """A package whose `__init__` has not run. Those of PACKAGES read the 3,300 files of all models for their names, in
    half a second.

    A submodule is imported, and so is the module under which `__init__` lists a name. For any other name the package
    itself takes this one's place.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        spec = util.find_spec(name)
        assert spec is not None and spec.origin is not None
        self.__spec__, self.__path__, self.__file__ = spec, spec.submodule_search_locations or [], spec.origin
        self.__version__ = metadata.version(name.partition(".")[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if util.find_spec(f"{self.__name__}.{name}"):
            return import_module(f"{self.__name__}.{name}")
        listed = re.search(rf'"(\w+)": \[[^]]*"{re.escape(name)}"', Path(str(self.__file__)).read_text())
        if listed:
            return getattr(import_module(f"{self.__name__}.{listed[1]}"), name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def difference(compared: Compared) -> str:
    """The first difference between AutoTokenizer's ids and the expected ones, in words, or "". Packages that are read
    in part can only find that there is none; the whole ones tell which it is."""
    # transformers imports torch wherever it finds it, for 3 s, and no tokenizer needs it.
    sys.modules["torch"] = None  # type: ignore[assignment]
    with suppress(Exception):
        if PACKAGES[0] not in sys.modules:
            for name in PACKAGES:
                sys.modules[name] = _Unread(name)
            import_module("transformers.dependency_versions_check")
        if not _difference(compared):
            return ""
    if any(isinstance(sys.modules.get(name), _Unread) for name in PACKAGES):
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGES[0]]:
            del sys.modules[name]
    return _difference(compared)


def _difference(compared: Compared) -> str:
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    files, texts, expected, special, conversations = compared
    with TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            rendered = [
                str(
                    tokenizer.apply_chat_template(
                        messages, tools=list(tools) if tools else None, tokenize=False
                    )
                )
                for messages, tools, _ in conversations
            ]
            rendered_ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in rendered]
        except Exception as error:
            if is_out_of_memory(error):
                raise
            from dagster_divorder.models.checkpoint import first_line

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
