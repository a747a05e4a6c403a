"""Recognises content without one text a record, such as chats, pairs, one JSON array, or a web page saved as a corpus,
and gives the remedy. Opens no file.

Known weakness: sees only one record or the first bytes of a file. So findings only explain errors and warnings; they
refuse nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from dagster_divorder.chats.forms import ANSWERS, CONTEXTS, QUESTIONS, Form, fields_of, form_of, is_turns

KINDS: dict[Form, str] = {
    "pairs": "preference pairs",
    "messages": "chat messages",
    "conversations": "ShareGPT conversations",
    "prompt_completion": "prompt and completion records",
    "alpaca": "instructions or questions with answers",
}
"""Form -> name of such records."""
CSV_REMEDY = "write it as Parquet with `pandas.read_csv(IN).to_parquet(OUT)`"
_FIELDS_SHOWN = 20
_AGAIN = "download the file again with the required access"
_BEGINNINGS = {
    rb"\0{8}": "zero bytes, as in an incompletely written file; copy it again",
    rb"\xff\xfe|\xfe\xff|(.?\0.){4}": "UTF-16 text; convert it with `iconv -f UTF-16 -t UTF-8 IN > OUT`",
    rb"\x1f\x8b": "gzip data; rename the file to .jsonl.gz",
    rb"\x28\xb5\x2f\xfd": "zstd data; rename the file to .jsonl.zst",
    rb"PAR1": "Parquet; rename the file to .parquet",
    rb"PK\x03\x04": "a zip archive; unpack it",
    rb"version https://git-lfs": "a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`",
    rb"<!doctype html|<html|<.*<html": f"an HTML page, such as a sign-in page; {_AGAIN}",
    rb"<\?xml|<error": f"XML, such as the error of an object store; {_AGAIN}",
    rb"\[": "a JSON array; if it holds the records, write one a line with `jq -c '.[]' IN > OUT.jsonl`",
    rb"\{\s*\Z": "JSON over several lines; write a record a line with `jq -c . IN > OUT.jsonl`",
    # A table's head has no control characters: damaged data is not CSV.
    rb'["\w][^{}\x00-\x08\x0a-\x1f\x80-\xff]*?[,;\t]': f"not JSON; if it is CSV, {CSV_REMEDY}",
}
"""Beginning of a file, a pattern in any case -> what it looks like, and the remedy."""


class Structure(NamedTuple):
    """Fields of a record that belong together. kind: the name of such records. form: as in `Input.form`, None if it has
    none. remedy: what to do."""

    kind: str
    fields: tuple[str, ...]
    form: str | None
    remedy: str

    @property
    def said(self) -> str:
        """The end of a message: what the records are, and the remedy."""
        return f"{self.kind} ({', '.join(map(repr, self.fields))}): {self.remedy}"


def structure_of(record: Mapping[str, Any]) -> Structure | None:
    """The fields of a record that belong together; None if names and values show none."""
    if form := form_of(record):
        remedy = f"set input.format = {json.dumps(form)}, and no input.text_field"
        return Structure(KINDS[form], fields_of(record, form), form, remedy)
    if lists := [name for name, value in record.items() if is_turns(value)]:
        remedy = "lists of turns are read from the field 'messages', and need answers: rename the field"
        return Structure("chat messages", (lists[0],), None, remedy)
    asked, answered = (
        tuple(name for name in names if isinstance(record.get(name), str) and record[name])
        for names in ((*QUESTIONS, *CONTEXTS), (*ANSWERS, "completion"))
    )
    if not (asked and answered):
        return None
    remedy = (
        "it is unclear which fields are question and answer: call them 'instruction' and 'output' for a chat, or join "
        f"them into one field; or, for one field alone, set input.text_field = {json.dumps(answered[-1])}"
    )
    return Structure("questions and answers", asked + answered, None, remedy)


def looks_like(begins: bytes, form: str = "text") -> str:
    """The end of a sentence: what the first bytes of a refused record or an unreadable file look like, and the remedy;
    "" if unknown. form: `Input.form`."""
    head = begins.removeprefix(b"\xef\xbb\xbf").lstrip()
    for pattern, looks in _BEGINNINGS.items():
        if re.match(pattern, head[:1024], re.IGNORECASE | re.DOTALL):
            return looks
    try:
        record = orjson.loads(head)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(record, dict):
        return ""
    structure = structure_of(record)
    other = structure.form if structure else "text" if "text" in record else None
    if other not in (None, form):
        kind = "a text" if not structure else structure.said if form == "text" else structure.kind
        return (
            f"{kind}. If other records have the form {form!r}, write each form into a file of its own, and give each "
            "file an [[input]] block with its format"
        )
    if form != "text" or not record:
        return ""
    return structure.said if structure else f"a record with the fields {', '.join([*record][:_FIELDS_SHOWN])}"
