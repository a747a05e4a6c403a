"""`divorder init`: a short settings file for a corpus, from what its records hold."""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dagster_divorder.errors import DivOrderError, InputError, SettingsError, printable
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import is_url
from dagster_divorder.store.find import Found, find_files
from dagster_divorder.store.inputs import SHOWN_BYTES, Kind, read_schema
from dagster_divorder.store.looks import Structure, characters, looks_like, repeated_texts, structure_of
from dagster_divorder.store.peek import first_records
from dagster_divorder.store.sources import identity, open_source
from dagster_divorder.view.words import count

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
    """What the sampled records hold in a field: how many have it, the characters of its texts (of lists and objects:
    of the texts in them), its distinct values (as far as they are counted; hashes of them), and the kinds of values."""

    records: int = 0
    characters: int = 0
    values: set[int] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)

    def add(self, value: Any) -> None:
        self.records += 1
        self.kinds.add(_kind(value))
        self.characters += characters(value)
        if isinstance(value, str | int | float):
            self.values.add(hash(value))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


@dataclass(frozen=True, slots=True)
class _Block:
    """An input: the paths that name it, what was found there, of how many records, and what they hold."""

    paths: tuple[str, ...]
    found: Found
    records: int
    fields: dict[str, Field]
    text: str
    why: str
    own_id: str | None
    source: str | None

    @property
    def size(self) -> int:
        return sum(int(identity(path)[0]) for path in self.found.files)

    @property
    def repeats(self) -> str:
        """A warning of few or very short texts; "" where there is nothing to say."""
        of, texts = self.fields[self.text], len(self.fields[self.text].values)
        return repeated_texts(of.records, texts, of.characters * texts // of.records)

    def lines(self, folder: Path, constant: str | None) -> str:
        """Its settings, for a file in `folder`. constant: a source for all records, where no field has one."""
        files = count(len(self.found.files), f"{'JSONL' if self.found.kind == 'jsonl' else 'Parquet'} file")
        seen = ", ".join(
            f"{_toml(name)[1:-1]} ({' or '.join(sorted(of.kinds))})" for name, of in self.fields.items()
        )
        source_line = '# source_field = "..."     # where a document is from'
        if self.source or constant:
            key, value = ("source_field", self.source) if self.source else ("source", constant)
            source_line = f"{key} = {_toml(value or '')}"
        return "\n".join(
            [
                f"# {files}, {self.size / 1e6:,.1f} MB; fields of {self.records:,} records looked at: {seen}",
                f"paths = [{', '.join(_toml(_seen_from(path, folder)) for path in self.paths)}]",
                f"text_field = {_toml(self.text)}  # {self.why}",
                f"id_field = {_toml(self.own_id)}"
                if self.own_id
                else '# id_field = "..."         # your own ids, shown in results',
                source_line,
            ]
        )


def propose(paths: Sequence[str], folder: Path) -> tuple[str, list[str]]:
    """Settings for a corpus, TOML, for a file that will lie in `folder`; and of each input in them why the text is in
    the field that they name.

    Raises:
        InputError: no file matches, or it cannot be told which field of the first records holds the text.
    """
    blocks = _blocks(paths)
    several = len(blocks) > 1
    fields = blocks[0].fields if not several else _joined([block.fields for block in blocks])
    # Of several inputs the source is what each block says.
    own = {name for block in blocks for name in (block.text, block.own_id, several and block.source)}
    plain = {name: of for name, of in fields.items() if name not in own and _is_plain(of)}
    source = "source" if several else blocks[0].source
    sources = [source] if source and (several or len(fields[source].values) > 1) else []
    traits = [name for name, of in plain.items() if name not in sources and _has_few(of, MAX_VALUES)]
    size = sum(block.size for block in blocks)
    length, batch = _lengths(size // BYTES_PER_TOKEN)
    # What lies in a folder that is there already is somebody's, perhaps the input.
    base = next(
        name
        for name in itertools.chain(["divorder"], map("divorder-{}".format, itertools.count(2)))
        if not (folder / name).exists()
    )
    header = "[[input]]" if several else "[input]"
    input_blocks = "\n\n".join(
        f"{header}\n{block.lines(folder, constant)}"
        for block, constant in zip(blocks, _constants(blocks) if several else [None], strict=True)
    )
    trait_lines = "\n".join(
        [
            "cluster = 1.0              # topics, found by clustering",
            "length = 1.0",
            *(f"{_key(name)} = 1.0" for name in sources),
            *(f"# {_key(name)} = 1.0  # distinct values: {len(fields[name].values):,}" for name in traits),
        ]
    )
    settings = f"""\
# Settings of DivOrder: `divorder plan` says what a run would do, `divorder run` does it.
# Every key, with its default: divorder.example.toml in the repository.

{input_blocks}

[model]
base = "bootstrap"         # a small tokenizer trained here; better: the model to be trained, an id or a directory

[order.traits]             # what every window of training is to carry in the corpus's own mix
{trait_lines}

[sequence]                 # as your trainer has them
length = {length}
batch = {batch}

[store]
path = "{base}/store"      # what has been computed; can be deleted at the price of computing it again

[output]
path = "{base}/curated"

[exports]                  # the training sequences, tokens and all
formats = ["parquet"]      # megatron, olmo, ds, mds, litdata, text: `divorder verify` says what your trainer needs
path = "{base}/exports"
"""
    return settings, [f"{block.why}. {block.repeats}".rstrip() for block in blocks]


def _blocks(paths: Sequence[str]) -> list[_Block]:
    """The inputs that paths name: one, or one of each shape, where some have files of another kind, other columns, or
    no text where the others have theirs."""
    if len(paths) == 1:
        return [_block(paths)]
    texts: list[str] = []
    shapes: list[tuple[str, str | None, str]] = []
    for path in paths:
        found = find_files([path])
        records, fields, structure = _sample(found, SAMPLE_RECORDS // len(paths))
        whole = _whole_texts(fields, records)
        # What others have their text in is this one's, too, where it can be.
        text = next((name for name in texts if name in whole), None)
        if structure or (whole and not text):
            try:
                own, _ = _text_field(fields, records, structure, found.kind)
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
    return [_block(alike) for alike in apart.values()]


def _block(paths: Sequence[str]) -> _Block:
    found = find_files(paths)
    records, fields, structure = _sample(found)
    if not records:
        raise InputError(
            f"{found.files[0]} holds no record that can be read; expected one JSON object a line{_looks(found)}"
        )
    text, why = _text_field(fields, records, structure, found.kind)
    rest = {name: of for name, of in fields.items() if name != text}
    own_id = _named(ID_NAMES, (name for name, of in rest.items() if _is_id(of, records)))
    rest.pop(own_id or "", None)
    plain = (name for name, of in rest.items() if _is_plain(of) and _has_few(of, MAX_SOURCES))
    return _Block(tuple(paths), found, records, fields, text, why, own_id, _named(SOURCE_NAMES, plain))


def _joined(blocks: Iterable[dict[str, Field]]) -> dict[str, Field]:
    """Fields of several inputs, those of one name as one."""
    joined: dict[str, Field] = {}
    for name, of in itertools.chain.from_iterable(fields.items() for fields in blocks):
        one = joined.setdefault(name, Field())
        one.records += of.records
        one.characters += of.characters
        one.values |= of.values
        one.kinds |= of.kinds
    return joined


def _constants(blocks: Sequence[_Block]) -> list[str]:
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


def _sample(found: Found, most: int = SAMPLE_RECORDS) -> tuple[int, dict[str, Field], Structure | None]:
    """How many records were looked at, their fields by name, and the fields that make up a text together in most of
    them: of files from all over the corpus, since corpora come in blocks."""
    step = -(-len(found.files) // SAMPLE_FILES)
    files = found.files[::step]
    records = 0
    fields: dict[str, Field] = {}
    structures: Counter[Structure] = Counter()
    for path in files:
        for record in itertools.islice(
            first_records([replace(found, files=[path])]), max(1, most // len(files))
        ):
            records += 1
            structures.update(filter(None, [structure_of(record)]))
            for name, value in _values(record):
                if value is not None:
                    fields.setdefault(name, Field()).add(value)
    least = MIN_INNER_SHARE * records
    often = {name: of for name, of in fields.items() if "." not in name or of.records >= least}
    structure, of_it = next(iter(structures.most_common(1)), (None, 0))
    return records, often, structure if 2 * of_it > records else None


def _values(record: dict[str, Any], depth: int = 1) -> Iterator[tuple[str, Any]]:
    """The fields of a record, those of objects in it by the way to them."""
    for name, value in record.items():
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            yield from ((f"{name}.{inner}", of) for inner, of in _values(value, depth + 1))
        else:
            yield name, value


def _text_field(
    fields: dict[str, Field], records: int, structure: Structure | None, kind: Kind
) -> tuple[str, str]:
    """The field that holds the text, and why.

    Raises:
        InputError: none does, or several do and none of them holds it all.
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
        raise InputError(f"the records are {structure.said(by_jq=kind == 'jsonl')}")
    shown = ", ".join(f"{name!r} ({_mean(of)})" for name, of in fields.items())
    by_hand = 'name it by hand in divorder.toml: [input], with paths and text_field = "..."'
    if not longest:
        raise InputError(
            f"no field holds text in most of the first {records:,} records; the fields are {shown}; if one of them is "
            f"the text, {by_hand}"
        )
    told = (longest, *(structure.fields if structure else ()))
    others = {name: of for name, of in fields.items() if name not in told and not _holds_labels(name, of)}
    rival = max(others, key=lambda name: others[name].characters, default="")
    if others and longest != named and 2 * others[rival].characters >= whole[longest].characters:
        raise InputError(
            f"the text may be in {longest!r} ({_mean(whole[longest])}) or in {rival!r} ({_mean(others[rival])}); if it "
            f"is in one of them, {by_hand}; if both belong together, write them as one text first"
        )
    why = "named as texts often are" if longest == named else "the longest"
    return longest, f"{why}: {_mean(whole[longest])}"


def _whole_texts(fields: dict[str, Field], records: int) -> dict[str, Field]:
    """The fields of texts that most records have; of those in objects the ones that are called as texts are."""
    return {
        name: of
        for name, of in fields.items()
        if of.kinds == {"text"} and of.records >= MIN_SHARE * records and not _holds_labels(name, of)
        if "." not in name or _own_name(name) in TEXT_NAMES
    }


def _mean(of: Field) -> str:
    """What a field holds, and how long that is on average."""
    kinds = {"other": "a list or an object"}
    kind = " or ".join(kinds.get(kind, kind) for kind in sorted(of.kinds))
    return f"{kind}, {of.characters / of.records:,.0f} characters on average" if of.characters else kind


def _holds_labels(name: str, of: Field) -> bool:
    """Whether a field holds names of things and no texts, by its own name and its length."""
    return _own_name(name) in LABEL_NAMES and of.characters < LABEL_CHARACTERS * of.records


def _own_name(name: str) -> str:
    """What a field is called, whatever objects it is in, in small letters."""
    return name.lower().rpartition(".")[2]


def _looks(found: Found) -> str:
    """What the first file begins like, as the end of a message; "" where that is not known."""
    with open_source(found.files[0]) as file:
        looks = looks_like(file.read(SHOWN_BYTES))
    return f"; this is {looks}" if looks else ""


def _is_plain(of: Field) -> bool:
    return of.kinds <= {"text", "true or false"}


def _is_id(of: Field, records: int) -> bool:
    return of.records == len(of.values) == records and len(of.kinds) == 1 and of.characters < 200 * records


def _has_few(of: Field, values: int) -> bool:
    return len(of.values) <= values and of.characters < 100 * of.records


def _named(names: Iterable[str], fields: Iterable[str]) -> str | None:
    """The field whose name comes first in a list, whatever its case; without one the field in an object whose own name
    does."""
    lower = {name.lower(): name for name in fields}
    inner = {name.rpartition(".")[2]: of for name, of in lower.items()}
    return next((of[name] for of in (lower, inner) for name in names if name in of), None)


def _lengths(tokens: int) -> tuple[int, int]:
    length, batch = 8192, 256
    while length > 512 and tokens < MIN_SEQUENCES * length:
        length //= 2
    while batch > 8 and tokens < MIN_BATCHES * batch * length:
        batch //= 2
    return length, batch


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


def write_settings(paths: Sequence[str], file: Path) -> tuple[Settings, list[str]]:
    """Write a settings file for a corpus; the settings that it holds, and of each input in them why the text is
    in the field that they name.

    Raises:
        SettingsError: the file is there already.
        InputError: as `propose` does.
    """
    from dagster_divorder.settings import load_settings

    there = f"{file} is there already; remove it, or name another file with --config"
    if file.exists():
        raise SettingsError(there)
    text, whys = propose(paths, file.absolute().parent)
    try:
        with open(file, "x", encoding="utf-8") as made:
            # A control character has no place in TOML, not even in a comment.
            made.write(printable(text))
    except FileExistsError:
        raise SettingsError(there) from None
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from error
    try:
        return load_settings(file, {}), whys
    except DivOrderError:
        file.unlink()
        raise


def settings_for(paths: Sequence[str], config: str | os.PathLike[str] | None = None) -> Settings:
    """The settings of a file (as `load_settings` finds it) for other paths, if any are given; where there is no file,
    those that `write_settings` would write for these paths, seen from the current folder.

    Raises:
        SettingsError: as `load_settings` does.
        InputError: as `propose` does, or the file has several inputs, and paths are given.
    """
    from dagster_divorder.settings import load_settings
    from dagster_divorder.settings.loading import config_file
    from dagster_divorder.settings.sections import Inputs

    found = config_file(config, os.environ)
    if not paths:
        return load_settings(config)
    if found is None:
        with tempfile.TemporaryDirectory(prefix="divorder-settings-") as folder:
            file = Path(folder) / "divorder.toml"
            file.write_text(printable(propose(paths, Path(folder))[0]), encoding="utf-8")
            settings = load_settings(file)
        here = {name: Path.cwd() / "divorder" / name for name in ("store", "curated", "exports")}
        return settings.model_copy(
            update={
                "store": settings.store.model_copy(update={"path": here["store"]}),
                "output": settings.output.model_copy(update={"path": here["curated"]}),
                "exports": settings.exports.model_copy(update={"path": here["exports"]}),
            }
        )
    settings = load_settings(config)
    if isinstance(settings.input, Inputs):
        raise InputError(
            f"{found} has several [[input]] blocks, and paths are given beside them; leave the paths out, or name "
            "settings of one input"
        )
    given = tuple(path if is_url(path) else os.path.abspath(os.path.expanduser(path)) for path in paths)
    return settings.model_copy(update={"input": settings.input.with_paths(lambda _: given)})
