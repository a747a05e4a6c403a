"""`divorder init`: a short settings file for a corpus, from the fields of its records.

`look` samples the inputs, `Proposal` holds settings for them, and `write_settings` writes the settings to a file.
"""

from __future__ import annotations

import glob
import itertools
import json
import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dagster_divorder.chats.document import words
from dagster_divorder.chats.forms import without_nulls
from dagster_divorder.chats.input_template import PROMPTS
from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.corpus.find import Found, find_files
from dagster_divorder.corpus.inputs import read_schema
from dagster_divorder.corpus.looks import Structure, characters, repeated_texts, structure_of
from dagster_divorder.corpus.peek import Refusals, first_records, first_refusals
from dagster_divorder.corpus.records import conversation_in
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError, SettingsError, printable
from dagster_divorder.settings import Input, Settings, fixed_beginning, load_settings
from dagster_divorder.settings.loading import refuse_unwritable, write_settings_file
from dagster_divorder.settings.places import is_url
from dagster_divorder.store.sources import RemoteFile, Source, identity
from dagster_divorder.trainers import TRAINERS, Trainer
from dagster_divorder.trainers.replay import Shape as ExportShape
from dagster_divorder.trainers.replay import replay
from dagster_divorder.units import byte_size
from dagster_divorder.view.answer import Line, Part
from dagster_divorder.view.words import clip, count

SAMPLE_FILES, SAMPLE_RECORDS, MAX_DEPTH = 20, 50_000, 4
TEXT_SHARE, TRAIT_SHARE, FIELD_SHARE = 0.9, 0.5, 0.01
"""Smallest share of the records that have the text field, a trait or score, and any listed field."""
MAX_SOURCES, MAX_VALUES = 1000, 50
"""Most values of a source field, and of a trait."""
LABEL_CHARACTERS = 100
"""Mean characters below which a field may hold labels rather than texts."""
BYTES_PER_TOKEN = 4
SEQUENCES, BATCHES, DOCUMENTS_A_CLUSTER = 2_000, 50, 20
"""Fewest sequences and batches of a corpus, and documents of a cluster: sizes are lowered to have as many."""
SHORTEST, LONGEST = 512, 32_768
"""Bounds of the proposed tokens of a sequence."""
HELD = 0.99
"""Share of conversations that a proposed sequence holds whole."""
FIELDS_SHOWN, NAME_CHARACTERS, EXAMPLE_CHARACTERS, FIRST_CHARACTERS = 40, 60, 40, 300

KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text", dict: "object"}
TEXT_NAMES, ID_NAMES, SOURCE_NAMES, OTHER_LABELS, SCORE_NAMES = (
    line.split()
    for line in """\
text content body document raw_content markdown code article message
id _id doc_id docid document_id record_id uid uuid guid url
source pile_set_name redpajama_set_name dataset subset origin corpus collection domain split category
label labels lang language type date
quality quality_score edu_score fineweb_edu_score int_score score rating perplexity ppl helpfulness reward difficulty
""".splitlines()
)
TRUTHS = frozenset(map(hash, (0, 1, "true", "false", "True", "False")))
"""Hashes of the values of a label that says yes or no; true and false have those of 1 and 0."""

RANKS = ("world_size", "micro_batch", "workers")
NUMBERS = {
    "world_size": ("Ranks (the world size)", 1, 1 << 20),
    "micro_batch": ("Sequences that a rank reads at a time", 1, 1 << 20),
    "workers": ("Loader processes of a rank", 0, 1024),
    "length": ("Tokens of a sequence", 16, 1 << 27),
    "batch": ("Sequences of a batch", 1, 1 << 20),
}
"""Numbers that may be given: what each counts, the least and the most."""
BUILT_IN_TRAITS = {"cluster": "  # found by k-means on vectors of the texts", "length": ""}

