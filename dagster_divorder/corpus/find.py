"""Finds the files of a corpus: from files, folders and globs, local or at URLs, in an order that only names decide.

Guarantee: nothing that DivOrder wrote is read as input: neither the run's own store and output, by any path, nor
another run's store, nor its output unless named directly. Links to folders are followed, each folder once. A folder
that cannot be listed is an error. Files of a folder that are left out are counted. Known weakness: a file that a glob
does not match is not counted.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from dagster_divorder.corpus.inputs import CODECS, JSONL_SUFFIXES, PARQUET_SUFFIXES, Kind, kind_of
from dagster_divorder.corpus.looks import CSV_REMEDY
from dagster_divorder.corpus.shapes import DEFAULT_SHAPE, Shape, shapes_of
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import OBJECT_STORES, Place, as_place, is_url, real_place, why_unusable
from dagster_divorder.settings.sections import Input
from dagster_divorder.store.base import FORMAT, FORMAT_FILE, json_object
from dagster_divorder.store.folder import TEMPORARY, Entry, Folder
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.store.sources import Source, open_source

_MAGIC = re.compile(r"[*?[]")
_ANY = "**"
OURS = "written by DivOrder"
REMEDIES = {".csv": CSV_REMEDY, ".tsv": CSV_REMEDY}
"""Endings of files that other tools turn into Parquet, and how."""


@dataclass(frozen=True, slots=True)
class Found:
    """The files of an input, in order. left_out: other files in the named folders, and folders that DivOrder wrote, by
    path: the end of the name, or the reason."""

    kind: Kind
    files: list[Source]
    left_out: dict[str, str]
    shape: Shape


def find_inputs(settings: Settings) -> list[Found]:
    """The files of each input that `input.paths` names, without the store and the output of these settings. Raises
    InputError: see `find_files`; or a file belongs to two inputs; or no input is set and there is no sample corpus."""
    paths = settings.input.paths
    sample = len(paths) == 1 and paths[0].endswith(Input().paths[0]) and not is_url(paths[0])
    if sample and not os.path.exists(paths[0]):
        raise InputError(
            f"no settings name an input, and the sample corpus {paths[0]} does not exist; write settings for your "
            f"own corpus with `divorder init FILES_OR_FOLDER`"
        )
    own = own_folders(settings)
    inputs: list[Found] = []
    label_of: dict[str, str] = {}
    for block, shape in zip(settings.input.each, shapes_of(settings), strict=True):
        with shape.naming():
            inputs.append(find_files(block.paths, own, shape))
            for path in inputs[-1].files if shape.label else ():
                other = label_of.setdefault(real_place(str(path)), shape.label)
                if other != shape.label:
                    raise InputError(
                        f"{path} also belongs to {other.rstrip(': ')}; name it in one [[input]] block"
                    )
    return inputs


def counted(left_out: Mapping[str, str]) -> str:
    """What was left out, such as `2 .csv (first: /in/a.csv)`."""
    first = {reason: path for path, reason in reversed([*left_out.items()])}
    counts = sorted(Counter(left_out.values()).items())
    return ", ".join(f"{count:,} {reason} (first: {first[reason]})" for reason, count in counts)


def own_folders(settings: Settings) -> list[Place]:
    """Folders that a run with these settings writes."""
    own = [settings.store.path, settings.output.path]
    return [*own, settings.exports.path] if settings.exports.formats else own


def find_files(
    patterns: Iterable[str], own: Sequence[Place | str] = (), shape: Shape = DEFAULT_SHAPE
) -> Found:
    """Files of an input, in the given order; inside a folder or a glob, by name. Each file comes once.

    Args:
        own: folders that this run writes; their files are not input.
        shape: how the records of the input are read.

    Raises:
        InputError: a pattern matches nothing, a folder cannot be listed, a file is neither JSONL nor Parquet, or both
            kinds are mixed.
    """
    written = [real_place(folder) for folder in own]
    left_out: dict[str, str] = {}
    files: dict[str, Source] = {}
    for pattern in patterns:
        matches: dict[str, Source] = {}
        search = _Search(folder_at(as_place(pattern)), written, left_out)
        for source in sorted(
            search.matches(pattern.rstrip("/") if is_url(pattern) else pattern),
            key=lambda source: list(source.parts) if isinstance(source, Path) else source.url.split("/"),
        ):
            real = search.real_path(str(source))
            if search.is_own(real):
                left_out[os.path.dirname(real)] = OURS
            elif why := why_unusable(str(source)):
                raise InputError(f"input.paths: {why}")
            else:
                matches.setdefault(real, source)
        if not matches:
            raise InputError(
                f"input.paths: no file matches {pattern!r}; expected a JSONL ({', '.join(JSONL_SUFFIXES)}, plain or "
                f"{', '.join(CODECS)}) or Parquet file, a folder of them, or a glob"
                f"{f'; left out: {counted(left_out)}' if left_out else ''}"
                f"{''.join(f'; {remedy}' for end, remedy in REMEDIES.items() if end in left_out.values())}"
            )
        for real, source in matches.items():
            files.setdefault(real, source)
    kinds: dict[Kind, Source] = {}
    for path in files.values():
        if not (kind := kind_of(path)):
            remedy = f"; {REMEDIES[suffix]}" if (suffix := path.suffix.lower()) in REMEDIES else ""
            raise InputError(
                f"{path} is neither JSONL nor Parquet by its name; expected one of "
                f"{', '.join((*JSONL_SUFFIXES, *PARQUET_SUFFIXES))} (JSONL also with {', '.join(CODECS)}){remedy}"
            )
        kinds[kind] = path
    if len(kinds) > 1:
        raise InputError(
            f"input.paths mixes JSONL ({kinds['jsonl']}) and Parquet ({kinds['parquet']}); "
            "expected one kind an input: give each its own [[input]] block"
        )
    return Found(next(iter(kinds)), list(files.values()), left_out, shape)


class _Search:
    """The search for one pattern. Adds to `left_out`, see `Found`."""

    def __init__(self, base: Folder, own: list[str], left_out: dict[str, str]) -> None:
        self.base, self.own, self.left_out = base, own, left_out
        self.known: dict[str, dict[str, Entry]] = {}
        self.real_folders: dict[str, str] = {}

    def matches(self, pattern: str) -> Iterator[Source]:
        """Files that a pattern names, unordered; a file with several names may come under each."""
        entry = self._entry(pattern)
        if isinstance(entry, Source):
            yield entry
        elif entry == "folder":
            yield from self._in_folder(pattern)
        else:
            scheme, divided, path = pattern.rpartition("://")
            parts = [part for part in path.split(os.sep) if part not in ("", os.curdir)]
            folder = scheme + divided or (os.sep if os.path.isabs(pattern) else "")
            for at, part in enumerate(parts):
                below = os.path.join(folder, part)
                # The folder of the settings may have brackets in its own name.
                if _MAGIC.search(part) and (scheme or self._entry(below) != "folder"):
                    yield from self._in_glob(folder, parts[at:])
                    return
                folder = below

    def _entries(self, folder: str) -> dict[str, Entry]:
        """Entries of a folder, sorted by name; each folder is listed once."""
        if folder not in self.known:
            with _listing():
                self.known[folder] = dict(sorted(self.base.entries(folder).items()))
        return self.known[folder]

    def _entry(self, path: str) -> Entry:
        """The entry at a path."""
        entry = self._file_entry(path)
        # Only a listing shows whether an object store has a folder.
        is_object = path.partition("://")[0] in OBJECT_STORES
        return "folder" if entry == "neither" and is_object and self._entries(path) else entry

    def _file_entry(self, path: str) -> Entry:
        """The entry at a path that is not an object store's folder."""
        folder, name = os.path.split(path)
        if folder in self.known:
            return self.known[folder].get(name, "neither")
        with _listing():
            return self.base.entry(path)

    def _in_folder(self, base: str) -> Iterator[Source]:
        """The corpus files of a folder."""
        # Comes first because it lists the folder: below a URL, `_is_store` uses this listing.
        is_output = self._is_output(base)
        if self._is_store(base):
            self.left_out[real_place(base)] = OURS
            return
        for folder in self._below(base, (".", "_")):
            dataset = self._files_of_dataset(folder)
            for name, entry in self._entries(folder).items():
                path = os.path.join(folder, name)
                if name.startswith((".", "_")):
                    self.left_out[path] = "hidden (. or _)"
                elif entry == "neither":
                    self.left_out[path] = "no regular file"
                elif entry == "folder":
                    continue
                elif not kind_of(entry) or (dataset is not None and name not in dataset):
                    self.left_out[path] = _ending(name)
                # If an output is named as input, only its records are read.
                elif not is_output or (name.startswith("curated") and name != MANIFEST):
                    yield entry

    def _files_of_dataset(self, folder: str) -> set[str] | None:
        """Names of the files of a data set that `datasets` saved in a folder, without those of its cache; None if it is
        no such folder. Raises InputError: it holds several splits, or a file is missing."""
        entries = self._entries(folder)
        if "dataset_dict.json" in entries:
            raise InputError(
                f"{folder} holds the splits of a data set that `datasets` saved; name the one to read, such as "
                f"{os.path.join(folder, 'train')}"
            )
        if "dataset_info.json" not in entries or not isinstance(state := entries.get("state.json"), Source):
            return None
        with open_source(state) as file:
            files = json_object(file.read()).get("_data_files") or []
        names = {str(each["filename"]) for each in files if isinstance(each, dict) and "filename" in each}
        if missing := sorted(names - entries.keys()):
            raise InputError(f"{folder} lacks {missing[0]}, which its state.json names; copy it again")
        return names

    def _below(self, base: str, hidden: tuple[str, ...]) -> Iterator[str]:
        """A folder and all below it that DivOrder did not write, each once. hidden: beginnings of names to skip."""
        waiting, visited = deque([base]), set()
        while waiting:
            folder = waiting.popleft()
            if (real := real_place(folder)) in visited:
                continue
            visited.add(real)
            yield folder
            for name, entry in self._entries(folder).items():
                path = os.path.join(folder, name)
                if entry == "folder" and not name.startswith(hidden) and not self._is_ours(path):
                    waiting.append(path)

    def _in_glob(self, folder: str, parts: Sequence[str]) -> Iterator[Source]:
        """Files below a folder that match the parts of a pattern, by the rules of `glob`."""
        part, *rest = parts
        if part == _ANY:
            for below in self._below(folder, (".",)):
                yield from self._in_glob(below, rest or ["*"])
            return
        matching = {part: self._entry(os.path.join(folder, part))} if not _MAGIC.search(part) else {}
        for name, entry in (matching or self._entries(folder)).items():
            if name not in matching and (
                not fnmatchcase(name, part) or (name.startswith(".") and not part.startswith("."))
            ):
                continue
            path = os.path.join(folder, name)
            if entry == "folder" and rest and not self._is_ours(path):
                yield from self._in_glob(path, rest)
            elif isinstance(entry, Source) and not rest:
                yield entry

    def _is_ours(self, folder: str) -> bool:
        """Whether DivOrder wrote a folder; such folders are skipped."""
        real = real_place(folder)
        is_ours = self.is_own(real) or self._is_output(folder) or self._is_store(folder)
        if is_ours:
            self.left_out[real] = OURS
        return is_ours

    def real_path(self, file: str) -> str:
        """`real_place` of a file, which looks at every folder above it once."""
        folder, name = os.path.split(file)
        if is_url(file) or os.path.islink(file):
            return real_place(file)
        if folder not in self.real_folders:
            self.real_folders[folder] = real_place(folder or os.curdir)
        return os.path.join(self.real_folders[folder], name)

    def is_own(self, real: str) -> bool:
        """Whether a path without links is in a folder that this run writes."""
        return any(real == own or real.startswith(os.path.join(own, "")) for own in self.own)

    def _is_store(self, folder: str) -> bool:
        entry = self._file_entry(os.path.join(folder, FORMAT_FILE))
        if not isinstance(entry, Source):
            return False
        with open_source(entry) as file:
            return json_object(file.read()).get("format") == FORMAT

    def _is_output(self, folder: str) -> bool:
        """Whether a folder holds an output or an export, or the remains of a killed run's."""
        names, place = self._entries(folder), as_place(folder)
        if any(name == MANIFEST or name.startswith(TEMPORARY) for name in names):
            return True
        # An export's manifest lies beside it.
        has_manifest = isinstance(self._file_entry(str(file_at(place, EXPORT_MANIFEST))), Source)
        return has_manifest and read_manifest(place, EXPORT_MANIFEST, replaced=True) is not None


@contextlib.contextmanager
def _listing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"input.paths: {error.filename} cannot be listed: {error.strerror}; make it readable for this user, or "
            f"name other paths"
        ) from error


def _ending(name: str) -> str:
    """The end of a name that shows a file's kind: `.csv`, `.jsonl.zip`, `.csv.gz`."""
    *_, before, last = ("", "", *Path(name.lower()).suffixes)
    both = before in (*JSONL_SUFFIXES, *PARQUET_SUFFIXES) or last in CODECS
    return (before + last if both else last) or "without suffix"
