"""`divorder init`: a short settings file for a corpus, from the fields of its records.

`look` samples the inputs, `Proposal` holds settings for them, and `write_settings` writes the settings to a file.
"""

from __future__ import annotations

import glob
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dagster_divorder.chats.document import Chat, Pair, conversation_of
from dagster_divorder.chats.forms import without_nulls
from dagster_divorder.chats.input_template import PROMPTS
from dagster_divorder.core.order.strategy import nearest, one_of
from dagster_divorder.corpus.find import Found, find_files
from dagster_divorder.corpus.inputs import SHOWN_BYTES, read_schema
from dagster_divorder.corpus.looks import Structure, characters, looks_like, repeated_texts, structure_of
from dagster_divorder.corpus.peek import Refusals, first_records, first_refusals
from dagster_divorder.corpus.records import conversation_in
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import DivOrderError, InputError, SettingsError, printable
from dagster_divorder.models.chat_templates import chat_template
from dagster_divorder.settings import Input, Settings, fixed_beginning, load_settings
from dagster_divorder.settings.loading import refuse_unwritable, write_settings_file
from dagster_divorder.settings.places import is_url
from dagster_divorder.settings.sections import Exports
from dagster_divorder.settings.sections import Sequence as SequenceSection
from dagster_divorder.store.sources import RemoteFile, Source, identity, open_source
from dagster_divorder.trainers import TRAINERS
from dagster_divorder.trainers.replay import Shape as ExportShape
from dagster_divorder.trainers.replay import replay
from dagster_divorder.units import byte_size
from dagster_divorder.view.answer import Line, Part, TextTable
from dagster_divorder.view.words import clip, count

SAMPLE_FILES, SAMPLE_RECORDS = 20, 50_000
MIN_SHARE = 0.9
"""Smallest share of the records that have the text field or the id field."""
MAX_SOURCES, MAX_VALUES = 1000, 50
"""Most values of a source field, and of a proposed trait."""
MAX_DEPTH, MIN_INNER_SHARE = 4, 0.01
"""Fields inside objects: greatest depth, and smallest share of the records."""
BYTES_PER_TOKEN = 4
MIN_SEQUENCES, MIN_BATCHES = 2_000, 50
"""Fewest sequences and batches of a corpus: proposed sizes fall until it has as many, down to SHORTEST tokens and 8
sequences."""
SHORTEST, LONGEST = 512, 32_768
"""Bounds of the proposed tokens of a sequence."""
HELD, SIZED_RECORDS = 0.99, 2_000
"""Share of conversations that a proposed sequence holds whole, and records examined for it."""

LABEL_CHARACTERS = 100
"""Mean characters below which a field named like a label, or with few values, holds no texts."""
SHORT_BESIDE = 4
"""A short field named like texts holds no texts if another field has this many times its characters."""
FIELDS_SHOWN, EXAMPLE_CHARACTERS, NAME_CHARACTERS = 40, 40, 60
EXAMPLE_RENDERED = 300
BUILT_IN_TRAITS = {"cluster": "  # topics, found by clustering", "length": ""}
TEXT_NAMES = ("text", "content", "body", "document", "raw_content", "markdown", "code", "article", "message")
ID_NAMES = ("id", "_id", "doc_id", "docid", "document_id", "record_id", "uid", "uuid", "guid", "url")
SOURCE_NAMES = (
    "source",
    "pile_set_name",
    "redpajama_set_name",
    "dataset",
    "subset",
    "origin",
    "corpus",
    "collection",
    "domain",
    "split",
    "category",
)
SCORE_NAMES = (
    *(
        "quality",
        "quality_score",
        "edu_score",
        "fineweb_edu_score",
        "int_score",
        "score",
        "rating",
        "difficulty_score",
    ),
    *("perplexity", "ppl", "helpfulness", "reward"),
)
TRUTHS = frozenset(map(hash, (0, 1, "true", "false", "True", "False")))
"""Hashes of the values of a label that says yes or no; true and false have those of 1 and 0."""
LABEL_NAMES = (*ID_NAMES, *SOURCE_NAMES, "label", "labels", "lang", "language", "type", "date")


