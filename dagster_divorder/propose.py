"""`divorder init`: a short settings file for a corpus, from the fields of its records.

`look` samples the inputs, `Proposal` holds settings for them, and `write_settings` writes the settings to a file.
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
from dagster_divorder.corpus.peek import Refusals, first_records, first_refusals
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError, SettingsError, printable
from dagster_divorder.settings import Input, Settings, fixed_beginning, load_settings
from dagster_divorder.settings.loading import refuse_unwritable, relative_source, write_settings_file
from dagster_divorder.stages.output.exports import unread
from dagster_divorder.store.sources import RemoteFile, identity
from dagster_divorder.trainers import trainer_named
from dagster_divorder.units import byte_size
from dagster_divorder.view.answer import Line, Part
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
SOURCE_NAMES = (
    "source pile_set_name redpajama_set_name dataset subset origin corpus collection domain split category"
)
LABEL_NAMES = {*ID_NAMES, *SOURCE_NAMES.split(), "label", "labels", "lang", "language", "type", "date"}
TRUTHS = {0, 1, "true", "false", "True", "False"}

HEAD = """\
# Settings of DivOrder: `divorder plan` shows what a run would do, `divorder run` does it. Every key, with its default:
# divorder.example.toml in the repository.
"""
FROZEN = "every run orders everything again; once you train: `divorder freeze --step N` keeps what N steps have read"
MODEL = "a small tokenizer trained here; better: the model that you train, an id or a directory"
STORE = "computed results; if deleted, they are computed again"
TRAITS = "[order.traits]  # every window of training carries them in the corpus's own mix"
FILL_IN = "fill in: files, folders or globs of the corpus, relative to this file"
NO_TRAINER = '# trainer = "hf-trainer"  # yours: `divorder run` then prints the lines that keep the order'


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

    @property
    def described(self) -> str:
        mean = f", {self.characters / self.records:,.0f} characters on average" if self.characters else ""
        return f"{self.type}{mean}"

    def has_few(self, most: int, *kinds: str) -> bool:
        """Whether it has at most so many values: short texts, true and false, or values of other kinds."""
        is_short = self.characters < LABEL_CHARACTERS * self.records
        return is_short and len(self.values) <= most and self.kinds <= {"text", "true or false", *kinds}

    def is_label(self, name: str) -> bool:
        """Whether it holds labels rather than texts, judged by its name and values."""
        name = name.lower().rpartition(".")[2]
        few = self.has_few(min(MAX_VALUES, self.records // 2)) and name not in TEXT_NAMES
        return few or (name in LABEL_NAMES and self.characters < LABEL_CHARACTERS * self.records)


@dataclass
class InputBlock:
    """An input: its paths, their files, the sampled ones, the fields of their records, and what is read of these: the
    text field, or a structure in its place, with the characters of each record. why: the reason."""

    paths: Sequence[str]
    listing: Found
    sampled: Found
    records: int = 0
    fields: dict[str, Field] = field(default_factory=dict)
    text_field: str = ""
    structure: Structure | None = None
    sizes: list[int] = field(default_factory=list)
    why: str = ""
    refusals: Refusals = field(default_factory=Refusals)
    id_field: str | None = None
    source_field: str | None = None

    @property
    def format(self) -> str:
        """What a record holds, as in `Input.form`."""
        return (self.structure and self.structure.form) or "text"

    @property
    def read(self) -> tuple[str, ...]:
        """Fields of the text or the conversation."""
        return self.structure.fields if self.structure else (self.text_field,)

    @property
    def reads(self) -> str:
        """What is read, in words."""
        return self.structure.name if self.structure else repr(self.text_field)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(int(identity(file)[0]) for file in self.listing.files)

    @property
    def label(self) -> str | None:
        """The field that says whether an answer is wanted, in preference data without pairs."""
        # A chat's label may mean anything.
        names = ["kto_tag", "label"][: {"text": 0, "pairs": 0, "prompt_completion": 2}.get(self.format, 1)]
        known = [name for name in names if name in self.fields]
        return next((name for name in known if self.fields[name].values <= TRUTHS), None)

    @property
    def traits(self) -> dict[str, int]:
        """The label, the source, and fields with 2 to 50 values in many records; their numbers of values."""
        few = min(MAX_VALUES, max(2, self.records // 2))
        return {
            name: len(each.values)
            for name, each in self.fields.items()
            if name not in (*self.read, self.id_field) and each.records >= TRAIT_SHARE * self.records
            if each.has_few(MAX_SOURCES if name == self.source_field else few, "whole number")
            or name == self.label
            if len(each.values) > 1 or name == self.label
        }

    @property
    def holding(self) -> int:
        """Tokens, a power of two, that hold HELD of the sampled conversations whole; 1 for texts, which are cut."""
        sizes = sorted(self.sizes) or [0]
        # A template writes roles and control tokens around every message.
        tokens = 1.25 * sizes[int(HELD * (len(sizes) - 1))] / BYTES_PER_TOKEN
        return 1 << math.ceil(math.log2(max(1.0, tokens)))


def look(paths: Sequence[str], text_field: str | None = None) -> list[InputBlock]:
    """The inputs in paths: one for each kind of file, columns and text field. text_field: the text field of inputs that
    have it.

    Raises:
        InputError: no file matches, a file cannot be read, it is unknown what to read, most records of an input would
            be refused, or no input has the text field.
    """
    samples = [_sampled([path], text_field, SAMPLE_RECORDS // len(paths)) for path in paths]
    if text_field and any(sample.records for sample in samples):
        one_of(
            "the text field", text_field, dict.fromkeys(name for sample in samples for name in sample.fields)
        )
    apart: dict[tuple[str, ...], list[InputBlock]] = {}
    for sample in sorted(samples, key=lambda sample: not sample.records):
        kind = str(sample.listing.kind)
        columns = str(read_schema(sample.listing.files[0], None)) if kind == "parquet" else ""
        key: tuple[str, ...] = (kind, sample.text_field or sample.format, columns)
        if not sample.records:  # an empty file joins the first of its kind
            key = next((other for other in apart if other[0] == kind), key)
        apart.setdefault(key, []).append(sample)
    blocks = [
        _sampled([path for each in alike for path in each.paths], text_field) if len(alike) > 1 else alike[0]
        for alike in apart.values()
    ]
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
    _choose(block, structure, text_field)
    return block


def _choose(block: InputBlock, structure: Structure | None, asked: str | None) -> None:
    """Sets what is read. structure: of the first record. asked: the text field, if the input has it."""
    if asked in block.fields:
        block.text_field, block.why, block.sizes = str(asked), "as the command says", []
        return
    if structure and structure.form:
        block.structure, block.why = structure, structure.name
        return
    sizes = {name: each.characters for name, each in block.fields.items() if not each.is_label(name)}
    texts = [name for name in sizes if block.fields[name].records >= TEXT_SHARE * block.records]
    texts = [name for name in texts if "text" in block.fields[name].kinds]
    longest, named = max(texts, key=lambda name: sizes[name], default=""), _named(TEXT_NAMES, texts)
    # `text` may be a title beside a much longer `body`.
    text = named if named and 2 * sizes[named] >= sizes[longest] else longest
    rival = max((name for name in sizes if name != text), key=lambda name: sizes[name], default="")
    block.sizes = []
    if structure and (not text or text in structure.fields):
        block.why = f"the records are {structure.said(by_jq=block.listing.kind == 'jsonl')}"
    elif text and (text == named or not rival or 2 * sizes[rival] < sizes[text]):
        why = "a common name of text fields" if text == named else "the longest"
        block.text_field, block.why = text, f"{why}: {block.fields[text].described}"
    else:
        unclear = f"no field holds text in most of the first {block.records:,} records"
        doubt = f"the text may be in {text!r} or in {rival!r}" if text else unclear
        first = itertools.islice(block.fields.items(), 40)
        block.why = (
            f"{doubt}; the fields are {', '.join(f'{name!r} ({each.described})' for name, each in first)}. If one of "
            "them holds the text, name it with --text-field; if the text is in several fields or in a list, join it "
            "into one field first"
        )


def _check(block: InputBlock) -> None:
    """Examines the records as a run reads them, and sets the fields of ids and sources."""
    shape = Shape(text_field=block.text_field, form=block.format)
    of_each = max(1, SAMPLE_RECORDS // len(block.sampled.files))
    block.refusals = seen = first_refusals(replace(block.sampled, shape=shape), of_each)
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
    rest = {name: each for name, each in block.fields.items() if name not in block.read}
    unique = [name for name, each in rest.items() if each.records == len(each.values) == block.records]
    unique = [name for name in unique if rest[name].kinds in ({"text"}, {"whole number"})]
    block.id_field = _named(ID_NAMES, unique)
    few = [name for name, each in rest.items() if name != block.id_field and each.has_few(MAX_SOURCES)]
    block.source_field = _named(SOURCE_NAMES.split(), few)


def _named(names: Iterable[str], fields: Iterable[str]) -> str | None:
    """The field with the first of the names, in any case; otherwise the field inside an object with the first of these
    names."""
    lower = {name.lower(): name for name in fields}
    inner = {name.rpartition(".")[2]: field for name, field in lower.items()}
    return next((found[name] for found in (lower, inner) for name in names if name in found), None)


@dataclass(kw_only=True)
class Proposal:
    """Settings for a corpus. trainer: its name, if known. numbers: those given of `sequence_length`, `batch` and
    RANKS."""

    blocks: Sequence[InputBlock]
    trainer: str | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def refusals(self) -> tuple[int, int]:
        """Records that were examined, and those that would be refused."""
        seen = [block.refusals for block in self.blocks]
        return sum(each.looked_at for each in seen), sum(each.refused for each in seen)

    @property
    def warnings(self) -> list[Part]:
        """Warnings about records that would be refused, and about texts that may be labels."""
        texts = [block.fields[block.text_field] for block in self.blocks if block.text_field]
        repeated = [repeated_texts(text.records, len(text.values), text.characters) for text in texts]
        parts: list[Part] = [Line(warning, "bad") for warning in repeated if warning]
        looked_at, refused = self.refusals
        for first in [block.refusals for block in self.blocks if block.refusals.refused][:1]:
            stops = refused > Input().max_reject_share * looked_at
            then = "plan and run will stop: correct the input, or raise input.max_reject_share"
            share = f"{refused:,} of {looked_at:,} records examined will be refused"
            told = f"{share}, and {then if stops else 'listed with the output'}. The first: {first.first}{first.looks}"
            parts.append(Line(told, "bad" if stops else "quiet"))
        return parts

    def toml(self, folder: Path, project: Path | None = None) -> str:
        """The settings, for a file in `folder`. project: a folder around it, such as a Dagster project; files are
        written to its `divorder/<name of folder>`.

        Raises:
            InputError: the trainer reads something else, or ranks are given and no trainer.
        """
        several, tables, names = len(self.blocks) > 1, [HEAD], list[str]()
        traits = {"cluster": "found by k-means on vectors of the texts", "length": ""} | (
            {"source": ""} if several else {}
        )
        for block in self.blocks:
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
            tables.append(
                _table("[[input]]" if several else "[input]", values, paths=files, text_field=block.why)
            )
            if block.structure:
                tables[-1] += f"{block.structure.setting}  # {block.why}\n"
            for trait, number in block.traits.items():
                # Several inputs have their sources in the trait "source".
                if not (several and trait == block.source_field):
                    traits.setdefault(trait, f"{number} values")
        documents = sum(
            each.records * len(each.listing.files) // len(each.sampled.files) for each in self.blocks
        )
        k = max(2, documents // DOCUMENTS_A_CLUSTER)
        length, batch = self._sequence()
        tables += [
            _table("[model]", {"base": "bootstrap"}, base=MODEL),
            _table("[order]", {"frozen_tokens": 0}, frozen_tokens=FROZEN),
            *([_table("[clusters]", {"k": k}, k=f"of {count(documents, 'document')}")] if k < 30 else []),
            _table(TRAITS, dict.fromkeys(traits, 1.0), **traits),
            _table("[sequence]  # as your trainer has them", {"length": length, "batch": batch}),
            *self._packing(),
        ]
        # An existing folder belongs to somebody else; it may be the input.
        bases = itertools.chain(["divorder"], (f"divorder-{number}" for number in itertools.count(2)))
        base = next(name for name in bases if not (folder / name).exists())
        places = _places(_base(folder, project) if project else base, self._exports())
        return "\n".join([*tables, *places])

    @property
    def prefers(self) -> bool:
        """Whether records say which answers are wanted, so that a sequence may hold only one."""
        return any(block.format == "pairs" or block.label for block in self.blocks)

    @property
    def formats(self) -> list[str]:
        """The formats of exports: none where a sequence may hold only one record, or the trainer reads records."""
        if self.prefers or self.trainer is None:
            return [] if self.prefers else ["parquet"]
        return list(trainer_named(self.trainer).formats[:1])

    def _sequence(self) -> tuple[int, int]:
        """(tokens of a sequence, sequences of a batch). A batch is a multiple of a step of all ranks."""
        tokens = sum(block.size for block in self.blocks) // BYTES_PER_TOKEN
        least = max(SHORTEST, min(LONGEST, max(block.holding for block in self.blocks)))
        length, batch = max(8192, least), 256
        while length > least and tokens < SEQUENCES * length:
            length //= 2
        length = self.numbers.get("sequence_length", length)
        while batch > 8 and tokens < BATCHES * batch * length:
            batch //= 2
        step = math.prod(max(1, self.numbers.get(name, 1)) for name in RANKS)
        return length, self.numbers.get("batch", -(-batch // step) * step)

    def _packing(self) -> list[str]:
        forms = {block.format for block in self.blocks}
        if not self.formats and forms != {"pairs"}:
            return [_table("[packing]", {"method": "none"}, method="a sequence holds one record")]
        if "text" in forms and len(forms) > 1:
            return [_table("[packing]", {"method": "best_fit"}, method="cuts no conversation")]
        kinds = [block.fields[name].kinds for block in self.blocks for name in block.read]
        if forms == {"prompt_completion"} and all(each == {"text"} for each in kinds):
            # No chat template ends a completion that is a text.
            return [_table("[packing]", {"end_of_text": True}, end_of_text="the model learns to stop")]
        return []

    def _exports(self) -> dict[str, Any]:
        given = {name: self.numbers[name] for name in RANKS if name in self.numbers}
        for name, number in {} if self.trainer else given.items():
            option = f"--{name.replace('_', '-')} {number}"
            raise InputError(f"{option} applies to a trainer: name it too, with --trainer NAME")
        if self.trainer and self.prefers and trainer_named(self.trainer).formats:
            raise InputError(
                f"{self.trainer} reads sequences, which preferences and prompts are not; leave --trainer out, and "
                "train on the output's records, in their order"
            )
        return {"formats": self.formats, "trainer": self.trainer, **given}


def blank(folder: Path, project: Path) -> str:
    """Settings without a corpus, which are refused until it is filled in, for a file in a folder of a project."""
    inputs = _table("[input]", {"paths": [], "text_field": "text"}, paths=FILL_IN)
    order = _table("[order]", {"frozen_tokens": 0}, frozen_tokens=FROZEN)
    return "\n".join([HEAD, inputs, order, *_places(_base(folder, project), {"formats": ["parquet"]})])


def _base(folder: Path, project: Path) -> str:
    return os.path.relpath(project / "divorder" / folder.name, folder)


def _places(base: str, exports: Mapping[str, Any]) -> list[str]:
    """The tables of the folders below a base."""
    return [
        _table("[store]", {"path": f"{base}/store"}, path=STORE),
        _table("[output]", {"path": f"{base}/curated"}),
        _table(
            "[exports]  # the training sequences with their tokens", {**exports, "path": f"{base}/exports"}
        )
        + ("" if exports.get("trainer") else f"{NO_TRAINER}\n"),
    ]


def _table(header: str, values: Mapping[str, Any], **comments: str) -> str:
    """A table of TOML, without values that are None."""
    lines = [header]
    for name, value in values.items():
        if value is not None:
            comment = f"  # {comments[name]}" if comments.get(name) else ""
            lines.append(f"{tomlkit.key(name).as_string()} = {tomlkit.item(value).as_string()}{comment}")
    return "\n".join([*lines, ""])


def write_settings(proposal: Proposal, file: Path, *, project: Path | None = None) -> Settings:
    """Writes a settings file for a corpus. project: see `Proposal.toml`.

    Raises:
        SettingsError: the file exists, cannot be written, or would hold an impossible value. InputError: the trainer
            does not read what the settings write; see also `Proposal.toml`.
    """
    refuse_unwritable(file, new=True)
    # TOML forbids control characters even in comments.
    text = printable(proposal.toml(file.absolute().parent, project))
    try:
        settings = load_settings(tomllib.loads(text), {}, within=file.absolute())
    except SettingsError as error:
        said = str(error).removeprefix(f"{file.absolute()} or the environment: ")
        raise SettingsError(f"nothing was written: {said}") from None
    if proposal.trainer and (why := unread(trainer_named(proposal.trainer), settings)):
        raise InputError(f"{proposal.trainer} does not read these records: {why}")
    write_settings_file(file, text, new=True)
    return settings
