"""`divorder init`: a short settings file for a corpus, from what its records hold.

`look` says what the inputs hold, `Proposal` is what is made of it, and `write_settings` writes that down.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dagster_divorder.core.order.strategy import nearest, one_of
from dagster_divorder.corpus.find import Found, find_files
from dagster_divorder.corpus.inputs import SHOWN_BYTES, read_schema
from dagster_divorder.corpus.looks import Structure, characters, looks_like, repeated_texts, structure_of
from dagster_divorder.corpus.peek import Refusals, first_records, first_refusals
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import DivOrderError, InputError, SettingsError, printable
from dagster_divorder.settings import Input, Settings, config_file, load_settings
from dagster_divorder.settings.places import is_url
from dagster_divorder.settings.sections import Exports, Inputs
from dagster_divorder.settings.sections import Sequence as SequenceSection
from dagster_divorder.store.sources import Source, identity, open_source
from dagster_divorder.trainers import TRAINERS
from dagster_divorder.trainers.replay import Shape as ExportShape
from dagster_divorder.trainers.replay import replay
from dagster_divorder.units import byte_size
from dagster_divorder.view.answer import Line, Part, TextTable
from dagster_divorder.view.words import clip, count

SAMPLE_FILES, SAMPLE_RECORDS = 20, 50_000
MIN_SHARE = 0.9
"""Share of the records that a field must be in to be taken for the text or the id."""
MAX_SOURCES, MAX_VALUES = 1000, 50
"""Values that a field may have to be taken for the source, and to be proposed as a trait."""
MAX_DEPTH, MIN_INNER_SHARE = 4, 0.01
"""Of fields inside objects: how deep they are looked for, and the share of the records that one must be in."""
BYTES_PER_TOKEN = 4
MIN_SEQUENCES, MIN_BATCHES = 2_000, 50
"""What a corpus should come to, so that there is something to order; sequences and batches that are proposed are
smaller where it is, down to 512 tokens and 8 sequences."""

LABEL_CHARACTERS = 100
"""On average, below which a field of a label's name, or of few values, holds no texts."""
SHORT_BESIDE = 4
"""A field of so few characters that is named as texts are holds none where another has so many times as many."""
FIELDS_SHOWN, EXAMPLE_CHARACTERS, NAME_CHARACTERS = 40, 40, 60
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
LABEL_NAMES = (*ID_NAMES, *SOURCE_NAMES, "label", "labels", "lang", "language", "type", "date")


@dataclass(slots=True)
class Field:
    """What the sampled records hold in a field.

    records: how many have it. texts: in how many it is a text. characters: of these (of lists and objects: of the texts
    in them). values: hashes of the distinct ones. example: the first value that is not empty, clipped.
    """

    records: int = 0
    texts: int = 0
    characters: int = 0
    values: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    example: str = ""
    inner: bool = False
    """It is a field of an object, and named by the way to it."""

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
        """Whether it holds words alone, no numbers, lists or objects."""
        return self.kinds <= {"text", "true or false"}

    def has_few(self, values: int) -> bool:
        """Whether it has at most so many distinct values, and these are short."""
        return len(self.values) <= values and self.characters < LABEL_CHARACTERS * self.records

    def holds_labels(self, name: str) -> bool:
        """Whether it holds names of things and no texts, by its own name and its length."""
        return _own_name(name) in LABEL_NAMES and self.characters < LABEL_CHARACTERS * self.records

    @property
    def repeats(self) -> str:
        """A warning that its texts are few or very short; "" where they are not."""
        values = len(self.values)
        return repeated_texts(self.records, values, self.characters * values // self.records)

    def described(self) -> str:
        """What it holds, and how long that is on average."""
        if self.characters:
            return f"{self.kind}, {self.characters / self.records:,.0f} characters on average"
        return "always empty" if self.kinds == {"text"} else self.kind

    def row(self, name: str, records: int) -> dict[str, str]:
        """Its row in a table, of so many records."""
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
    """A field's name as a line shows it, cut where it is long."""
    shown = _toml(name)[1:-1]
    return shown if len(shown) <= NAME_CHARACTERS else f"{shown[:NAME_CHARACTERS]}…"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    # JSON's whole numbers beyond 64 bits come as floats, and can be ids all the same.
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 1 << 63):
        return "whole number"
    if isinstance(value, float):
        return "number"
    names: dict[type, str] = {str: "text", dict: "object", list: "list", tuple: "list"}
    return names.get(type(value), type(value).__name__)


