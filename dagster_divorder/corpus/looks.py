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
MIN_RECORDS, LABEL_BYTES = 20, 32
"""Fewest records with texts to compare, and the mean size below which texts may be labels."""
_AGAIN = "download the file again with the required access"
_BEGINNINGS = {
    rb"version https://git-lfs": "a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`",
    rb"<!doctype html|<html|<.*<html": f"an HTML page, such as a sign-in page; {_AGAIN}",
    rb"<\?xml|<error": f"XML, such as the error of an object store; {_AGAIN}",
    rb"PAR1": "Parquet; rename the file to .parquet",
    rb"PK\x03\x04": "a zip archive; unpack it",
    rb"\[": "a JSON array; if it holds the records, write one a line with `jq -c '.[]' IN > OUT.jsonl`",
    rb"\{\s*\Z": "JSON over several lines; write a record a line with `jq -c . IN > OUT.jsonl`",
    # A table's head has no control characters: damaged data is not CSV.
    rb'["\w][^{}\x00-\x08\x0a-\x1f\x80-\xff]*?[,;\t]': f"not JSON; if it is CSV, {CSV_REMEDY}",
}
"""Beginning of a file, a pattern in any case -> what it looks like, and the remedy."""
_CONTAINER = re.compile(rb'{\s*"(data|rows|records|documents|items|examples|train)"\s*:\s*\[\s*(?:{|\Z)')


class Structure(NamedTuple):
    """Fields of a record that belong together. kind: the name of such records. form: as in `Input.form`, None if it has
    none."""

    kind: str
    fields: tuple[str, ...]
    form: str | None

    @property
    def name(self) -> str:
        return f"{self.kind} ({', '.join(map(repr, self.fields))})"

    @property
    def setting(self) -> str:
        """The setting of `[input]` that reads such records."""
        return f"format = {json.dumps(self.form)}"

    def said(self, *, by_jq: bool = True) -> str:
        """The end of a message: what the records are, and the remedy. by_jq: jq can read them."""
        if self.form:
            return f"{self.name}: set input.{self.setting}, and no input.text_field"
        if self.fields == ("prompt",):
            return f"{self.name}: write the text of the turns into a field, and name it in input.text_field"
        if len(self.fields) == 1:
            jq = f", as with `jq -c '.messages = .[{json.dumps(self.fields[0])}]' IN > OUT.jsonl`"
            return (
                f"{self.name}; lists of turns are read from the field 'messages': rename the field"
                f"{jq if by_jq else ''}"
            )
        return (
            f"{self.name}, but it is unclear which fields are question and answer: call them 'instruction' and "
            f"'output' for a chat, or join them into one text in a field of its own; or, for one field alone, set "
            f"input.text_field = {json.dumps(self.fields[-1])}"
        )


def structure_of(record: Mapping[str, Any]) -> Structure | None:
    """The fields of a record that belong together; None if names and values show none."""
    if form := form_of(record):
        return Structure(KINDS[form], fields_of(record, form), form)
    if isinstance(record.get("prompt"), list) and is_turns(record["prompt"]):
        return Structure("prompts without answers", ("prompt",), None)
    if lists := [name for name, value in record.items() if is_turns(value)]:
        return Structure("chat messages", (lists[0],), None)
    asked, answered = (
        tuple(name for name in names if isinstance(record.get(name), str) and record[name])
        for names in ((*QUESTIONS, *CONTEXTS), (*ANSWERS, "completion"))
    )
    return Structure("questions and answers", asked + answered, None) if asked and answered else None


def characters(value: Any) -> int:
    """Number of characters in the strings of a JSON value, at any depth."""
    count, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, (list, dict)):
            waiting += value.values() if isinstance(value, dict) else value
    return count


def looks_like(begins: bytes, form: str = "text") -> str:
    """The end of a sentence: what the first bytes of a refused record or an unreadable file look like, and the remedy;
    "" if unknown. form: `Input.form`."""
    if begins and not begins[:64].strip(b"\0"):
        return "zero bytes, as in an incompletely written file; copy it again"
    if begins.startswith((b"\xff\xfe", b"\xfe\xff")) or begins[:64].count(0) > len(begins[:64]) // 3:
        return "UTF-16 text; convert it with `iconv -f UTF-16 -t UTF-8 IN > OUT`"
    head = begins.removeprefix(b"\xef\xbb\xbf").lstrip()
    for pattern, looks in _BEGINNINGS.items():
        if re.match(pattern, head[:1024], re.IGNORECASE | re.DOTALL):
            return looks
    if container := _CONTAINER.match(head):
        name = container[1].decode()
        write = f"write one a line with `jq -c '.{name}[]' IN > OUT.jsonl`"
        return f"one object that holds the records in {name!r}; {write}"
    try:
        record = orjson.loads(head)
    except orjson.JSONDecodeError:
        return ""
    return _record_looks_like(record, form) if isinstance(record, dict) else ""


def _record_looks_like(record: Mapping[str, Any], form: str) -> str:
    structure = structure_of(record)
    kind, other = (
        (structure.kind, structure.form) if structure else ("a text", "text" if "text" in record else None)
    )
    if other not in (None, form):
        kind = structure.said() if structure and form == "text" else kind
        return (
            f"{kind}. If other records have the form {form!r}, write each form into a file of its own, and give each "
            f"file an [[input]] block with its format"
        )
    if form != "text":
        return ""
    if structure:
        return structure.said()
    if error := next((record[name] for name in ("error", "errors") if record.get(name)), None):
        return f"the error of a server ({str(error)[:80]}); {_AGAIN}"
    return f"a record with the fields {', '.join(list(record)[:_FIELDS_SHOWN])}" if record else ""


def repeated_texts(records: int, texts: int, size: int) -> str:
    """A warning if distinct texts are far fewer than records, or as short as labels; else "". size: bytes (or
    characters) of the texts of all records."""
    if records < MIN_RECORDS or not texts or (2 * texts > records and 2 * size >= LABEL_BYTES * records):
        return ""
    short = ", as short as labels or ids" if size < LABEL_BYTES * records else ""
    return (
        f"{records:,} records hold {texts:,} distinct texts of {size / records:,.0f} bytes on average{short}. A "
        f"repeated text is trained on at each occurrence. If another field holds the text, set input.text_field."
    )