TEMPLATE = """\
# Settings of DivOrder: `divorder plan` shows what a run would do, `divorder run` does it. Every key, with its default:
# divorder.example.toml in the repository.

{tables}
[store]
path = "{base}/store"      # computed results; if deleted, they are computed again

[output]
path = "{base}/curated"

[exports]                  # the training sequences with their tokens
{exports}
path = "{base}/exports"
"""
NO_INPUT = """\
[input]
paths = []                 # fill in: files, folders or globs of the corpus, relative to this file
text_field = "text"        # `divorder init FILES --config OTHER.toml` proposes settings from the fields of the records
"""
MODEL = """\
[model]
base = "bootstrap"         # a small tokenizer trained here; better: the model that you train, an id or a directory
"""
ORDER = """\
[order]
frozen_tokens = 0          # every run orders everything again; once you train: `divorder freeze --step N` keeps what
                           # N steps have read
"""


@dataclass
class Field:
    """A field of the sampled records.

    records: number of records with the field. texts: number in which it is a text. characters: of its texts, also
    inside lists. values: hashes of the distinct values. example: the first value that is not empty, clipped.
    """

    records: int = 0
    texts: int = 0
    characters: int = 0
    values: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    example: str = ""

    def add(self, value: Any) -> None:
        self.records += 1
        self.texts += isinstance(value, str)
        self.characters += characters(value)
        self.kinds.add(KINDS.get(type(value), type(value).__name__))
        if isinstance(value, str | int | float):
            self.values.add(hash(value))
        if not self.example and value not in ("", [], {}):
            plain = isinstance(value, bool | list | dict)
            text = json.dumps(value, ensure_ascii=False, default=str) if plain else str(value)
            self.example = clip(text, EXAMPLE_CHARACTERS)

    @property
    def type(self) -> str:
        return " or ".join(sorted(self.kinds - ({"whole number"} if "number" in self.kinds else set())))

    @property
    def described(self) -> str:
        mean = f", {self.characters / self.records:,.0f} characters on average" if self.characters else ""
        return f"{self.type}{mean}"

    def has_few(self, most: int) -> bool:
        """Whether it holds at most so many distinct values, short texts or true and false."""
        is_short = self.characters < LABEL_CHARACTERS * self.records
        return is_short and len(self.values) <= most and self.kinds <= {"text", "true or false"}


@dataclass
class Alike:
    """Sampled records of one structure: the first, all its fields, and the characters in them, by record."""

    first: dict[str, Any]
    fields: dict[str, None] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)


