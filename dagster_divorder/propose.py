"""`divorder init`: a short settings file for a corpus, from the fields of its records.

`look` samples the records, and `write_settings` writes settings for them to a file.
"""

from __future__ import annotations

import itertools
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
from dagster_divorder.corpus.inputs import read_lines
from dagster_divorder.corpus.looks import Structure, looks_like, structure_of
from dagster_divorder.corpus.peek import first_records
from dagster_divorder.corpus.records import raw_bytes
from dagster_divorder.errors import InputError, SettingsError, printable
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.settings.loading import relative_source, write_settings_file
from dagster_divorder.stages.output.exports import unread
from dagster_divorder.store.sources import RemoteFile, Source, identity
from dagster_divorder.trainers import trainer_named

SAMPLE_FILES, SAMPLE_RECORDS = 20, 50_000
TEXT_SHARE, TRAIT_SHARE, FIELD_SHARE = 0.9, 0.5, 0.01
"""Smallest share of the records that have the text field, a trait, and any listed field."""
MAX_SOURCES, MAX_VALUES, LABEL_CHARACTERS = 1000, 50, 100
"""Most values of a source field and of a trait, and the mean characters below which a field may hold labels."""
BYTES_PER_TOKEN, SEQUENCES, BATCHES, DOCUMENTS_A_CLUSTER = 4, 2_000, 50, 20
"""Fewest sequences and batches of a corpus, and documents of a cluster: sizes are lowered to have as many."""
RANKS = ("world_size", "micro_batch", "workers")
TEXT_NAMES = ["text", "content", "body", "document", "raw_content", "markdown", "code", "article", "message"]
ID_NAMES = ["id", "_id", "doc_id", "docid", "document_id", "record_id", "uid", "uuid", "guid", "url"]
SOURCE_NAMES = ["source", "pile_set_name", "redpajama_set_name", "dataset", "subset", "origin", "corpus"]
SOURCE_NAMES += ["collection", "domain", "split", "category"]
LABEL_NAMES = {*ID_NAMES, *SOURCE_NAMES, "label", "labels", "lang", "language", "type", "date"}

SETTINGS = """\
# Settings of DivOrder. Every key, with its default: divorder.example.toml in the repository.

[input]
{input}
[model]
base = "bootstrap"  # a small tokenizer trained here; better: the model that you train, an id or a directory

[order]
frozen_tokens = 0  # 0: every run orders everything again; once you train, `divorder freeze --step N` keeps what was read

[clusters]
k = {k}

[order.traits]  # every window of training carries them in the corpus's own mix
{traits}
[sequence]  # as your trainer has them
length = {length}
batch = {batch}

{packing}[store]  # computed results; if deleted, they are computed again
path = {base}/store"

[output]
path = {base}/curated"

[exports]  # the training sequences with their tokens
{exports}path = {base}/exports"
"""  # noqa: E501
NO_TRAINER = '# trainer = "hf-trainer"  # yours: `divorder run` then prints the lines that keep the order\n'


@dataclass
class Field:
    """A field of the sampled records: the number that have it, the characters of its texts, its distinct values (a hash
    for a long one), and their types."""

    records: int = 0
    characters: int = 0
    values: set[Any] = field(default_factory=set)
    types: set[type] = field(default_factory=set)

    def add(self, value: Any) -> None:
        self.records += 1
        self.characters += characters(value)
        self.types.add(type(value))
        if isinstance(value, str | int | float):
            self.values.add(value if len(str(value)) < LABEL_CHARACTERS else hash(value))

    def has_few(self, most: int, *types: type) -> bool:
        """Whether it has at most so many values: short texts, true and false, or values of other types."""
        is_short = self.characters < LABEL_CHARACTERS * self.records
        return is_short and len(self.values) <= most and self.types <= {str, bool, *types}