@dataclass(frozen=True)
class Block:
    """An input: the paths that name it, what was found there, of how many records, and what they hold. text: "" where
    it cannot be told, `why` being what is to be done about that."""

    paths: tuple[str, ...]
    found: Found
    records: int
    fields: dict[str, Field]
    text: str
    why: str
    own_id: str | None = None
    source: str | None = None

    def with_text(self, name: str, why: str) -> Block:
        """The same with its text in this field, and the id and the source that are then proposed.

        Raises:
            InputError: there is no such field, or most records would be refused.
        """
        block = replace(self, text=self.known(name), why=why)
        refused, looked_at = block.refusals.refused, block.refusals.looked_at
        if 2 * refused > looked_at:
            raise InputError(
                f"{refused:,} of {count(looked_at, 'record')} of {self.paths[0]} that were looked at cannot be used "
                f"with text_field = {name!r}, the first: {block.refusals.first}{block.refusals.looks}"
            )
        rest = {name: of for name, of in self.fields.items() if name != block.text}
        own_id = _named(ID_NAMES, (name for name, of in rest.items() if _is_id(of, self.records)))
        rest.pop(own_id or "", None)
        plain = (name for name, of in rest.items() if of.is_plain and of.has_few(MAX_SOURCES))
        return replace(block, own_id=own_id, source=_named(SOURCE_NAMES, plain))

    def known(self, name: str) -> str:
        """A name, if there is a field of it.

        Raises:
            InputError: there is none.
        """
        if name not in self.fields:
            raise InputError(
                f"there is no field {name!r}{nearest(name, self.fields)}; the fields are "
                f"{', '.join(map(repr, itertools.islice(self.fields, FIELDS_SHOWN)))}"
            )
        return name

    @cached_property
    def refusals(self) -> Refusals:
        """Of the records that a sample is made of, those that the pipeline would refuse."""
        files = _sampled(self.found)
        shape = Shape(text_field=self.text)
        return first_refusals(replace(self.found, files=files, shape=shape), _of_each(files))

    @property
    def size(self) -> int:
        return sum(int(identity(path)[0]) for path in self.found.files)

    @property
    def chosen(self) -> list[str]:
        """What was taken for the text, the id and the source, and why; a line each."""
        own_id = (
            f"{self.own_id!r}, another in each record"
            if self.own_id
            else "none: no field called id, url or the like has another text or whole number in each record"
        )
        source = (
            f"{self.source!r}, {count(len(self.fields[self.source].values), 'value')}"
            if self.source
            else f"none: no field called source, dataset or the like has at most {MAX_SOURCES:,} different texts"
        )
        return [f"text: {self.text!r}, {self.why}", f"id: {own_id}", f"source: {source}"]

    def parts(self, title: str = "") -> list[Part]:
        """The table of its fields, and what was left out of its folders."""
        names = list(self.fields)
        rows = [self.fields[name].row(name, self.records) for name in names[:FIELDS_SHOWN]]
        heading = f"{title}fields of {count(self.records, 'record')}"
        parts: list[Part] = [TextTable(rows, heading)]
        if len(names) > FIELDS_SHOWN:
            parts.append(f"and {len(names) - FIELDS_SHOWN:,} more: --json has all of them")
        if self.found.others:
            others = ", ".join(f"{number:,} {ending}" for ending, number in self.found.others.items())
            parts.append(f"files that are not read: {others}")
        return parts

    def data(self) -> dict[str, Any]:
        return {
            "paths": self.paths,
            "records": self.records,
            "looked_at": self.refusals.looked_at,
            "refused": self.refusals.refused,
            "first_refusal": self.refusals.first or None,
            "text_field": self.text,
            "why": self.why,
            "id_field": self.own_id,
            "source_field": self.source,
            "fields": [of.data(name, self.records) for name, of in self.fields.items()],
        }

    def lines(self, folder: Path, constant: str | None) -> str:
        """Its settings, for a file in `folder`. constant: a source for all records, where no field has one."""
        files = count(len(self.found.files), f"{'JSONL' if self.found.kind == 'jsonl' else 'Parquet'} file")
        shown = itertools.islice(self.fields.items(), FIELDS_SHOWN)
        seen = ", ".join(f"{one_line(name)} ({of.kind})" for name, of in shown)
        source_line = '# source_field = "..."     # where a document is from'
        if self.source or constant:
            key, value = ("source_field", self.source) if self.source else ("source", constant)
            source_line = f"{key} = {_toml(value or '')}"
        return "\n".join(
            [
                f"# {files}, {byte_size(self.size)}; fields of {self.records:,} records looked at: {seen}",
                f"paths = [{', '.join(_toml(_seen_from(path, folder)) for path in self.paths)}]",
                f"text_field = {_toml(self.text)}  # {self.why}",
                f"id_field = {_toml(self.own_id)}"
                if self.own_id
                else '# id_field = "..."         # your own ids, shown in results',
                source_line,
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Settings for a corpus. What is None is chosen by what the corpus holds: traits, tokens of a sequence, sequences
    of a batch. trainer: who reads the export, with the numbers of `Reading` that are given of its ranks.

    Raises:
        InputError: there is no such trainer.
    """

    blocks: Sequence[Block]
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
        """Whether each rank of the trainer reads a part of the export, whose rows have to lie for so many."""
        return self.trainer is not None and TRAINERS[self.trainer].contiguous_ranks

    @property
    def several(self) -> bool:
        return len(self.blocks) > 1

    @property
    def fields(self) -> dict[str, Field]:
        """Fields of all inputs, those of one name as one."""
        return self.blocks[0].fields if not self.several else _joined(block.fields for block in self.blocks)

    @property
    def sources(self) -> list[str]:
        """The trait of where a record is from, if there is one."""
        if self.several:
            return ["source"]
        source = self.blocks[0].source
        return [source] if source and len(self.fields[source].values) > 1 else []

    @property
    def balanced(self) -> list[str]:
        """The traits that are balanced."""
        return list(self.traits or [*BUILT_IN_TRAITS, *self.sources])

    @property
    def candidates(self) -> list[str]:
        """Fields that could be traits, too."""
        # Of several inputs the source is what each block says.
        own = {
            name
            for block in self.blocks
            for name in (block.text, block.own_id, self.several and block.source)
        }
        return [
            name
            for name, of in self.fields.items()
            if name not in {*own, *self.sources} and of.is_plain and of.has_few(MAX_VALUES)
        ]

    @property
    def sequence(self) -> tuple[int, int]:
        """Tokens of a sequence, and sequences of a batch: at least a step of all ranks.

        Raises:
            SettingsError: a number that cannot be.
        """
        length, batch = _lengths(self.size // BYTES_PER_TOKEN, self.length)
        step = math.prod(
            max(1, of) for name, of in self.ranks.items() if self.reads_parts or name != "workers"
        )
        batch = -(-batch // step) * step if self.batch is None else self.batch
        _checked("sequence", SequenceSection, length=length, batch=batch)
        return length, batch

    @property
    def layout(self) -> Mapping[str, int]:
        """For which ranks the rows of the export have to lie; nothing where they lie in the order of training.

        Raises:
            InputError: the trainer loses the order with these numbers.
            SettingsError: a number that cannot be.
        """
        if not self.trainer:
            if self.ranks:
                name, number = next(iter(self.ranks.items()))
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} {number} is of a trainer: name it, too, with --trainer NAME")
            return {}
        trainer = TRAINERS[self.trainer]
        _checked("exports", Exports, **{name: max(1, number) for name, number in self.ranks.items()})
        length, batch = self.sequence
        export = ExportShape(
            path="",
            prefix="",
            sequences=4 * batch - 1,
            epochs=1,
            sequence_length=length,
            batch=batch,
            files=(),
            layout={},
        )
        if not self.reads_parts:
            export.reading(**{"world_size": 1, **self.ranks})
            return {}
        if "world_size" not in self.ranks:
            raise InputError(
                f"{trainer.name} gives every rank a part of the export, whose rows have to lie for so many ranks: say "
                "how many with --world-size N"
            )
        best = replay(export, trainer, **self.ranks).best
        layout = best.layout or {}
        # Batches at the end are lost otherwise, by how many sequences there are.
        if not best.kept.in_order or batch % math.prod(layout.values()):
            numbers = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in self.ranks.items())
            raise InputError(
                f"{trainer.name} loses the order of batches of {batch} sequences with {numbers}: choose numbers whose "
                "product divides the batch"
            )
        return layout

    @property
    def refusals(self) -> tuple[int, int, float]:
        """Of how many records that were looked at how many the pipeline would refuse, and the share that it allows."""
        looked_at, refused = (
            sum(getattr(block.refusals, name) for block in self.blocks) for name in ("looked_at", "refused")
        )
        return looked_at, refused, Input().max_reject_share

    def warnings(self) -> list[Part]:
        """What of the records would be refused, and texts that may be none."""
        parts: list[Part] = []
        repeats = [block.fields[block.text].repeats for block in self.blocks]
        looked_at, refused, allowed = self.refusals
        if refused:
            first, looks = next(
                (block.refusals.first, block.refusals.looks)
                for block in self.blocks
                if block.refusals.refused
            )
            share = f"{refused:,} of {looked_at:,} records looked at"
            stops = Line(
                f"{share} would be refused ({refused / looked_at:.1%}), more than input.max_reject_share = "
                f"{allowed:g} allows, so that plan and run will stop. The first: {first}{looks}. Correct the "
                "input, or name another text_field, or raise input.max_reject_share",
                "bad",
            )
            listed = f"{share} will be refused, and listed with the output. The first: {first}{looks}"
            parts.append(stops if refused > allowed * looked_at else listed)
        return [*parts, *(Line(warning, "bad") for warning in repeats if warning)]

    def toml(self, folder: Path) -> str:
        """The settings, for a file that will lie in `folder`.

        Raises:
            InputError: it cannot be told which field of an input holds the text; as `layout`.
            SettingsError: as `sequence`.
        """
        if doubt := next((block.why for block in self.blocks if not block.text), None):
            raise InputError(doubt)
        layout, (length, batch) = self.layout, self.sequence
        # What lies in a folder that is there already is somebody's, perhaps the input.
        names = itertools.chain(["divorder"], map("divorder-{}".format, itertools.count(2)))
        base = next(name for name in names if not (folder / name).exists())
        reader = "megatron, olmo, ds, mds, litdata, text: `divorder verify` says what your trainer needs"
        if self.trainer:
            reader = f"for {TRAINERS[self.trainer].title}"
        layout_lines = "".join(
            f"{name} = {number}{'  # that each read a part of the rows' if name == 'world_size' else ''}\n"
            for name, number in layout.items()
        )
        return f"""\
# Settings of DivOrder: `divorder plan` says what a run would do, `divorder run` does it.
# Every key, with its default: divorder.example.toml in the repository.

{self._input_tables(folder)}

[model]
base = "bootstrap"         # a small tokenizer trained here; better: the model to be trained, an id or a directory

[order.traits]             # what every window of training is to carry in the corpus's own mix
{self._trait_lines()}

[sequence]                 # as your trainer has them
length = {length}
batch = {batch}

[store]
path = "{base}/store"      # what has been computed; can be deleted at the price of computing it again

[output]
path = "{base}/curated"

[exports]                  # the training sequences, tokens and all
formats = ["{self.export}"]      # {reader}
path = "{base}/exports"
{layout_lines}"""

    def _input_tables(self, folder: Path) -> str:
        header = "[[input]]" if self.several else "[input]"
        constants = _constants(self.blocks) if self.several else [None]
        return "\n\n".join(
            f"{header}\n{block.lines(folder, constant)}"
            for block, constant in zip(self.blocks, constants, strict=True)
        )

    def _trait_lines(self) -> str:
        balanced = [f"{_key(name)} = 1.0{BUILT_IN_TRAITS.get(name, '')}" for name in self.balanced]
        proposed = [
            f"# {_key(name)} = 1.0  # distinct values: {len(self.fields[name].values):,}"
            for name in self.candidates
            if name not in self.balanced
        ]
        return "\n".join([*balanced, *proposed])

    @property
    def export(self) -> str:
        """The format that the trainer reads."""
        return TRAINERS[self.trainer].formats[0] if self.trainer else "parquet"


def look(paths: Sequence[str], text_field: str | None = None) -> list[Block]:
    """The inputs that paths name: one, or one of each shape, where some have files of another kind, other columns, or
    no text where the others have theirs. text_field: holds the text of those that have it.

    Raises:
        InputError: no file matches, a file cannot be read, no record can be used, or the text is in several fields that
            belong together.
    """
    if len(paths) == 1:
        return [_block(paths, text_field)]
    texts = [text_field] if text_field else []
    shapes: list[tuple[str, str | None, str]] = []
    inputs = [find_files([path]) for path in paths]
    samples = [_sample(found, SAMPLE_RECORDS // len(paths)) for found in inputs]
    if text_field and not any(text_field in fields for _, fields, _ in samples):
        raise InputError(f"no input has a field {text_field!r}; name one that some of them have")
    for path, found, (records, fields, structure) in zip(paths, inputs, samples, strict=True):
        whole = _whole_texts(fields, records)
        # What others have their text in is this one's, too, where it can be.
        text = next((name for name in texts if name in (fields if name == text_field else whole)), None)
        if (structure and not (text_field and text == text_field)) or (whole and not text):
            try:
                own, why = _text_field(fields, records, structure, found)
                if not own:
                    raise InputError(why)
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
            text = text or own
            texts.append(text)
        columns = str(read_schema(found.files[0], None)) if found.kind == "parquet" else ""
        shapes.append((found.kind, text, columns))
    apart: dict[tuple[str, str | None, str], list[str]] = {}
    for path, shape in zip(paths, shapes, strict=True):
        # One without texts, such as an empty file, goes with the first of its kind that has some.
        likes = (other for other in shapes if other[0] == shape[0] and other[1])
        apart.setdefault(shape if shape[1] else next(likes, shape), []).append(path)
    return [_block(alike, text_field if shape[1] == text_field else None) for shape, alike in apart.items()]


def _block(paths: Sequence[str], text_field: str | None) -> Block:
    found = find_files(paths)
    records, fields, structure = _sample(found)
    if not records:
        expected = "rows"
        if found.kind == "jsonl":
            refusals = first_refusals(found, 1)
            looks = _looks(found) or refusals.looks
            first = f"; the first: {refusals.first}" if refusals.first else ""
            expected = f"one JSON object a line{first}{looks}"
        raise InputError(f"{found.files[0]} holds no record that can be read; expected {expected}")
    block = Block(tuple(paths), found, records, fields, "", "")
    if text_field:
        return block.with_text(text_field, "as --text-field says")
    text, why = _text_field(fields, records, structure, found)
    return block.with_text(text, why) if text else replace(block, why=why)


def _joined(blocks: Iterable[dict[str, Field]]) -> dict[str, Field]:
    """Fields of several inputs, those of one name as one."""
    joined: dict[str, Field] = {}
    for name, part in itertools.chain.from_iterable(fields.items() for fields in blocks):
        whole = joined.get(name, Field())
        joined[name] = Field(
            whole.records + part.records,
            whole.texts + part.texts,
            whole.characters + part.characters,
            whole.values | part.values,
            whole.kinds | part.kinds,
        )
    return joined


def _constants(blocks: Sequence[Block]) -> list[str]:
    """A name for each input, after its first path, each another."""
    names: list[str] = []
    for block in blocks:
        parts = [
            part for part in re.split(r"[/\\]", block.paths[0]) if part and not re.search(r"[*?\[]", part)
        ]
        name = parts[-1].split(".")[0] if parts else ""
        name = name or "input"
        numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        names.append(next(one for one in numbered if one not in names))
    return names


def _sampled(found: Found) -> list[Source]:
    """Files from all over the corpus, since corpora come in blocks."""
    return found.files[:: -(-len(found.files) // SAMPLE_FILES)]


def _of_each(files: Sequence[Source], most: int = SAMPLE_RECORDS) -> int:
    """Records of each that are looked at."""
    return max(1, most // len(files))


def _sample(found: Found, most: int = SAMPLE_RECORDS) -> tuple[int, dict[str, Field], Structure | None]:
    """How many records were looked at, their fields by name, and the fields that make up a text together in most of
    them."""
    files = _sampled(found)
    records = 0
    fields: dict[str, Field] = {}
    structures: Counter[Structure] = Counter()
    for path in files:
        for record in itertools.islice(first_records([replace(found, files=[path])]), _of_each(files, most)):
            records += 1
            structures.update(filter(None, [structure_of(record)]))
            for name, value, inner in _values(record):
                if value is not None:
                    fields.setdefault(name, Field(inner=inner)).add(value)
    least = MIN_INNER_SHARE * records
    often = {name: of for name, of in fields.items() if not of.inner or of.records >= least}
    structure, of_it = next(iter(structures.most_common(1)), (None, 0))
    return records, often, structure if 2 * of_it > records else None


def _values(record: dict[str, Any], depth: int = 1) -> Iterator[tuple[str, Any, bool]]:
    """The fields of a record, those of objects in it by the way to them, and whether they are such."""
    for name, value in record.items():
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            yield from ((f"{name}.{inner}", of, True) for inner, of, _ in _values(value, depth + 1))
        else:
            yield name, value, depth > 1


def _text_field(
    fields: dict[str, Field], records: int, structure: Structure | None, found: Found
) -> tuple[str, str]:
    """The field that holds the text, and why; or "", and what is to be done, where several may hold it.

    Raises:
        InputError: no field holds text, or several together.
    """
    whole = _whole_texts(fields, records)
    longest = max(whole, key=lambda name: whole[name].characters, default="")
    named = _named(TEXT_NAMES, whole)
    # A field called `text` may hold a title beside a much longer `body`.
    if named and 2 * whole[named].characters >= whole[longest].characters:
        longest = named
    # A text beside the fields of a chat may be the chat, rendered.
    if structure and (
        not longest
        or longest in structure.fields
        or whole[longest].characters < MIN_SHARE * sum(fields[name].characters for name in structure.fields)
    ):
        raise InputError(f"the records are {structure.said(by_jq=found.kind == 'jsonl')}")
    by_name = "name it with --text-field, or as input.text_field in settings of your own"
    if "list" in max(fields.values(), key=lambda of: of.characters).kinds:
        by_name += "; texts in a list are not read yet: join them into one"
    shown = ", ".join(
        f"{name!r} ({of.described()})" for name, of in itertools.islice(fields.items(), FIELDS_SHOWN)
    )
    if not longest:
        why = f"no field holds text in most of the first {records:,} records; the fields are {shown}"
        if any(of.texts for of in fields.values()):
            return "", f"{why}; if one of them is the text, {by_name}"
        raise InputError(f"{why}; write the text of each record into one field, as a string")
    told = (longest, *(structure.fields if structure else ()))
    others = {name: of for name, of in fields.items() if name not in told and not of.holds_labels(name)}
    rival = max(others, key=lambda name: others[name].characters, default="")
    own = whole[longest].characters
    # One that is named as texts are may be as short as a label.
    times = 0.5 if longest != named else SHORT_BESIDE if own < LABEL_CHARACTERS * records else math.inf
    if others and others[rival].characters >= times * own:
        return "", (
            f"the text may be in {longest!r} ({whole[longest].described()}) or in {rival!r} "
            f"({others[rival].described()}); if it is in one of them, {by_name}; if both belong together, write them "
            "as one text first"
        )
    if longest != named and own and whole[longest].repeats:
        return "", (
            f"the longest field, {longest!r}, holds labels rather than texts; the fields are {shown}; {by_name}"
        )
    why = "named as texts often are" if longest == named else "the longest"
    return longest, f"{why}: {whole[longest].described()}"


def _whole_texts(fields: dict[str, Field], records: int) -> dict[str, Field]:
    """The fields of texts that most records have; of those in objects the ones that are called as texts are."""
    return {
        name: of
        for name, of in fields.items()
        if of.texts >= max(1, MIN_SHARE * records) and not of.holds_labels(name)
        if not of.inner or _own_name(name) in TEXT_NAMES
    }


def _own_name(name: str) -> str:
    """What a field is called, whatever objects it is in, in small letters."""
    return name.lower().rpartition(".")[2]


def _looks(found: Found) -> str:
    """What the first file begins like, as the end of a message; "" where that is not known."""
    with open_source(found.files[0]) as file:
        looks = looks_like(file.read(SHOWN_BYTES))
    return f", which is {looks}" if looks else ""


def _is_id(of: Field, records: int) -> bool:
    return (
        of.records == len(of.values) == records
        and of.kinds in ({"text"}, {"whole number"})
        and of.characters < 200 * records
    )


def _named(names: Iterable[str], fields: Iterable[str]) -> str | None:
    """The field whose name comes first in a list, whatever its case; without one the field in an object whose own name
    does."""
    lower = {name.lower(): name for name in fields}
    inner = {name.rpartition(".")[2]: of for name, of in lower.items()}
    return next((of[name] for of in (lower, inner) for name in names if name in of), None)


def _lengths(tokens: int, asked: int | None) -> tuple[int, int]:
    length, batch = asked if asked is not None else 8192, 256
    while asked is None and length > 512 and tokens < MIN_SEQUENCES * length:
        length //= 2
    while batch > 8 and tokens < MIN_BATCHES * batch * length:
        batch //= 2
    return length, batch


def _checked(section: str, model: type[BaseModel], **values: int) -> None:
    """
    Raises:
        SettingsError: a value that the section cannot have.
    """
    try:
        model(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise SettingsError(
            f"{section}.{problem['loc'][0]} = {problem['input']!r}: {problem['msg']}"
        ) from None


def _seen_from(path: str, folder: Path) -> str:
    if is_url(path):
        return path
    absolute = os.path.abspath(os.path.expanduser(path))
    inside = os.path.commonpath([absolute, folder]) == str(folder)
    return os.path.relpath(absolute, folder) if inside else absolute


def _toml(text: str) -> str:
    """A basic string: what JSON escapes TOML escapes alike."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("-", "_").isidentifier() else _toml(name)


def write_settings(proposal: Proposal, file: Path, *, replaces: bool = False) -> Settings:
    """Write a settings file for a corpus; the settings that it holds. replaces: one that is there.

    Raises:
        SettingsError: the file is there already, or cannot be written.
        InputError: as `Proposal.toml` does.
    """
    if not replaces:
        refuse_existing(file)
    text = proposal.toml(file.absolute().parent)
    before = file.read_bytes() if replaces else None
    try:
        with open(file, "w" if replaces else "x", encoding="utf-8") as made:
            # A control character has no place in TOML, not even in a comment.
            made.write(printable(text))
    except FileExistsError:
        raise _is_there(file) from None
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from error
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
        SettingsError: the file is there already.
    """
    if file.exists():
        raise _is_there(file)


def _is_there(file: Path) -> SettingsError:
    return SettingsError(f"{file} is there already; remove it, or name another file with --config")


def settings_for(paths: Sequence[str], config: str | os.PathLike[str] | None = None) -> Settings:
    """The settings of a file (as `load_settings` finds it) for other paths, if any are given; where there is no file,
    those that `write_settings` would write for these paths, seen from the current folder.

    Raises:
        SettingsError: as `load_settings` does.
        InputError: as `propose` does, or the file has several inputs, and paths are given.
    """
    if not paths:
        return load_settings(config)
    file = config_file(config, os.environ)
    if file is None:
        with tempfile.TemporaryDirectory(prefix="divorder-settings-") as folder:
            proposed = Path(folder) / "divorder.toml"
            proposed.write_text(printable(Proposal(blocks=look(paths)).toml(Path(folder))), encoding="utf-8")
            settings = load_settings(proposed)
        places = {"store": "store", "output": "curated", "exports": "exports"}
        given: dict[str, dict[str, Any]] = {
            section: {"path": Path.cwd() / "divorder" / name} for section, name in places.items()
        }
    else:
        settings = load_settings(config)
        if isinstance(settings.input, Inputs):
            raise InputError(
                f"{file} has several [[input]] blocks, and paths are given beside them; leave the paths out, or name "
                "settings of one input"
            )
        here = [path if is_url(path) else os.path.abspath(os.path.expanduser(path)) for path in paths]
        given = {"input": {"paths": tuple(here)}}
    sections = {name: getattr(settings, name).model_copy(update=keys) for name, keys in given.items()}
    return settings.model_copy(update=sections)