@dataclass
class InputBlock:
    """An input: its paths, their files, its sampled records, and what is read of them.

    fields: of the records, by name. alike: records of one structure, by its kind and form. text: the text field; or
    structure: what is read in its place, and its records. why: the reason; if neither is known, what to do.
    """

    paths: Sequence[str]
    listing: Found
    records: int = 0
    fields: dict[str, Field] = field(default_factory=dict)
    alike: dict[tuple[str, str | None], Alike] = field(default_factory=dict)
    text: str = ""
    structure: Structure | None = None
    chosen: Alike | None = None
    why: str = ""
    refusals: Refusals = field(default_factory=Refusals)
    own_id: str | None = None
    source: str | None = None

    @classmethod
    def sampled(cls, paths: Sequence[str], most: int = SAMPLE_RECORDS) -> InputBlock:
        """The input with at most so many of its records, spread over its files."""
        block = cls(paths, find_files(paths))
        for file in block.files:
            records = first_records([replace(block.listing, files=[file])])
            for record in itertools.islice(records, max(1, most // len(block.files))):
                block.records += 1
                for name, value in _values(record):
                    if value is not None:
                        block.fields.setdefault(name, Field()).add(value)
                if structure := structure_of(record):
                    alike = block.alike.setdefault((structure.kind, structure.form), Alike(record))
                    alike.fields.update(dict.fromkeys(structure.fields))
                    alike.sizes.append(characters([record.get(name) for name in structure.fields]))
        least = FIELD_SHARE * block.records
        block.fields = {name: each for name, each in block.fields.items() if each.records >= least}
        return block

    @property
    def files(self) -> list[Source]:
        """Files from all over the input, because sources often follow one another; only the first at a URL, since files
        are fetched whole."""
        files = self.listing.files
        return files[:1] if isinstance(files[0], RemoteFile) else files[:: -(-len(files) // SAMPLE_FILES)]

    def choose(self, asked: str | None, earlier: Iterable[str]) -> None:
        """Sets what is read. asked: the text field, if the input has it. earlier: text fields of other inputs, which
        are preferred."""
        sizes = {name: each.characters for name, each in self.fields.items() if not _is_label(name, each)}
        texts = [name for name in sizes if self.fields[name].texts >= TEXT_SHARE * self.records]
        structure = alike = None
        if self.alike:
            (kind, form), alike = max(self.alike.items(), key=lambda item: len(item[1].sizes))
            # Without a text in most records, a file may hold texts and chats.
            if (2 if texts else 10) * len(alike.sizes) > self.records:
                structure = Structure(kind, tuple(alike.fields), form)
        # Prompts that are lists of turns are read by a template.
        if asked in self.fields and not (structure and structure.form == "template"):
            self.text, self.why = str(asked), "as the command says"
            return
        if structure and structure.form:
            self.structure, self.chosen, self.why = structure, alike, structure.name
            return
        longest = max(texts, key=lambda name: sizes[name], default="")
        named = next((name for name in earlier if name in texts), None) or _named(TEXT_NAMES, texts)
        # `text` may be a title beside a much longer `body`.
        text = named if named and 2 * sizes[named] >= sizes[longest] else longest
        rival = max((name for name in sizes if name != text), key=lambda name: sizes[name], default="")
        if structure and (not text or text in structure.fields):
            self.why = f"the records are {structure.said(by_jq=self.listing.kind == 'jsonl')}"
        elif text and (text == named or not rival or 2 * sizes[rival] < sizes[text]):
            why = "a common name of text fields" if text == named else "the longest"
            self.text, self.why = text, f"{why}: {self.fields[text].described}"
        else:
            doubt = f"no field holds text in most of the first {self.records:,} records"
            if text:
                doubt = f"the text may be in {text!r} or in {rival!r}"
            first = itertools.islice(self.fields.items(), FIELDS_SHOWN)
            self.why = (
                f"{doubt}; the fields are {', '.join(f'{name!r} ({each.described})' for name, each in first)}. If one "
                f"of them holds the text, name it with --text-field, or as input.text_field in settings of your own; "
                f"if the text is in several fields or in a list, join it into one field first"
            )

    def check(self) -> None:
        """Examines the records as a run reads them, and sets the fields of ids and sources. Raises InputError if most
        records would be refused."""
        of_each = max(1, SAMPLE_RECORDS // len(self.files))
        self.refusals = first_refusals(replace(self.listing, files=self.files, shape=self.shape), of_each)
        refused, looked_at = self.refusals.refused, self.refusals.looked_at
        if 2 * refused > looked_at:
            setting = self.structure.setting if self.structure else f"text_field = {self.text!r}"
            raise InputError(
                f"{refused:,} of {count(looked_at, 'record')} of {self.paths[0]} examined cannot be used with "
                f"{setting}, the first: {self.refusals.first}{self.refusals.looks}"
            )
        rest = {name: each for name, each in self.fields.items() if name not in self.read}
        different = [
            name
            for name, each in rest.items()
            if each.records == len(each.values) == self.records and each.kinds in ({"text"}, {"whole number"})
        ]
        self.own_id = _named(ID_NAMES, different)
        rest.pop(self.own_id or "", None)
        self.source = _named(SOURCE_NAMES, [name for name, each in rest.items() if each.has_few(MAX_SOURCES)])

    def with_text(self, name: str, why: str) -> InputBlock:
        """The input with its text in this field, and a matching id and source. Raises InputError as `check` does, or if
        there is no such field."""
        block = replace(
            self, text=one_of("the text field", name, self.fields), structure=None, chosen=None, why=why
        )
        block.check()
        return block

    @property
    def form(self) -> str:
        """What a record holds, as in `Input.form`."""
        return (self.structure and self.structure.form) or "text"

    @property
    def shape(self) -> Shape:
        """How its records are read."""
        return Shape(text_field=self.text, form=self.form, jinja=PROMPTS)

    @property
    def read(self) -> tuple[str, ...]:
        """Fields of the text or the conversation; empty if neither is known."""
        return self.structure.fields if self.structure else (self.text,) if self.text else ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(int(identity(path)[0]) for path in self.listing.files)

    @property
    def label(self) -> str | None:
        """The field that says whether an answer is wanted, in preference data without pairs."""
        # A chat's label may mean anything.
        for name in ("label", "kto_tag") if self.form == "prompt_completion" else ("kto_tag",):
            values = self.fields[name].values if name in self.fields else set()
            if self.form not in ("text", "pairs") and values and values <= TRUTHS:
                return name
        return None

    @property
    def prefers(self) -> bool:
        """Whether its records say which answers are wanted, or have none, so that a sequence may hold only one."""
        return self.form in ("pairs", "template") or self.label is not None

    @property
    def traits(self) -> dict[str, int]:
        """The label, the source, and fields with a few values in many records; their numbers of values."""
        return {
            name: len(each.values)
            for name, each in self.fields.items()
            if name not in (*self.read, self.own_id) and each.records >= TRAIT_SHARE * self.records
            if (len(each.values) > 1 and each.has_few(MAX_SOURCES if name == self.source else MAX_VALUES))
            or name == self.label
        }

    @property
    def holding(self) -> int:
        """Tokens, a power of two, that hold HELD of the sampled conversations whole; 1 for texts, which are cut."""
        sizes = sorted(self.chosen.sizes) if self.chosen else [0]
        # A template writes roles and control tokens around every message.
        tokens = 1.25 * sizes[int(HELD * (len(sizes) - 1))] / BYTES_PER_TOKEN
        return 1 << math.ceil(math.log2(max(1.0, tokens)))

    @property
    def first(self) -> str:
        """The beginning of the first record's text; "" if it cannot be used."""
        with suppress(InputError):
            record = without_nulls(self.chosen.first) if self.chosen else {}
            return clip(words(conversation_in(record, self.shape).decode()), FIRST_CHARACTERS)
        return ""

    def toml(self, folder: Path, project: Path, constant: str) -> str:
        """The input's settings, for a file in `folder` of a project. constant: a source for all records if no field has
        one, or ""."""
        files = count(
            len(self.listing.files), f"{'JSONL' if self.listing.kind == 'jsonl' else 'Parquet'} file"
        )
        first = itertools.islice(self.fields.items(), FIELDS_SHOWN)
        fields = ", ".join(f"{one_line(name)} ({each.type})" for name, each in first)
        reads = self.structure.setting if self.structure else f"text_field = {_toml(self.text)}"
        own_id = '# id_field = "..."         # your own ids, shown in results'
        source = '# source_field = "..."     # where a document is from'
        if self.own_id:
            own_id = f"id_field = {_toml(self.own_id)}"
        if self.source or constant:
            source = f"source_field = {_toml(self.source)}" if self.source else f"source = {_toml(constant)}"
        return (
            f"# {files}, {byte_size(self.size)}; fields of {self.records:,} records examined: {fields}\n"
            f"paths = [{', '.join(_toml(_relative(path, folder, project)) for path in self.paths)}]\n"
            f"{reads}  # {self.why}\n{own_id}\n{source}\n"
        )

    def data(self) -> dict[str, Any]:
        """What is known of it, and of each of its fields."""
        return {
            "paths": self.paths,
            "records": self.records,
            "looked_at": self.refusals.looked_at,
            "refused": self.refusals.refused,
            "first_refusal": self.refusals.first or None,
            "format": self.form,
            "text_field": self.text or None,
            "why": self.why,
            "id_field": self.own_id,
            "source_field": self.source,
            "fields": [
                {
                    "field": name,
                    "type": each.type,
                    "share": each.records / self.records,
                    "distinct": len(each.values) or None,
                    "example": each.example,
                }
                for name, each in self.fields.items()
            ],
        }


def _values(record: dict[str, Any], depth: int = 1) -> Iterator[tuple[str, Any]]:
    """The fields of a record with their values; the name of one inside an object is the path to it."""
    for name, value in record.items():
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            yield from ((f"{name}.{inner}", own) for inner, own in _values(value, depth + 1))
        else:
            yield name, value


def _own_name(name: str) -> str:
    """A field's name without the objects around it, in lower case."""
    return name.lower().rpartition(".")[2]


def _is_label(name: str, of_name: Field) -> bool:
    """Whether a field holds labels rather than texts, judged by its name and values."""
    few = of_name.has_few(min(MAX_VALUES, of_name.records // 2)) and _own_name(name) not in TEXT_NAMES
    is_short = of_name.characters < LABEL_CHARACTERS * of_name.records
    return few or (is_short and _own_name(name) in (*ID_NAMES, *SOURCE_NAMES, *OTHER_LABELS))


def _named(names: Iterable[str], fields: Iterable[str]) -> str | None:
    """The field with the first of the names, in any case; otherwise the field inside an object with the first of these
    names."""
    lower = {name.lower(): name for name in fields}
    inner = {_own_name(name): field for name, field in lower.items()}
    return next((found[name] for found in (lower, inner) for name in names if name in found), None)


def one_line(name: str) -> str:
    """A field's name on one line, clipped if long."""
    return clip(_toml(name)[1:-1], NAME_CHARACTERS)


def look(paths: Sequence[str], text_field: str | None = None) -> list[InputBlock]:
    """The inputs in paths: one for each kind of file, columns and text field. text_field: the text field of inputs that
    have it.

    Raises:
        InputError: no file matches, a file cannot be read, no record can be used, or no input has the text field.
    """
    samples = [InputBlock.sampled([path], SAMPLE_RECORDS // len(paths)) for path in paths]
    if text_field and any(sample.records for sample in samples):
        known = dict.fromkeys(name for sample in samples for name in sample.fields)
        one_of("the text field", text_field, known)
    texts: list[str] = []
    apart: dict[tuple[str, str, str], list[InputBlock]] = {}
    for sample in sorted(samples, key=lambda sample: not sample.records):
        sample.choose(text_field, texts)
        texts += [sample.text] if sample.text else []
        kind = sample.listing.kind
        columns = str(read_schema(sample.listing.files[0], None)) if kind == "parquet" else ""
        key: tuple[str, str, str] = (
            kind,
            sample.text or (sample.structure.kind if sample.structure else ""),
            columns,
        )
        if not sample.records:  # an empty file joins the first of its kind
            key = next((other for other in apart if other[0] == kind), key)
        apart.setdefault(key, []).append(sample)
    blocks = []
    for (_, text, _), (block, *others) in apart.items():
        if others:
            block = InputBlock.sampled([path for alike in (block, *others) for path in alike.paths])
            block.choose(text_field if text_field == text else None, [text])
        if not block.records:
            refusals = first_refusals(block.listing, 1)
            first = f"; the first: {refusals.first}{refusals.looks}" if refusals.first else ""
            expected = f"one JSON object a line{first}" if block.listing.kind == "jsonl" else "rows"
            raise InputError(f"{block.listing.files[0]} holds no readable record; expected {expected}")
        if block.read:
            block.check()
        blocks.append(block)
    return blocks


@dataclass(kw_only=True)
class Proposal:
    """Settings for a corpus. traits: derived from the corpus if None. trainer: the trainer that reads the export.
    numbers: those given, by name in NUMBERS; the others are derived.

    layout: the ranks that the export's rows are laid out for; empty if rows are in the order of training; None if the
    number of ranks is needed and not given.

    Raises:
        InputError: no such trainer; it cannot train on the records, or loses their order; or an impossible number.
    """

    blocks: Sequence[InputBlock]
    traits: Sequence[str] | None = None
    trainer: str | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    reader: Trainer | None = field(init=False)
    ranks: dict[str, int] = field(init=False)
    formats: list[str] = field(init=False)
    length: int = field(init=False)
    batch: int = field(init=False)
    layout: Mapping[str, int] | None = field(init=False)

    def __post_init__(self) -> None:
        for name, number in self.numbers.items():
            what, least, most = NUMBERS[name]
            if not least <= number <= most:
                key = f"{'exports' if name in RANKS else 'sequence'}.{name}"
                raise InputError(f"{key} = {number}; expected {least:,} to {most:,} ({what.lower()})")
        self.ranks = {name: self.numbers[name] for name in RANKS if name in self.numbers}
        self.reader = TRAINERS[one_of("trainer", self.trainer, TRAINERS)] if self.trainer else None
        self.formats = list(self.reader.formats[:1]) if self.reader else ["parquet"]
        if self.prefers:
            self.formats = []
        if self.reader:
            self._refuse_unreadable(self.reader)
        elif self.ranks:
            name, number = next(iter(self.ranks.items()))
            option = f"--{name.replace('_', '-')} {number}"
            raise InputError(f"{option} applies to a trainer: name it too, with --trainer NAME")
        self.length, self.batch = self._sequence()
        self.layout = self._layout(self.reader) if self.reader else {}

    @property
    def forms(self) -> set[str]:
        """What records hold, as in `Input.form`."""
        return {block.form for block in self.blocks}

    @property
    def prefers(self) -> bool:
        """Whether an input's records say which answers are wanted."""
        return any(block.prefers for block in self.blocks)

    @property
    def reads_parts(self) -> bool:
        """Whether each rank of the trainer reads its own part of the export."""
        return bool(self.reader and self.reader.contiguous_ranks)

    @property
    def balanced(self) -> dict[str, str]:
        """The traits to balance, and a comment on each."""
        several = len(self.blocks) > 1
        traits = {**BUILT_IN_TRAITS, **({"source": ""} if several else {})}
        for block in self.blocks:
            for name, values in block.traits.items():
                # Several inputs have their sources in the trait "source".
                if not (several and name == block.source):
                    traits.setdefault(name, f"  # {values} values")
        return traits if self.traits is None else {name: traits.get(name, "") for name in self.traits}

    def _refuse_unreadable(self, trainer: Trainer) -> None:
        if trainer.forms and not self.forms & {*trainer.forms}:
            read, held = " or ".join(trainer.forms), " and ".join(sorted(self.forms))
            raise InputError(f"{self.trainer} reads records of {read}, and these are of {held}")
        if trainer.formats and self.prefers:
            raise InputError(
                f"{self.trainer} reads sequences, which preferences and prompts are not; leave --trainer out, and "
                f"train on the output's records, in their order"
            )
        if why := trainer.obstacle(masked=not self.forms <= {"text", "template"}, short_rows=False):
            raise InputError(f"{self.trainer} cannot read these records: {why}")

    def _sequence(self) -> tuple[int, int]:
        """(tokens of a sequence, sequences of a batch). A batch is a multiple of a step of all ranks."""
        tokens = sum(block.size for block in self.blocks) // BYTES_PER_TOKEN
        least = max(SHORTEST, min(LONGEST, max(block.holding for block in self.blocks)))
        length, batch = max(8192, least), 256
        while length > least and tokens < SEQUENCES * length:
            length //= 2
        length = self.numbers.get("length", length)
        while batch > 8 and tokens < BATCHES * batch * length:
            batch //= 2
        step = math.prod(max(1, n) for name, n in self.ranks.items() if self.reads_parts or name != "workers")
        return length, self.numbers.get("batch", -(-batch // step) * step)

    def _layout(self, trainer: Trainer) -> Mapping[str, int] | None:
        export = ExportShape(sequences=4 * self.batch - 1, sequence_length=self.length, batch=self.batch)
        if not self.reads_parts:
            export.reading(**{"world_size": 1, **self.ranks})
            return {}
        if "world_size" not in self.ranks:
            return None
        best = replay(export, trainer, **self.ranks).best
        layout = best.layout or {}
        # Otherwise the trainer may lose batches at the end.
        if not best.kept.in_order or self.batch % math.prod(layout.values()):
            numbers = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in self.ranks.items())
            raise InputError(
                f"{self.trainer} loses the order of batches of {self.batch} sequences with {numbers}: choose numbers "
                f"with a product that divides the batch"
            )
        return layout

    @property
    def warnings(self) -> list[Part]:
        """Warnings about records that would be refused, and about texts that may be labels."""
        parts: list[Part] = []
        refusals = [block.refusals for block in self.blocks if block.refusals.refused]
        if refusals:
            refused = sum(each.refused for each in refusals)
            looked_at = sum(block.refusals.looked_at for block in self.blocks)
            allowed = Input().max_reject_share
            then = "and listed with the output"
            if stops := refused > allowed * looked_at:
                then = (
                    f"more than input.max_reject_share = {allowed:g} allows, so plan and run will stop: correct the "
                    f"input, name another text_field, or raise input.max_reject_share"
                )
            share = f"{refused:,} of {looked_at:,} records examined will be refused"
            first = f"The first: {refusals[0].first}{refusals[0].looks}"
            parts.append(Line(f"{share}, {then}. {first}", "bad" if stops else "quiet"))
        for text in [block.fields[block.text] for block in self.blocks if block.text]:
            values = len(text.values)
            if warning := repeated_texts(text.records, values, text.characters):
                parts.append(Line(warning, "bad"))
        return parts

    def toml(self, folder: Path, project: Path | None = None) -> str:
        """The settings, for a file in `folder`. project: a folder around it, such as a Dagster project; files are
        written to its `divorder/<name of folder>`.

        Raises:
            InputError: the text field of an input, or a number of ranks that is needed, is unknown.
        """
        if self.layout is None:
            raise InputError(
                f"{self.trainer} gives every rank a part of the export, so the layout of rows depends on the number of "
                f"ranks: give it with --world-size N"
            )
        tables, names = [], [""]
        for block in self.blocks:
            if not block.read:
                raise InputError(f"{block.paths[0]}: {block.why}")
            if len(self.blocks) > 1:
                name = Path(fixed_beginning(block.paths[0])).name.split(".")[0] or "input"
                numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
                names.append(next(each for each in numbered if each not in names))
            header = "[[input]]" if len(self.blocks) > 1 else "[input]"
            tables.append(f"{header}\n{block.toml(folder, project or folder, names[-1])}")
        tables += [MODEL, ORDER]
        documents = sum(block.records * len(block.listing.files) // len(block.files) for block in self.blocks)
        if documents < 30 * DOCUMENTS_A_CLUSTER:
            clusters = max(2, documents // DOCUMENTS_A_CLUSTER)
            tables.append(f"[clusters]\nk = {clusters}  # of {count(documents, 'document')}\n")
        traits = "".join(f"{_key(name)} = 1.0{comment}\n" for name, comment in self.balanced.items())
        why = "traits that every window of training carries in the corpus's own mix"
        tables.append(f"[order.traits]             # {why}\n{traits}")
        scores = {
            name
            for block in self.blocks
            for name, each in block.fields.items()
            if each.kinds <= {"number", "whole number"} and len(each.values) > 2
            if each.records >= TRAIT_SHARE * block.records
        }
        if score := _named(SCORE_NAMES, scores):
            tables.append(
                "# [curriculum]             # follows a score and keeps everything else at its mix at each point\n"
                f'# score = {_toml(score)}\n# shape = "zigzag"         # or rise, fall, fold, stair, saw, segment\n'
            )
        tables.append(
            f"[sequence]                 # as your trainer has them\nlength = {self.length}\nbatch = {self.batch}\n"
        )
        prompts = [block.fields.get(name) for block in self.blocks for name in ("prompt", "completion")]
        if not self.formats and self.forms != {"pairs"}:
            tables.append('[packing]\nmethod = "none"            # a sequence holds one record\n')
        elif "text" in self.forms and len(self.forms) > 1:
            tables.append('[packing]\nmethod = "best_fit"        # cuts no conversation\n')
        elif self.forms == {"prompt_completion"} and all(each and each.kinds == {"text"} for each in prompts):
            # No chat template ends a completion that is a text.
            tables.append(
                "[packing]\nend_of_text = true         # after a completion: the model learns to stop\n"
            )
        # An existing folder belongs to somebody else; it may be the input.
        bases = itertools.chain(["divorder"], (f"divorder-{number}" for number in itertools.count(2)))
        beside = next(name for name in bases if not (folder / name).exists())
        why = "megatron, olmo, ds, mds, litdata: `divorder verify` shows what your trainer needs"
        if self.reader:
            why = f"for {self.reader.title}"
        if self.prefers:
            why = "preferences, prompts: train on the output's records"
        exports = f"formats = {json.dumps(self.formats)}      # {why}"
        for name, number in self.layout.items():
            exports += f"\n{name} = {number}{'  # that each read a part of the rows' if name == 'world_size' else ''}"
        base = os.path.relpath(project / "divorder" / folder.name, folder) if project else beside
        return TEMPLATE.format(tables="\n".join(tables), base=base, exports=exports)


def blank(folder: Path, project: Path) -> str:
    """Settings without a corpus, which are refused until it is filled in, for a file in a folder of a project."""
    base = os.path.relpath(project / "divorder" / folder.name, folder)
    return TEMPLATE.format(tables=f"{NO_INPUT}\n{ORDER}", base=base, exports='formats = ["parquet"]')


def _relative(path: str, folder: Path, project: Path) -> str:
    """A path as settings in a folder write it: relative if it is in the project; else names of folders that exist are
    escaped, so that they are no patterns even if the folders move."""
    if is_url(path):
        return path
    absolute = os.path.abspath(os.path.expanduser(path))
    if os.path.commonpath([absolute, project]) == str(project):
        return os.path.relpath(absolute, folder)
    fixed = fixed_beginning(absolute)
    return glob.escape(fixed) + absolute.removeprefix(fixed)


def _toml(text: str) -> str:
    """A basic string of TOML; its escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("-", "_").isidentifier() else _toml(name)


def write_settings(
    proposal: Proposal, file: Path, *, replaces: bool = False, project: Path | None = None
) -> Settings:
    """Writes a settings file for a corpus. replaces: replace an existing file. project: see `Proposal.toml`.

    Raises:
        SettingsError: the file exists, or cannot be written. InputError: see `Proposal.toml`.
    """
    if not replaces:
        refuse_existing(file)
    # TOML forbids control characters even in comments.
    text = printable(proposal.toml(file.absolute().parent, project))
    settings = load_settings(tomllib.loads(text), {}, within=file.absolute())
    write_settings_file(file, text, new=not replaces)
    return settings


def refuse_existing(file: Path) -> None:
    """
    Raises:
        SettingsError: the file exists, or its folder cannot be written.
    """
    if file.exists():
        raise SettingsError(f"{file} is there already; remove it, or name another file with --config")
    refuse_unwritable(file)