@dataclass
class Looked:
    """A corpus: its paths and files, the number of sampled records and their fields. format: what a record holds, as in
    `Input.form`, in the fields `read`. sizes: characters of each sampled conversation. traits: fields to balance."""

    paths: Sequence[str]
    listing: Found
    sampled: Sequence[Source]
    records: int = 0
    fields: dict[str, Field] = field(default_factory=dict)
    format: str = "text"
    read: tuple[str, ...] = ()
    sizes: list[int] = field(default_factory=list)
    id_field: str | None = None
    source_field: str | None = None
    traits: list[str] = field(default_factory=list)

    @property
    def prefers(self) -> bool:
        """Whether the records say which answers are wanted: pairs, or KTO's completions with true and false."""
        label = self.fields.get("label") if self.format == "prompt_completion" else None
        return self.format == "pairs" or (label is not None and label.values <= {0, 1, "true", "false"})

    def uses(self) -> list[dict[str, Any]]:
        """The fields of the records, and what they are taken for."""
        uses = dict.fromkeys(self.traits, "trait") | dict.fromkeys(self.read, self.format)
        uses |= {name: use for name, use in ((self.id_field, "id"), (self.source_field, "source")) if name}
        return [
            {"field": name, "records": each.records, "values": len(each.values), "use": uses.get(name)}
            for name, each in self.fields.items()
        ]


