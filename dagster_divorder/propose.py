"""`divorder init`: a short settings file for a corpus, from the fields of its records.

`look` samples the inputs, and `write_settings` writes settings for them to a file.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomlkit

from dagster_divorder.core.fields import fields_of
from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.corpus.find import Found, find_files
from dagster_divorder.corpus.inputs import read_schema
from dagster_divorder.corpus.looks import Structure, characters, repeated_texts, structure_of
from dagster_divorder.corpus.peek import first_records, first_refusals
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError, SettingsError, printable
from dagster_divorder.settings import Settings, fixed_beginning, load_settings
from dagster_divorder.settings.loading import refuse_unwritable, relative_source, write_settings_file
from dagster_divorder.stages.output.exports import unread
from dagster_divorder.store.sources import RemoteFile, identity
from dagster_divorder.trainers import trainer_named
from dagster_divorder.units import byte_size
from dagster_divorder.view.words import clip, count

SAMPLE_FILES, SAMPLE_RECORDS = 20, 50_000
TEXT_SHARE, TRAIT_SHARE, FIELD_SHARE = 0.9, 0.5, 0.01
"""Smallest share of the records that have the text field, a trait, and any listed field."""
MAX_SOURCES, MAX_VALUES, LABEL_CHARACTERS = 1000, 50, 100
"""Most values of a source field and of a trait, and the mean characters below which a field may hold labels."""
BYTES_PER_TOKEN, SEQUENCES, BATCHES, DOCUMENTS_A_CLUSTER = 4, 2_000, 50, 20
"""Fewest sequences and batches of a corpus, and documents of a cluster: sizes are lowered to have as many."""
SHORTEST, LONGEST, HELD = 512, 32_768, 0.99
"""Bounds of the proposed tokens of a sequence, and the share of conversations that it holds whole."""
RANKS = ("world_size", "micro_batch", "workers")
KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "object"}
TEXT_NAMES = ["text", "content", "body", "document", "raw_content", "markdown", "code", "article", "message"]
ID_NAMES = ["id", "_id", "doc_id", "docid", "document_id", "record_id", "uid", "uuid", "guid", "url"]
SOURCE_NAMES = ["source", "pile_set_name", "redpajama_set_name", "dataset", "subset", "origin", "corpus"]
SOURCE_NAMES += ["collection", "domain", "split", "category"]
LABEL_NAMES = {*ID_NAMES, *SOURCE_NAMES, "label", "labels", "lang", "language", "type", "date"}

HEAD = """\
# Settings of DivOrder: `divorder plan` shows what a run would do, `divorder run` does it. Every key, with its default:
# divorder.example.toml in the repository.
"""
NO_TRAINER = '# trainer = "hf-trainer"  # yours: `divorder run` then prints the lines that keep the order\n'
COMMENTS = {
    "base": "a small tokenizer trained here; better: the model that you train, an id or a directory",
    "frozen_tokens": "0: every run orders everything again; once you train, `divorder freeze --step N` keeps what was "
    "read",
    "end_of_text": "the model learns to stop",
}


@dataclass
class Field:
    """A field of the sampled records: the number that have it, the characters of its texts, its distinct values (a hash
    for a long one), their kinds, and the first that is not empty."""

    records: int = 0
    characters: int = 0
    values: set[Any] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    example: str = ""

    def add(self, value: Any) -> None:
        self.records += 1
        self.characters += characters(value)
        self.kinds.add(KINDS.get(type(value), type(value).__name__))
        if isinstance(value, str | int | float):
            self.values.add(value if len(str(value)) < LABEL_CHARACTERS else hash(value))
        if not self.example and value not in ("", [], {}):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            self.example = clip(text, 40)

    @property
    def type(self) -> str:
        return " or ".join(sorted(self.kinds - ({"whole number"} if "number" in self.kinds else set())))

    def has_few(self, most: int, *kinds: str) -> bool:
        """Whether it has at most so many values: short texts, true and false, or values of other kinds."""
        is_short = self.characters < LABEL_CHARACTERS * self.records
        return is_short and len(self.values) <= most and self.kinds <= {"text", "true or false", *kinds}


@dataclass
class InputBlock:
    """An input: its paths, their files, the sampled ones, the fields of their records, and what is read of these: the
    text field, or a structure in its place, with the characters of each record. why: the reason. traits: fields to
    balance and their numbers of values."""

    paths: Sequence[str]
    listing: Found
    sampled: Found
    records: int = 0
    fields: dict[str, Field] = field(default_factory=dict)
    text_field: str = ""
    structure: Structure | None = None
    sizes: list[int] = field(default_factory=list)
    why: str = ""
    id_field: str | None = None
    source_field: str | None = None
    traits: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def format(self) -> str:
        """What a record holds, as in `Input.form`."""
        return (self.structure and self.structure.form) or "text"

    @property
    def read(self) -> tuple[str, ...]:
        """Fields of the text or the conversation."""
        return self.structure.fields if self.structure else (self.text_field,)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(int(identity(file)[0]) for file in self.listing.files)


def look(paths: Sequence[str], text_field: str | None = None) -> list[InputBlock]:
    """The inputs in paths: one for each kind of file, columns and text field. text_field: the text field of inputs that
    have it.

    Raises:
        InputError: no file matches, a file cannot be read, it is unknown what to read, most records of an input would
            be refused, or no input has the text field.
    """
    samples = [_sampled([path], text_field, SAMPLE_RECORDS // len(paths)) for path in paths]
    if text_field and any(sample.records for sample in samples):
        known = dict.fromkeys(name for sample in samples for name in sample.fields)
        one_of("the text field", text_field, known)
    apart: dict[tuple[str, ...], list[str]] = {}
    for sample in sorted(samples, key=lambda sample: not sample.records):
        kind = str(sample.listing.kind)
        columns = str(read_schema(sample.listing.files[0], None)) if kind == "parquet" else ""
        key: tuple[str, ...] = (kind, sample.text_field or sample.format, columns)
        if not sample.records:  # an empty file joins the first of its kind
            key = next((other for other in apart if other[0] == kind), key)
        apart.setdefault(key, []).extend(sample.paths)
    blocks = samples if len(samples) == 1 else [_sampled(alike, text_field) for alike in apart.values()]
    for block in blocks:
        _check(block)
    return blocks


def _sampled(paths: Sequence[str], text_field: str | None, most: int = SAMPLE_RECORDS) -> InputBlock:
    """The input with at most so many of its records, spread over its files, and what is read of them."""
    listing = find_files(paths)
    # Sources often follow one another; files at URLs are fetched whole.
    step = -(-len(listing.files) // SAMPLE_FILES)
    files = listing.files[:1] if isinstance(listing.files[0], RemoteFile) else listing.files[::step]
    block = InputBlock(paths, listing, replace(listing, files=files))
    structure = None
    for file in files:
        records = first_records([replace(listing, files=[file])])
        for record in itertools.islice(records, max(1, most // len(files))):
            block.records += 1
            structure = structure if block.records > 1 else structure_of(record)
            for name, value in fields_of(record):
                if value is not None:
                    block.fields.setdefault(name, Field()).add(value)
            if structure:
                block.sizes.append(characters([record.get(name) for name in structure.fields]))
    least = FIELD_SHARE * block.records
    block.fields = {name: each for name, each in block.fields.items() if each.records >= least}
    if text_field in block.fields:
        block.text_field, block.why = str(text_field), "as the command says"
    elif structure and structure.form:
        block.structure, block.why = structure, structure.name
    else:
        block.text_field, block.why = _text_of(block, structure)
    return block


def _text_of(block: InputBlock, structure: Structure | None) -> tuple[str, str]:
    """(text field, why); ("", why it is unknown). structure: of the first record."""
    sizes, least = dict[str, int](), TEXT_SHARE * block.records
    for name, each in block.fields.items():
        last, is_short = name.lower().rpartition(".")[2], each.characters < LABEL_CHARACTERS * each.records
        few = each.has_few(min(MAX_VALUES, each.records // 2)) and last not in TEXT_NAMES
        if not few and not (last in LABEL_NAMES and is_short):
            sizes[name] = each.characters
    texts = [
        name for name in sizes if block.fields[name].records >= least and "text" in block.fields[name].kinds
    ]
    longest, named = max(texts, key=lambda name: sizes[name], default=""), _named(TEXT_NAMES, texts)
    # `text` may be a title beside a much longer `body`.
    text = named if named and 2 * sizes[named] >= sizes[longest] else longest
    rival = max((name for name in sizes if name != text), key=lambda name: sizes[name], default="")
    if structure and (not text or text in structure.fields):
        return "", f"the records are {structure.said(by_jq=block.listing.kind == 'jsonl')}"
    if text and (text == named or not rival or 2 * sizes[rival] < sizes[text]):
        return text, "a common name of text fields" if text == named else "by far the longest"
    unclear = f"no field holds text in most of the first {block.records:,} records"
    doubt = f"the text may be in {text!r} or in {rival!r}" if text else unclear
    fields = ", ".join(f"{name!r} ({each.type})" for name, each in itertools.islice(block.fields.items(), 40))
    return "", (
        f"{doubt}; the fields are {fields}. If one of them holds the text, name it with --text-field; if the text is "
        "in several fields or in a list, join it into one field first"
    )


def _check(block: InputBlock) -> None:
    """Examines the records as a run reads them, and sets the fields of ids and sources, and traits."""
    shape = Shape(text_field=block.text_field, form=block.format)
    of_each = max(1, SAMPLE_RECORDS // len(block.sampled.files))
    seen = first_refusals(replace(block.sampled, shape=shape), of_each)
    first = f", the first: {seen.first}{seen.looks}" if seen.first else ""
    if not block.records:
        expected = "one JSON object a line" if block.listing.kind == "jsonl" else "rows"
        raise InputError(f"{block.listing.files[0]} holds no readable record; expected {expected}{first}")
    if not block.text_field and not block.structure:
        raise InputError(f"{block.paths[0]}: {block.why}")
    if 2 * seen.refused > seen.looked_at:
        examined = f"{seen.refused:,} of {count(seen.looked_at, 'record')} of {block.paths[0]} examined"
        setting = block.structure.setting if block.structure else f"text_field = {block.text_field!r}"
        raise InputError(f"{examined} cannot be used with {setting}{first}")
    if seen.refused:
        block.warnings.append(
            f"{seen.refused:,} of {seen.looked_at:,} records examined will be refused{first}"
        )
    if text := block.fields.get(block.text_field):
        block.warnings.append(repeated_texts(text.records, len(text.values), text.characters))
    rest = {name: each for name, each in block.fields.items() if name not in block.read}
    unique = [name for name, each in rest.items() if each.records == len(each.values) == block.records]
    unique = [name for name in unique if rest[name].kinds in ({"text"}, {"whole number"})]
    block.id_field = _named(ID_NAMES, unique)
    rest.pop(block.id_field or "", None)
    few = [name for name, each in rest.items() if each.has_few(MAX_SOURCES)]
    block.source_field = _named(SOURCE_NAMES, few)
    most = min(MAX_VALUES, max(2, block.records // 2))
    block.traits = {
        name: len(each.values)
        for name, each in rest.items()
        if each.records >= TRAIT_SHARE * block.records and len(each.values) > 1
        if each.has_few(MAX_SOURCES if name == block.source_field else most, "whole number")
    }


def _named(names: Iterable[str], fields: Iterable[str]) -> str | None:
    """The field with the first of the names, in any case; otherwise the field inside an object with the first of these
    names."""
    lower = {name.lower(): name for name in fields}
    inner = {name.rpartition(".")[2]: field for name, field in lower.items()}
    return next((found[name] for found in (lower, inner) for name in names if name in found), None)


def write_settings(
    blocks: Sequence[InputBlock],
    file: Path,
    *,
    trainer: str | None = None,
    numbers: Mapping[str, int] | None = None,
    project: Path | None = None,
) -> Settings:
    """Writes a settings file for a corpus. trainer: its name, if known. numbers: those given of `sequence_length`,
    `batch` and RANKS. project: a folder around the file, such as a Dagster project, for what a run writes.

    Raises:
        SettingsError: the file exists, cannot be written, or would hold an impossible value.
        InputError: the trainer does not read what the settings write, or ranks are given and no trainer.
    """
    refuse_unwritable(file, new=True)
    # TOML forbids control characters even in comments.
    text = printable(_toml(blocks, file.absolute().parent, trainer, numbers or {}, project))
    try:
        settings = load_settings(tomllib.loads(text), {}, within=file.absolute())
    except SettingsError as error:
        said = str(error).removeprefix(f"{file.absolute()} or the environment: ")
        raise SettingsError(f"nothing was written: {said}") from None
    if trainer and (why := unread(trainer_named(trainer), settings)):
        raise InputError(f"{trainer} does not read these records: {why}")
    write_settings_file(file, text, new=True)
    return settings


def _toml(
    blocks: Sequence[InputBlock],
    folder: Path,
    trainer: str | None,
    numbers: Mapping[str, int],
    project: Path | None,
) -> str:
    several, inputs, names = len(blocks) > 1, list[str](), list[str]()
    traits = {"cluster": "found by k-means on vectors of the texts", "length": ""} | (
        {"source": ""} if several else {}
    )
    for block in blocks:
        name = Path(fixed_beginning(block.paths[0])).name.split(".")[0] or "input"
        names.append(f"{name}-{len(names) + 1}" if name in names else name)
        values = {
            "paths": [relative_source(path, folder, project or folder) for path in block.paths],
            "text_field": block.text_field or None,
            "id_field": block.id_field,
            "source_field": block.source_field,
            "source": names[-1] if several and not block.source_field else None,
        }
        kind = "JSONL file" if block.listing.kind == "jsonl" else "Parquet file"
        files = f"{count(len(block.listing.files), kind)}, {byte_size(block.size)}"
        header = "[[input]]" if several else "[input]"
        inputs.append(_table(header, values, {"paths": files, "text_field": block.why}))
        if block.structure:
            inputs[-1] += f"{block.structure.setting}  # {block.why}\n"
        for trait, number in block.traits.items():
            # Several inputs have their sources in the trait "source".
            if not (several and trait == block.source_field):
                traits.setdefault(trait, f"{number} values")
    documents = sum(each.records * len(each.listing.files) // len(each.sampled.files) for each in blocks)
    k = max(2, documents // DOCUMENTS_A_CLUSTER)
    length, batch = _sequence(blocks, numbers)
    forms = {block.format for block in blocks}
    # Trainers of preferences, and those that pack themselves, read records.
    formats = list(trainer_named(trainer).formats[:1]) if trainer else ["parquet"]
    formats = [] if "pairs" in forms else formats
    packing: dict[str, Any] = {}
    read = [block.fields[name].kinds for block in blocks for name in block.read if name in block.fields]
    if not formats and forms != {"pairs"}:
        packing = {"method": "none"}
    elif "text" in forms and len(forms) > 1:
        packing = {"method": "best_fit"}  # cuts no conversation
    elif forms == {"prompt_completion"} and all(kinds == {"text"} for kinds in read):
        packing = {"end_of_text": True}  # no chat template ends a completion that is a text
    ranks = {name: numbers[name] for name in RANKS if name in numbers}
    if ranks and not trainer:
        option, number = next(iter(ranks.items()))
        raise InputError(
            f"--{option.replace('_', '-')} {number} applies to a trainer: name it too, with --trainer NAME"
        )
    # An existing folder belongs to somebody else; it may be the input.
    bases = itertools.chain(["divorder"], (f"divorder-{number}" for number in itertools.count(2)))
    base = next(name for name in bases if not (folder / name).exists())
    if project:
        base = os.path.relpath(project / "divorder" / folder.name, folder)
    tables: dict[str, Mapping[str, Any]] = {
        "[model]": {"base": "bootstrap"},
        "[order]": {"frozen_tokens": 0},
        "[clusters]": {"k": k} if k < 30 else {},
        "[order.traits]  # every window of training carries them in the corpus's own mix": dict.fromkeys(
            traits, 1.0
        ),
        "[sequence]  # as your trainer has them": {"length": length, "batch": batch},
        "[packing]": packing,
        "[store]  # computed results; if deleted, they are computed again": {"path": f"{base}/store"},
        "[output]": {"path": f"{base}/curated"},
        "[exports]  # the training sequences with their tokens": {
            "formats": formats,
            "trainer": trainer,
            **ranks,
            "path": f"{base}/exports",
        },
    }
    comments = {**COMMENTS, "k": f"of {count(documents, 'document')}"}
    written = [
        _table(header, values, traits if "traits" in header else comments)
        for header, values in tables.items()
        if values
    ]
    return "\n".join([HEAD, *inputs, *written]) + ("" if trainer else NO_TRAINER)


def _sequence(blocks: Sequence[InputBlock], numbers: Mapping[str, int]) -> tuple[int, int]:
    """(tokens of a sequence, sequences of a batch). A sequence holds most conversations whole; a batch is a multiple of
    a step of all ranks."""
    tokens = sum(block.size for block in blocks) // BYTES_PER_TOKEN
    least = SHORTEST
    for sizes in (sorted(block.sizes) for block in blocks if block.structure):
        # A template writes roles and control tokens around every message.
        held = 1.25 * sizes[int(HELD * (len(sizes) - 1))] / BYTES_PER_TOKEN
        while least < min(held, LONGEST):
            least *= 2
    length, batch = max(8192, least), 256
    while length > least and tokens < SEQUENCES * length:
        length //= 2
    length = numbers.get("sequence_length", length)
    while batch > 8 and tokens < BATCHES * batch * length:
        batch //= 2
    step = math.prod(max(1, numbers.get(name, 1)) for name in RANKS)
    return length, numbers.get("batch", -(-batch // step) * step)


def _table(header: str, values: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """A table of TOML, without values that are None."""
    lines = [header]
    for name, value in values.items():
        if value is not None:
            comment = f"  # {comments[name]}" if comments.get(name) else ""
            lines.append(f"{tomlkit.key(name).as_string()} = {tomlkit.item(value).as_string()}{comment}")
    return "\n".join([*lines, ""])
