"""What transformers makes of a tokenizer's files, in a process that runs `difference` alone: it imports little."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from dagster_divorder.engine.memory import is_out_of_memory

VARIABLES = {"TRANSFORMERS_VERBOSITY": "critical", "PYTHONWARNINGS": "ignore"}
"""Of the process's environment: transformers writes no messages."""

Compared = tuple[Mapping[str, bytes], list[str], list[list[int]], Mapping[str, int]]
"""(a tokenizer's files by name, texts, the expected ids of each, the expected ids of `eos`, `bos` and `pad`)."""


def difference(compared: Compared) -> str:
    """The first difference between AutoTokenizer's ids and the expected ones, in words, or ""."""
    # transformers imports torch wherever it finds it, for 3 s, and no tokenizer needs it.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers import AutoTokenizer

    files, texts, expected, special = compared
    with TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        except Exception as error:
            if is_out_of_memory(error):
                raise
            from dagster_divorder.models.checkpoint import first_line

            return f"{type(error).__name__}: {first_line(error)}"
    for text, ids, wanted in zip(texts, encoded, expected, strict=True):
        if ids != wanted:
            return f"{type(tokenizer).__name__} makes {len(ids)} tokens of {text[:40]!r}, not {len(wanted)}"
    for name, number in special.items():
        if (its_id := getattr(tokenizer, f"{name}_token_id")) not in (None, number):
            return f"{type(tokenizer).__name__} has {its_id} as {name}, not {number}"
    return ""