def look(paths: Sequence[str], text_field: str | None = None) -> Looked:
    """The corpus in paths, by at most SAMPLE_RECORDS of its records, spread over its files.

    Raises:
        InputError: no path is given, no file matches, a file cannot be read, it is unknown what to read, or there is no
            such text field.
    """
    if not paths:
        raise InputError("no corpus is named; give its files, folders or globs, such as 'corpus/*.jsonl'")
    listing = find_files(paths)
    # Sources often follow one another; files at URLs are fetched whole.
    step = -(-len(listing.files) // SAMPLE_FILES)
    files = listing.files[:1] if isinstance(listing.files[0], RemoteFile) else listing.files[::step]
    looked, structure = Looked(paths, listing, files), None
    for file in files:
        records = first_records([replace(listing, files=[file])])
        for record in itertools.islice(records, max(1, SAMPLE_RECORDS // len(files))):
            structure = structure if looked.records else structure_of(record)
            looked.records += 1
            if structure and structure.form:
                looked.sizes.append(characters([record.get(name) for name in structure.fields]))
            for name, value in fields_of(record):
                if value is not None:
                    looked.fields.setdefault(name, Field()).add(value)
    if not looked.records:
        blocks = read_lines(files[0]) if listing.kind == "jsonl" else ()
        first = next((block for block in blocks if not block.blank.all()), None)
        looks = looks_like(raw_bytes(first, int(first.blank.argmin()))) if first else ""
        expected = f"; expected one JSON object a line; it looks like {looks}" if looks else ""
        raise InputError(f"{files[0]} holds no readable record{expected}")
    least = FIELD_SHARE * looked.records
    looked.fields = {name: each for name, each in looked.fields.items() if each.records >= least}
    if text_field:
        looked.read = (one_of("the text field", text_field, looked.fields),)
    elif structure and structure.form:
        looked.format, looked.read = structure.form, structure.fields
    else:
        looked.read = (_text_of(looked, structure),)
    _label(looked)
    return looked


def _text_of(looked: Looked, structure: Structure | None) -> str:
    """The text field. Raises InputError: it is unclear which field holds the text."""
    fields = looked.fields
    sizes = {
        name: each.characters
        for name, each in fields.items()
        if (last := name.lower().rpartition(".")[2]) in TEXT_NAMES
        or not (last in LABEL_NAMES or each.has_few(MAX_VALUES))
    }
    least = TEXT_SHARE * looked.records
    texts = [name for name in sizes if fields[name].records >= least and str in fields[name].types]
    longest, named = max(texts, key=sizes.__getitem__, default=""), _named(TEXT_NAMES, texts)
    # `text` may be a title beside a much longer `body`.
    text = named if named and 2 * sizes[named] >= sizes[longest] else longest
    rival = max(sizes.keys() - {text}, key=sizes.__getitem__, default="")
    if structure and (not text or text in structure.fields):
        raise InputError(f"{looked.paths[0]}: the records are {structure.said}")
    if text and (text == named or not rival or 2 * sizes[rival] < sizes[text]):
        return text
    raise InputError(
        f"{looked.paths[0]}: it is unclear which field holds the text, of {', '.join(map(repr, looked.fields))}. Name "
        "it with --text-field; if the text is in several fields or in a list, join it into one field first"
    )


def _label(looked: Looked) -> None:
    """Sets the fields of ids and sources, and traits."""
    rest = {name: each for name, each in looked.fields.items() if name not in looked.read}
    unique = [name for name, each in rest.items() if each.records == len(each.values) == looked.records]
    unique = [name for name in unique if rest[name].types in ({str}, {int})]
    looked.id_field = _named(ID_NAMES, unique)
    rest.pop(looked.id_field or "", None)
    few = [name for name, each in rest.items() if each.has_few(MAX_SOURCES)]
    looked.source_field = _named(SOURCE_NAMES, few)
    most = min(MAX_VALUES, max(2, looked.records // 2))
    looked.traits = [
        name
        for name, each in rest.items()
        if each.records >= TRAIT_SHARE * looked.records and len(each.values) > 1
        if each.has_few(MAX_SOURCES if name == looked.source_field else most, int)
    ]


def _named(names: Iterable[str], fields: Iterable[str]) -> str | None:
    """The field with the first of the names, in any case; otherwise the field inside an object with the first of these
    names."""
    lower = {name.lower(): name for name in fields}
    inner = {name.rpartition(".")[2]: field for name, field in lower.items()}
    return next((found[name] for found in (lower, inner) for name in names if name in found), None)


def write_settings(
    looked: Looked,
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
    text = printable(_toml(looked, file.absolute().parent, trainer, numbers or {}, project))
    try:
        settings = load_settings(tomllib.loads(text), {}, within=file.absolute())
    except SettingsError as error:
        said = str(error).rpartition(" or the environment: ")[2]
        raise SettingsError(f"nothing was written: {said}") from None
    if trainer and (why := unread(trainer_named(trainer), settings)):
        raise InputError(f"{trainer} does not read these records: {why}")
    write_settings_file(file, text, new=True)
    return settings


def _toml(
    looked: Looked, folder: Path, trainer: str | None, numbers: Mapping[str, int], project: Path | None
) -> str:
    ranks = {name: numbers[name] for name in RANKS if name in numbers}
    if ranks and not trainer:
        raise InputError(f"{next(iter(ranks))} applies to a trainer: name it too, with --trainer NAME")
    is_text, listing = looked.format == "text", looked.listing
    size = sum(int(identity(file)[0]) for file in listing.files)
    values = {
        "paths": [relative_source(path, folder, project or folder) for path in looked.paths],
        "text_field" if is_text else "format": looked.read[0] if is_text else looked.format,
        "id_field": looked.id_field,
        "source_field": looked.source_field,
    }
    k = min(30, looked.records * len(listing.files) // len(looked.sampled) // DOCUMENTS_A_CLUSTER)
    # 99 % of the conversations are held whole, with what a template writes around every message.
    held = sorted(looked.sizes or [0])[-1 - len(looked.sizes) // 100] * 5 // (4 * BYTES_PER_TOKEN)
    least = min(max(512, 1 << held.bit_length()), 32_768)
    tokens, length, batch = size // BYTES_PER_TOKEN, max(8192, least), 256
    while length > least and tokens < SEQUENCES * length:
        length //= 2
    length = numbers.get("sequence_length", length)
    while batch > 8 and tokens < BATCHES * batch * length:
        batch //= 2
    step = math.prod(max(1, ranks.get(name, 1)) for name in RANKS)
    # Trainers of preferences, and those that pack themselves, read records.
    formats, packing = [] if looked.prefers else ["parquet"], ""
    if trainer:
        formats = list(trainer_named(trainer).formats[:1])
    if not formats and looked.format != "pairs":
        packing = '[packing]\nmethod = "none"\n\n'
    elif looked.format == "prompt_completion" and all(
        looked.fields[name].types == {str} for name in looked.read if name in looked.fields
    ):
        # No chat template ends a completion that is a text.
        packing = "[packing]\nend_of_text = true  # the model learns to stop\n\n"
    # An existing folder belongs to somebody else; it may be the input.
    bases = itertools.chain(["divorder"], (f"divorder-{number}" for number in itertools.count(2)))
    base = next(name for name in bases if not (folder / name).exists())
    if project:
        base = os.path.relpath(project / "divorder" / folder.name, folder)
    return SETTINGS.format(
        input=_lines(values),
        k=max(2, k),
        traits=_lines(dict.fromkeys(["cluster", "length", *looked.traits], 1.0)),
        length=length,
        # A batch is a multiple of a step of all ranks.
        batch=numbers.get("batch", -(-batch // step) * step),
        packing=packing,
        base=tomlkit.item(base).as_string()[:-1],
        exports=_lines({"formats": formats, "trainer": trainer, **ranks}) + ("" if trainer else NO_TRAINER),
    )


def _lines(values: Mapping[str, Any]) -> str:
    """Keys and values in TOML, a line each, without values that are None."""
    return tomlkit.dumps({name: value for name, value in values.items() if value is not None})


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