@dataclass(slots=True)
class Field:
    """A field of the sampled records.

    records: number of records with the field. texts: number in which it is a text. characters: of all its texts, also
    inside lists and objects. values: hashes of the distinct values. example: the first value that is not empty,
    clipped. inner: the field is inside an object, and its name is the path to it.
    """

    records: int = 0
    texts: int = 0
    characters: int = 0
    values: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    example: str = ""
    inner: bool = False

    def add(self, value: Any) -> None:
        self.records += 1
        self.texts += isinstance(value, str)
        self.kinds.add(_kind(value))
        self.characters += characters(value)
        if isinstance(value, str | int | float):
            self.values.add(hash(value))
        if not self.example and value not in ("", [], {}):
            plain = isinstance(value, bool | list | dict)
            text = json.dumps(value, ensure_ascii=False, default=str) if plain else str(value)
            self.example = clip(text, EXAMPLE_CHARACTERS)

    @property
    def kind(self) -> str:
        return " or ".join(sorted(self.kinds - ({"whole number"} if "number" in self.kinds else set())))

    @property
    def is_plain(self) -> bool:
        """Whether the field holds no numbers, lists or objects."""
        return self.kinds <= {"text", "true or false"}

    def has_few(self, values: int) -> bool:
        """Whether the field has at most so many distinct values, short in total."""
        return len(self.values) <= values and self.characters < LABEL_CHARACTERS * self.records

    def holds_labels(self, name: str) -> bool:
        """Whether the field holds labels rather than texts, judged by its name and length."""
        return _own_name(name) in LABEL_NAMES and self.characters < LABEL_CHARACTERS * self.records

    def is_id(self, records: int) -> bool:
        """Whether the field holds a different short text or whole number in each record."""
        one_kind = self.kinds in ({"text"}, {"whole number"})
        return self.records == len(self.values) == records and one_kind and self.characters < 200 * records

    @property
    def repeats(self) -> str:
        """A warning if the field's texts are few or very short; "" otherwise."""
        values = len(self.values)
        return repeated_texts(self.records, values, self.characters * values // self.records)

    def described(self) -> str:
        """The field's type and mean length."""
        if self.characters:
            return f"{self.kind}, {self.characters / self.records:,.0f} characters on average"
        return "always empty" if self.kinds == {"text"} else self.kind

    def row(self, name: str, records: int) -> dict[str, str]:
        """The field's row in a table. records: of the sample."""
        share = 100 if self.records == records else min(99.9, round(100 * self.records / records, 1))
        values = len(self.values)
        return {
            "field": one_line(name),
            "type": self.kind,
            "of records": f"{share:g} %" if share else "<0.1 %",
            "distinct": "–" if not values else f">{MAX_SOURCES:,}" if values > MAX_SOURCES else f"{values:,}",
            "example": self.example,
        }

    def data(self, name: str, records: int) -> dict[str, Any]:
        values = len(self.values)
        return {
            "field": name,
            "types": sorted(self.kinds),
            "share": self.records / records,
            "distinct": min(values, MAX_SOURCES) if values else None,
            "more": values > MAX_SOURCES,
            "example": self.example,
        }


def one_line(name: str) -> str:
    """A field's name on one line, clipped if long."""
    escaped = _toml(name)[1:-1]
    return escaped if len(escaped) <= NAME_CHARACTERS else f"{escaped[:NAME_CHARACTERS]}…"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    # JSON's whole numbers beyond 64 bits arrive as floats; they may be ids.
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 1 << 63):
        return "whole number"
    if isinstance(value, float):
        return "number"
    names: dict[type, str] = {str: "text", dict: "object", list: "list", tuple: "list"}
    return names.get(type(value), type(value).__name__)


@dataclass(frozen=True)
class InputBlock:
    """An input: its paths, their files, and the fields of its sampled records. text: the text field, and `why`; or ""
    and, in `why`, how to name the field. structure: what is read in place of a text field."""

    paths: tuple[str, ...]
    listing: Found
    records: int
    fields: dict[str, Field]
    text: str
    why: str
    structure: Structure | None = None
    own_id: str | None = None
    source: str | None = None

    def with_text(self, name: str, why: str) -> InputBlock:
        """The input with its text in this field, and a matching id and source.

        Raises:
            InputError: there is no such field, or most records would be refused.
        """
        return replace(self, text=self.known(name), why=why).checked(f"text_field = {name!r}")

    def checked(self, reading: str) -> InputBlock:
        """The input with an id and a source. reading: the setting that says how it is read.

        Raises:
            InputError: most records would be refused.
        """
        refused, looked_at = self.refusals.refused, self.refusals.looked_at
        if 2 * refused > looked_at:
            raise InputError(
                f"{refused:,} of {count(looked_at, 'record')} of {self.paths[0]} examined cannot be used with "
                f"{reading}, the first: {self.refusals.first}{self.refusals.looks}"
            )
        rest = {name: field for name, field in self.fields.items() if name not in self.read}
        own_id = _named(ID_NAMES, (name for name, field in rest.items() if field.is_id(self.records)))
        rest.pop(own_id or "", None)
        plain = (name for name, field in rest.items() if field.is_plain and field.has_few(MAX_SOURCES))
        return replace(self, own_id=own_id, source=_named(SOURCE_NAMES, plain))

    def known(self, name: str) -> str:
        """The name, checked to be a field's.

        Raises:
            InputError: no field has it.
        """
        if name not in self.fields:
            raise InputError(
                f"there is no field {name!r}{nearest(name, self.fields)}; the fields are "
                f"{', '.join(map(repr, itertools.islice(self.fields, FIELDS_SHOWN)))}"
            )
        return name

    @cached_property
    def refusals(self) -> Refusals:
        """The sampled records that the pipeline would refuse."""
        files = _sampled(self.listing)
        return first_refusals(replace(self.listing, files=files, shape=self.shape), _of_each(files))

    @property
    def shape(self) -> Shape:
        return Shape(text_field=self.text, form=self.form, jinja=PROMPTS)

    @property
    def size(self) -> int:
        return sum(int(identity(path)[0]) for path in self.listing.files)

    @property
    def form(self) -> str:
        """What a record holds, as in `Input.form`."""
        return (self.structure.form if self.structure else None) or "text"

    @property
    def read(self) -> tuple[str, ...]:
        """Fields of the text or the conversation."""
        return self.structure.fields if self.structure else (self.text,)

    @property
    def said(self) -> str:
        """What is read, in words."""
        return self.structure.name if self.structure else repr(self.text)

    @cached_property
    def label(self) -> str | None:
        """The field that says whether an answer is wanted, in preference data without pairs."""
        if self.form in ("text", "pairs"):
            return None
        # A chat's label may mean anything.
        names = ("label", "kto_tag") if self.form == "prompt_completion" else ("kto_tag",)
        held = ((name, self.fields[name].values) for name in names if name in self.fields)
        return next((name for name, values in held if values and values <= TRUTHS), None)

    @property
    def has_no_end(self) -> bool:
        """Whether its completions are texts, which no chat template ends with a token."""
        kinds = [self.fields[name].kinds for name in ("prompt", "completion") if name in self.fields]
        return self.form == "prompt_completion" and not self.prefers and kinds == [{"text"}] * 2

    @property
    def prefers(self) -> bool:
        """Whether its records say which answers are wanted, or have none, so that a sequence may hold only one."""
        return self.form in ("pairs", "template") or self.label is not None

    @cached_property
    def holding(self) -> int:
        """Tokens, a power of two, that hold HELD of the sampled conversations whole; 0 for texts, which are cut."""
        if self.form == "text":
            return 0
        files = _sampled(self.listing)
        sizes = sorted(
            characters([record.get(name) for name in self.read])
            for file in files
            for record in itertools.islice(
                first_records([replace(self.listing, files=[file])]), _of_each(files, SIZED_RECORDS)
            )
        )
        # A template writes roles and control tokens around every message.
        tokens = 1.25 * sizes[int(HELD * (len(sizes) - 1))] / BYTES_PER_TOKEN
        return 1 << math.ceil(math.log2(max(1.0, tokens)))

    @cached_property
    def first_rendered(self) -> str:
        """The first record, rendered by the bootstrap model's template and clipped."""
        template = chat_template(None, None)
        for record in itertools.islice(first_records([self.listing]), SAMPLE_RECORDS):
            with suppress(InputError):
                side = conversation_of(conversation_in(without_nulls(record), self.shape).decode())
                side = side.chosen if isinstance(side, Pair) else side
                assert side
                text = (
                    template.render(side.messages, side.tools).text if isinstance(side, Chat) else side.text
                )
                return clip(text, EXAMPLE_RENDERED)
        return ""

    @property
    def chosen(self) -> list[str]:
        """The fields of text, id and source, with reasons; a line each."""
        own_id = (
            f"{self.own_id!r}, different in each record"
            if self.own_id
            else "none: no field named id, url or similar has a different text or whole number in each record"
        )
        source = (
            f"{self.source!r}, {count(len(self.fields[self.source].values), 'value')}"
            if self.source
            else f"none: no field named source, dataset or similar has at most {MAX_SOURCES:,} different texts"
        )
        text = [f"text: {self.text!r}, {self.why}"]
        if self.structure:
            text = [f"format: {self.form}, as these are {self.why}", f"first record: {self.first_rendered}"]
        if self.label:
            text.append(
                f"label: {self.label!r} says whether an answer is wanted, so that a sequence holds one record"
            )
        return [*text, f"id: {own_id}", f"source: {source}"]

    def parts(self, title: str = "") -> list[Part]:
        """The table of its fields, and the files in its folders that are not read."""
        names = list(self.fields)
        rows = [self.fields[name].row(name, self.records) for name in names[:FIELDS_SHOWN]]
        heading = f"{title}fields of {count(self.records, 'record')}"
        parts: list[Part] = [TextTable(rows, heading)]
        if len(names) > FIELDS_SHOWN:
            parts.append(f"and {len(names) - FIELDS_SHOWN:,} more: --json has all of them")
        if self.listing.others:
            others = ", ".join(f"{number:,} {ending}" for ending, number in self.listing.others.items())
            parts.append(f"files that are not read: {others}")
        return parts

    def data(self) -> dict[str, Any]:
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
            "fields": [field.data(name, self.records) for name, field in self.fields.items()],
        }

    def lines(self, folder: Path, project: Path, constant: str | None) -> str:
        """The input's settings, for a file in `folder` of a project. constant: a source for all records if no field has
        one."""
        files = count(
            len(self.listing.files), f"{'JSONL' if self.listing.kind == 'jsonl' else 'Parquet'} file"
        )
        first = itertools.islice(self.fields.items(), FIELDS_SHOWN)
        fields = ", ".join(f"{one_line(name)} ({field.kind})" for name, field in first)
        source_line = '# source_field = "..."     # where a document is from'
        if self.source or constant:
            key, value = ("source_field", self.source) if self.source else ("source", constant)
            source_line = f"{key} = {_toml(value or '')}"
        return "\n".join(
            [
                f"# {files}, {byte_size(self.size)}; fields of {self.records:,} records examined: {fields}",
                f"paths = [{', '.join(_toml(_relative(path, folder, project)) for path in self.paths)}]",
                f"{self.structure.setting}  # {self.why}"
                if self.structure
                else f"text_field = {_toml(self.text)}  # {self.why}",
                f"id_field = {_toml(self.own_id)}"
                if self.own_id
                else '# id_field = "..."         # your own ids, shown in results',
                source_line,
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Settings for a corpus. traits, length (tokens of a sequence), batch (sequences): derived from the corpus if None.
    trainer: the trainer that reads the export. ranks: given numbers of its `Reading`.

    Raises:
        InputError: there is no such trainer.
    """

    blocks: Sequence[InputBlock]
    traits: Sequence[str] | None = None
    length: int | None = None
    batch: int | None = None
    trainer: str | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.trainer:
            one_of("trainer", self.trainer, TRAINERS)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(block.size for block in self.blocks)

    @property
    def reads_parts(self) -> bool:
        """Whether each rank of the trainer reads its own part of the export, so that the layout depends on the
        ranks."""
        return self.trainer is not None and TRAINERS[self.trainer].contiguous_ranks

    @property
    def several(self) -> bool:
        return len(self.blocks) > 1

    @property
    def fields(self) -> dict[str, Field]:
        """Fields of all inputs by name."""
        return self.blocks[0].fields if not self.several else _joined(block.fields for block in self.blocks)

    @property
    def sources(self) -> list[str]:
        """The trait of the records' sources, if any."""
        if self.several:
            return ["source"]
        source = self.blocks[0].source
        return [source] if source and len(self.fields[source].values) > 1 else []

    @property
    def balanced(self) -> list[str]:
        """The traits to balance."""
        labels = [] if self.several else filter(None, [self.blocks[0].label])
        return list(self.traits or [*BUILT_IN_TRAITS, *self.sources, *labels])

    @property
    def prefers(self) -> bool:
        """Whether an input's records say which answers are wanted."""
        return any(block.prefers for block in self.blocks)

    @property
    def candidates(self) -> list[str]:
        """Other fields that could be traits."""
        # Several inputs have their sources in the trait "source".
        used = {
            name
            for block in self.blocks
            for name in (*block.read, block.own_id, self.several and block.source)
        }
        return [
            name
            for name, field in self.fields.items()
            if name not in {*used, *self.sources} and field.is_plain and field.has_few(MAX_VALUES)
        ]

    @property
    def sequence(self) -> tuple[int, int]:
        """(tokens of a sequence, sequences of a batch). A batch is a multiple of a step of all ranks.

        Raises:
            SettingsError: an impossible number.
        """
        holding = min(LONGEST, max(block.holding for block in self.blocks))
        length, batch = _lengths(self.size // BYTES_PER_TOKEN, self.length, max(SHORTEST, holding))
        step = math.prod(
            max(1, number) for name, number in self.ranks.items() if self.reads_parts or name != "workers"
        )
        batch = -(-batch // step) * step if self.batch is None else self.batch
        _checked("sequence", SequenceSection, length=length, batch=batch)
        return length, batch

    @property
    def layout(self) -> Mapping[str, int]:
        """The ranks that the export's rows are laid out for; empty if rows are in the order of training.

        Raises:
            InputError: with these numbers the trainer loses the order.
            SettingsError: an impossible number.
        """
        trainer = TRAINERS[self.trainer] if self.trainer else None
        forms = {block.form for block in self.blocks}
        if trainer and trainer.forms and not forms & set(trainer.forms):
            read, held = " or ".join(trainer.forms), " and ".join(forms)
            raise InputError(f"{self.trainer} reads records of {read}, and these are of {held}")
        if trainer and trainer.formats and self.prefers:
            raise InputError(
                f"{self.trainer} reads sequences, which preferences and prompts are not; leave --trainer out, and "
                f"train on the output's records, in their order"
            )
        if trainer and not forms <= {"text", "template"} and not trainer.reads_labels:
            raise InputError(
                f"{self.trainer} makes labels from the ids, so it also trains on what users say; leave --trainer "
                f"out, and train with TRL or dagster_divorder.torch"
            )
        if not trainer:
            if self.ranks:
                name, number = next(iter(self.ranks.items()))
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} {number} applies to a trainer: name it too, with --trainer NAME")
            return {}
        _checked("exports", Exports, **{name: max(1, number) for name, number in self.ranks.items()})
        length, batch = self.sequence
        export = ExportShape(sequences=4 * batch - 1, sequence_length=length, batch=batch)
        if not self.reads_parts:
            export.reading(**{"world_size": 1, **self.ranks})
            return {}
        if "world_size" not in self.ranks:
            raise InputError(
                f"{trainer.name} gives every rank a part of the export, so the layout of rows depends on the number "
                f"of ranks: give it with --world-size N"
            )
        best = replay(export, trainer, **self.ranks).best
        layout = best.layout or {}
        # Otherwise the trainer may lose batches at the end.
        if not best.kept.in_order or batch % math.prod(layout.values()):
            numbers = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in self.ranks.items())
            raise InputError(
                f"{trainer.name} loses the order of batches of {batch} sequences with {numbers}: choose numbers with "
                f"a product that divides the batch"
            )
        return layout

    @property
    def refusals(self) -> tuple[int, int, float]:
        """(sampled records, how many of them the pipeline would refuse, the share that it allows)."""
        looked_at, refused = (
            sum(getattr(block.refusals, name) for block in self.blocks) for name in ("looked_at", "refused")
        )
        return looked_at, refused, Input().max_reject_share

    def warnings(self) -> list[Part]:
        """Warnings about records that would be refused, and about texts that may be labels."""
        parts: list[Part] = []
        repeats = [block.fields[block.text].repeats for block in self.blocks if block.text]
        looked_at, refused, allowed = self.refusals
        if refused:
            first, looks = next(
                (block.refusals.first, block.refusals.looks)
                for block in self.blocks
                if block.refusals.refused
            )
            share = f"{refused:,} of {looked_at:,} records examined"
            stops = Line(
                f"{share} would be refused ({refused / looked_at:.1%}), more than input.max_reject_share = "
                f"{allowed:g} allows: plan and run will stop. The first: {first}{looks}. Correct the input, name "
                f"another text_field, or raise input.max_reject_share",
                "bad",
            )
            listed = f"{share} will be refused, and listed with the output. The first: {first}{looks}"
            parts.append(stops if refused > allowed * looked_at else listed)
        return [*parts, *(Line(warning, "bad") for warning in repeats if warning)]

    def toml(self, folder: Path, project: Path | None = None) -> str:
        """The settings, for a file in `folder`. project: a folder around it, such as a Dagster project; files are
        written to its `divorder/<name of folder>`.

        Raises:
            InputError: the text field of an input is unknown; see also `layout`. SettingsError: see `sequence`.
        """
        if doubt := next((block.why for block in self.blocks if not block.read[0]), None):
            raise InputError(doubt)
        layout, (length, batch) = self.layout, self.sequence
        # An existing folder belongs to somebody else; it may be the input.
        names = itertools.chain(["divorder"], map("divorder-{}".format, itertools.count(2)))
        beside = next(name for name in names if not (folder / name).exists())
        base = _base(folder, project) if project else beside
        reader = "megatron, olmo, ds, mds, litdata, text: `divorder verify` shows what your trainer needs"
        if self.trainer:
            reader = f"for {TRAINERS[self.trainer].title}"
        layout_lines = "".join(
            f"{name} = {number}{'  # that each read a part of the rows' if name == 'world_size' else ''}\n"
            for name, number in layout.items()
        )
        exports = f"formats = {json.dumps(self.formats)}      # {reader}"
        if self.prefers:
            exports = "formats = []               # preferences, prompts: train on the output's records"
        return f"""\
# Settings of DivOrder: `divorder plan` shows what a run would do, `divorder run` does it. Every key, with its default:
# divorder.example.toml in the repository.

{self._input_tables(folder, project or folder)}

[model]
base = "bootstrap"         # a small tokenizer trained here; better: the model that you train, an id or a directory

{_ORDER}

[order.traits]             # traits that every window of training carries in the corpus's own mix
{self._trait_lines()}
{self._curriculum()}
[sequence]                 # as your trainer has them
length = {length}
batch = {batch}
{self._packing()}
{_places(base, exports)}
{layout_lines}"""

    def _input_tables(self, folder: Path, project: Path) -> str:
        header = "[[input]]" if self.several else "[input]"
        constants = _constants(self.blocks) if self.several else [None]
        return "\n\n".join(
            f"{header}\n{block.lines(folder, project, constant)}"
            for block, constant in zip(self.blocks, constants, strict=True)
        )

    def _curriculum(self) -> str:
        """A proposed curriculum along a field that looks like a score, commented out."""
        records = sum(block.records for block in self.blocks)
        scores = [
            name
            for name, known in self.fields.items()
            if known.kinds <= {"number", "whole number"}
            and len(known.values) > 2
            and 2 * known.records >= records
        ]
        name = _named(SCORE_NAMES, scores)
        if name is None:
            return ""
        return (
            "\n# [curriculum]             # follows a score and keeps everything else at its mix at each point\n"
            f'# score = {_toml(name)}\n# shape = "zigzag"         # or rise, fall, fold, stair, saw, segment\n'
        )

    def _packing(self) -> str:
        forms = {block.form for block in self.blocks}
        if forms != {"pairs"} and (self.prefers or not self.formats):
            return '\n[packing]\nmethod = "none"            # a sequence holds one record\n'
        if "text" in forms and len(forms) > 1:
            return '\n[packing]\nmethod = "best_fit"        # cuts no conversation\n'
        if all(block.has_no_end for block in self.blocks):
            return "\n[packing]\nend_of_text = true         # after a completion: the model learns to stop\n"
        return ""

    def _trait_lines(self) -> str:
        balanced = [f"{_key(name)} = 1.0{BUILT_IN_TRAITS.get(name, '')}" for name in self.balanced]
        proposed = [
            f"# {_key(name)} = 1.0  # distinct values: {len(self.fields[name].values):,}"
            for name in self.candidates
            if name not in self.balanced
        ]
        return "\n".join([*balanced, *proposed])

    @property
    def formats(self) -> list[str]:
        """Formats of the export that the trainer reads; empty if it reads the curated output."""
        return list(TRAINERS[self.trainer].formats[:1]) if self.trainer else ["parquet"]


def look(paths: Sequence[str], text_field: str | None = None) -> list[InputBlock]:
    """The inputs in paths: one for each kind of file, columns and text field. text_field: the text field of inputs that
    have it.

    Raises:
        InputError: no file matches, a file cannot be read, no record can be used, or the text is spread over several
            fields.
    """
    if len(paths) == 1:
        return [_block(paths, text_field)]
    texts = [text_field] if text_field else []
    shapes: list[tuple[str, str | None, str]] = []
    inputs = [find_files([path]) for path in paths]
    samples = [_sample(listing, SAMPLE_RECORDS // len(paths)) for listing in inputs]
    if text_field and not any(text_field in fields for _, fields, _ in samples):
        raise InputError(f"no input has a field {text_field!r}; name a field of at least one input")
    for path, listing, (records, fields, structure) in zip(paths, inputs, samples, strict=True):
        whole = _whole_texts(fields, records, inner=structure is None)
        # Prefers a text field of the earlier inputs.
        text = next((name for name in texts if name in (fields if name == text_field else whole)), None)
        if (structure and not (text_field and text == text_field)) or (whole and not text):
            try:
                own_text, why = _text_field(fields, records, structure, listing)
                if not own_text:
                    raise InputError(why)
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
            text = f"format {own_text.form}" if isinstance(own_text, Structure) else text or own_text
            texts.append(text)
        columns = str(read_schema(listing.files[0], None)) if listing.kind == "parquet" else ""
        shapes.append((listing.kind, text, columns))
    apart: dict[tuple[str, str | None, str], list[str]] = {}
    for path, shape in zip(paths, shapes, strict=True):
        # An input without texts, such as an empty file, joins the first of its kind with texts.
        likes = (other for other in shapes if other[0] == shape[0] and other[1])
        apart.setdefault(shape if shape[1] else next(likes, shape), []).append(path)
    return [_block(alike, text_field if shape[1] == text_field else None) for shape, alike in apart.items()]


def _block(paths: Sequence[str], text_field: str | None) -> InputBlock:
    listing = find_files(paths)
    records, fields, structure = _sample(listing)
    if not records:
        expected = "rows"
        if listing.kind == "jsonl":
            refusals = first_refusals(listing, 1)
            with open_source(listing.files[0]) as file:
                kind = looks_like(file.read(SHOWN_BYTES))
            looks = f", which is {kind}" if kind else refusals.looks
            first = f"; the first: {refusals.first}" if refusals.first else ""
            expected = f"one JSON object a line{first}{looks}"
        raise InputError(f"{listing.files[0]} holds no readable record; expected {expected}")
    block = InputBlock(tuple(paths), listing, records, fields, "", "")
    if text_field and not (structure and structure.form == "template"):
        return block.with_text(text_field, "as the command says")
    text, why = _text_field(fields, records, structure, listing)
    if isinstance(text, Structure):
        return replace(block, structure=text, why=why).checked(text.setting)
    return block.with_text(text, why) if text else replace(block, why=why)


def _joined(inputs: Iterable[dict[str, Field]]) -> dict[str, Field]:
    """Fields of several inputs, by name."""
    joined: dict[str, Field] = {}
    for name, added in itertools.chain.from_iterable(fields.items() for fields in inputs):
        whole = joined.get(name, Field())
        joined[name] = Field(
            whole.records + added.records,
            whole.texts + added.texts,
            whole.characters + added.characters,
            whole.values | added.values,
            whole.kinds | added.kinds,
        )
    return joined


def _constants(blocks: Sequence[InputBlock]) -> list[str]:
    """A distinct name for each input, from its first path."""
    names: list[str] = []
    for block in blocks:
        folders = [name for name in re.split(r"[/\\]", block.paths[0]) if not re.search(r"[*?\[]", name)]
        name = next(filter(None, reversed(folders)), "").split(".")[0] or "input"
        numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        names.append(next(candidate for candidate in numbered if candidate not in names))
    return names


def _sampled(listing: Found) -> list[Source]:
    """Files from all over the corpus, because sources often follow one another; only the first at a URL, since files
    are fetched whole."""
    if isinstance(listing.files[0], RemoteFile):
        return listing.files[:1]
    return listing.files[:: -(-len(listing.files) // SAMPLE_FILES)]


def _of_each(files: Sequence[Source], most: int = SAMPLE_RECORDS) -> int:
    """Records to sample from each file."""
    return max(1, most // len(files))


def _sample(listing: Found, wanted: int = SAMPLE_RECORDS) -> tuple[int, dict[str, Field], Structure | None]:
    """(number of sampled records, their fields by name, the fields that together form most records' text)."""
    files = _sampled(listing)
    records = 0
    fields: dict[str, Field] = {}
    structures: Counter[tuple[str, str | None]] = Counter()
    together: dict[str, dict[str, None]] = {}
    for path in files:
        for record in itertools.islice(
            first_records([replace(listing, files=[path])]), _of_each(files, wanted)
        ):
            records += 1
            if structure := structure_of(record):
                structures[structure.kind, structure.form] += 1
                together.setdefault(structure.kind, {}).update(dict.fromkeys(structure.fields))
            for name, value, inner in _values(record):
                if value is not None:
                    fields.setdefault(name, Field(inner=inner)).add(value)
    least = MIN_INNER_SHARE * records
    often = {name: field for name, field in fields.items() if not field.inner or field.records >= least}
    (kind, form), with_it = next(iter(structures.most_common(1)), (("", None), 0))
    # Without a text in most records, a file may hold texts and chats.
    few = 2 if _whole_texts(often, records, inner=False) else 10
    most = Structure(kind, tuple(together[kind]), form) if few * with_it > records else None
    return records, often, most


def _values(record: dict[str, Any], depth: int = 1) -> Iterator[tuple[str, Any, bool]]:
    """(name, value, whether the field is inside an object) of a record's fields; the name is then a path."""
    for name, value in record.items():
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            yield from ((f"{name}.{inner}", own, True) for inner, own, _ in _values(value, depth + 1))
        else:
            yield name, value, depth > 1


def _text_field(
    fields: dict[str, Field], records: int, structure: Structure | None, listing: Found
) -> tuple[str | Structure, str]:
    """(the text field, or the structure read in its place, and the reason); or ("", the remedy) if several fields may
    be the text.

    Raises:
        InputError: no field holds text, or several fields hold it together in no known form.
    """
    whole = _whole_texts(fields, records, inner=structure is None)
    longest = max(whole, key=lambda name: whole[name].characters, default="")
    named = _named(TEXT_NAMES, whole)
    # `text` may be a title beside a much longer `body`.
    if named and 2 * whole[named].characters >= whole[longest].characters:
        longest = named
    # A text beside a chat's fields may be the rendered chat.
    if structure and (
        not longest
        or longest in structure.fields
        or whole[longest].characters < MIN_SHARE * sum(fields[name].characters for name in structure.fields)
    ):
        if structure.form is None:
            raise InputError(f"the records are {structure.said(by_jq=listing.kind == 'jsonl')}")
        return structure, structure.name
    by_name = "name it with --text-field, or as input.text_field in settings of your own"
    if "list" in max(fields.values(), key=lambda field: field.characters).kinds:
        by_name += "; texts in a list are not read yet: join them into one"
    first = itertools.islice(fields.items(), FIELDS_SHOWN)
    listed = ", ".join(f"{name!r} ({field.described()})" for name, field in first)
    if not longest:
        why = f"no field holds text in most of the first {records:,} records; the fields are {listed}"
        if any(field.texts for field in fields.values()):
            return "", f"{why}; if one of them is the text, {by_name}"
        raise InputError(f"{why}; write the text of each record into one field, as a string")
    known = (longest, *(structure.fields if structure else ()))
    rivals = {
        name: field for name, field in fields.items() if name not in known and not field.holds_labels(name)
    }
    rival = max(rivals, key=lambda name: rivals[name].characters, default="")
    own = whole[longest].characters
    # A field named like texts may be as short as a label.
    times = 0.5 if longest != named else SHORT_BESIDE if own < LABEL_CHARACTERS * records else math.inf
    if rivals and rivals[rival].characters >= times * own:
        return "", (
            f"the text may be in {longest!r} ({whole[longest].described()}) or in {rival!r} "
            f"({rivals[rival].described()}); if one of them holds it, {by_name}; if both belong together, join them "
            f"into one text first"
        )
    if longest != named and own and whole[longest].repeats:
        return "", (
            f"the longest field, {longest!r}, holds labels rather than texts; the fields are {listed}; {by_name}"
        )
    why = "a common name of text fields" if longest == named else "the longest"
    beside = ""
    if structure and structure.form:
        beside = f"; beside it are {structure.name}, which input.format = {_toml(structure.form)} reads"
    return longest, f"{why}: {whole[longest].described()}{beside}"


def _whole_texts(fields: dict[str, Field], records: int, *, inner: bool) -> dict[str, Field]:
    """Fields that hold texts in most records. inner: any fields inside objects, if fields outside of objects, or named
    like texts, hold none."""
    whole = {
        name: field
        for name, field in fields.items()
        if field.texts >= max(1, MIN_SHARE * records) and not field.holds_labels(name)
    }
    outer = {name: field for name, field in whole.items() if not field.inner or _own_name(name) in TEXT_NAMES}
    return outer if outer or not inner else whole


def _own_name(name: str) -> str:
    """A field's name without the objects around it, in lower case."""
    return name.lower().rpartition(".")[2]


def _named(names: Iterable[str], fields: Iterable[str]) -> str | None:
    """The field with the first of the names, in any case; otherwise the field inside an object with the first of these
    names."""
    lower = {name.lower(): name for name in fields}
    inner = {_own_name(name): field for name, field in lower.items()}
    return next((known[name] for known in (lower, inner) for name in names if name in known), None)


def _lengths(tokens: int, asked: int | None, least: int) -> tuple[int, int]:
    length, batch = asked if asked is not None else max(8192, least), 256
    while asked is None and length > least and tokens < MIN_SEQUENCES * length:
        length //= 2
    while batch > 8 and tokens < MIN_BATCHES * batch * length:
        batch //= 2
    return length, batch


def _checked(section: str, model: type[BaseModel], **values: int) -> None:
    """
    Raises:
        SettingsError: a value is impossible in the section.
    """
    try:
        model(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise SettingsError(
            f"{section}.{problem['loc'][0]} = {problem['input']!r}: {problem['msg']}"
        ) from None


def _base(folder: Path, project: Path) -> str:
    """The folder for a run's files, as settings in a folder of a project write it."""
    return os.path.relpath(project / "divorder" / folder.name, folder)


_ORDER = """\
[order]
frozen_tokens = 0          # every run orders everything again; once you train: `divorder freeze --step N` keeps what
                           # N steps have read"""


def _places(base: str, exports: str) -> str:
    return f"""\
[store]
path = "{base}/store"      # computed results; if deleted, they are computed again

[output]
path = "{base}/curated"

[exports]                  # the training sequences with their tokens
{exports}
path = "{base}/exports\""""


def blank(folder: Path, project: Path) -> str:
    """Settings without a corpus, which are refused until it is filled in, for a file in a folder of a project."""
    return f"""\
# Settings of DivOrder. Every key, with its default: divorder.example.toml in the repository.
# `divorder init FILES --config OTHER.toml` proposes settings from the fields of the records.

[input]
paths = []                 # fill in: files, folders or globs of the corpus, relative to this file
text_field = "text"

{_ORDER}

{_places(_base(folder, project), 'formats = ["parquet"]')}
"""


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
    """Writes a settings file for a corpus and loads it. replaces: replace an existing file. project: see
    `Proposal.toml`.

    Raises:
        SettingsError: the file exists, or cannot be written. InputError: see `Proposal.toml`.
    """
    if not replaces:
        refuse_existing(file)
    text = proposal.toml(file.absolute().parent, project)
    before = file.read_bytes() if replaces else None
    # TOML forbids control characters even in comments.
    write_settings_file(file, printable(text), new=not replaces)
    try:
        return load_settings(file, {})
    except DivOrderError:
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)
        raise


def refuse_existing(file: Path) -> None:
    """
    Raises:
        SettingsError: the file exists, or its folder cannot be written.
    """
    if file.exists():
        raise SettingsError(f"{file} is there already; remove it, or name another file with --config")
    refuse_unwritable(file)
