"""Which files a corpus has: files, folders and globs, here or at URLs, to sources, in an order that the names alone
decide.

Guarantee: nothing that DivOrder wrote is read as input. The run's own store and output never are, whatever leads to
them; a folder that is another run's store or output is not, unless its output is named directly. Links to folders are
followed, each folder once. What cannot be listed is an error, and what is left out of a folder is counted.
Known weakness: a file that a glob does not match is not counted, as it was not asked for.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from dagster_divorder.corpus.compression import CODECS
from dagster_divorder.corpus.inputs import (
    JSONL_SUFFIXES,
    PARQUET_SUFFIXES,
    Kind,
    is_corpus_file,
    kind_of,
    read_schema,
)
from dagster_divorder.corpus.looks import CSV_REMEDY
from dagster_divorder.corpus.shapes import DEFAULT_SHAPE, Shape, shapes_of
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Input, Settings
from dagster_divorder.settings.places import Place, Url, is_url, real_place, why_unusable
from dagster_divorder.store.base import FORMAT_FILE, TEMPORARY
from dagster_divorder.store.head import HEAD
from dagster_divorder.store.local import tells_of_store
from dagster_divorder.store.manifests import EXPORT_MANIFEST, OLD_EXPORT_MANIFEST, file_at
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.store.sources import RemoteFile, Source, open_source, tree_of

_MAGIC = re.compile(r"[*?[]")
_ANY = "**"


@dataclass(frozen=True, slots=True)
class Found:
    """The files of an input, in order. Left out were `skipped`, folders that DivOrder wrote, and, of the folders
    named as input, `others`: by the end of their names, how many files there are no corpus files."""

    kind: Kind
    files: list[Source]
    skipped: list[str]
    others: dict[str, int]
    shape: Shape


def find_inputs(settings: Settings) -> list[Found]:
    """The files that `input.paths` names, of each input; nothing in the store or the output of these settings is among
    them.

    Raises:
        InputError: as `find_files` does, a file is of two inputs, or nothing was set and the sample corpus is not
            there.
    """
    paths = settings.input.paths
    sample = len(paths) == 1 and paths[0].endswith(Input().paths[0]) and not is_url(paths[0])
    if sample and not os.path.exists(paths[0]):
        raise InputError(
            f"no settings name an input, and there is no {paths[0]}, the sample corpus; write settings for your own "
            "with `divorder init FILES_OR_FOLDER`"
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
                        f"{path} is also of {other.rstrip(': ')}; name it in one [[input]] block"
                    )
    return inputs


def as_one_kind(inputs: Sequence[Found]) -> tuple[Kind, list[Found]]:
    """The kind that records of all inputs are stored and written as, and the inputs, read so: Parquet rows where all
    have the same columns, else lines, rows as JSON.

    Raises:
        InputError: a file is no Parquet.
    """
    kinds = {found.kind for found in inputs}
    if kinds == {"parquet"} and len(inputs) > 1:
        schemas = []
        for found in inputs:
            with found.shape.naming():
                schemas.append(read_schema(found.files[0], None))
        kinds |= set() if all(schema.equals(schemas[0]) for schema in schemas) else {"jsonl"}
    if kinds == {"parquet"}:
        return "parquet", list(inputs)
    return "jsonl", [
        replace(found, shape=replace(found.shape, as_lines=found.kind == "parquet")) for found in inputs
    ]


def own_folders(settings: Settings) -> list[Place]:
    """The folders that a run with these settings writes."""
    own = [settings.store.path, settings.output.path, *filter(None, [settings.store.cache])]
    return [*own, settings.exports.path] if settings.exports.formats else own


def find_files(
    patterns: Iterable[str], own: Sequence[Place | str] = (), shape: Shape = DEFAULT_SHAPE
) -> Found:
    """Files of an input, in the order given; inside a folder or a glob, by name. A file matched twice is read once.

    Args:
        own: folders that this run writes; nothing in them is input.
        shape: how its records are read.

    Raises:
        InputError: a pattern matches nothing, a folder cannot be listed, a file is neither JSONL nor Parquet, or both
            kinds are mixed.
    """
    written = [real_place(folder) for folder in own]
    left_out: set[str] = set()
    others: dict[str, str] = {}
    files: dict[str, Source] = {}
    for pattern in patterns:
        matches: dict[str, Source] = {}
        tree = _Remote(pattern) if is_url(pattern) else _Local()
        search = _Search(tree, written, left_out, others)
        for path in sorted(
            search.matches(pattern.rstrip("/") if is_url(pattern) else pattern), key=_in_order
        ):
            real = tree.real(path)
            if search.is_own(real):
                left_out.add(os.path.dirname(real))
            else:
                if why := why_unusable(path):
                    raise InputError(f"input.paths: {why}")
                matches.setdefault(real, tree.source(path))
        if not matches:
            raise InputError(
                f"input.paths: no file matches {pattern!r}; expected a JSONL ({', '.join(JSONL_SUFFIXES)}, plain or "
                f"{', '.join(CODECS)}) or Parquet file, a folder of them, or a glob{_hint(left_out)}{_others(others)}"
            )
        for real, source in matches.items():
            files.setdefault(real, source)
    kinds = {kind_of(path): path for path in files.values()}
    if len(kinds) > 1:
        raise InputError(
            f"input.paths mixes JSONL ({kinds['jsonl']}) and Parquet ({kinds['parquet']}); "
            "expected one kind an input: give each an [[input]] block of its own, as `divorder init` does for paths "
            "that are named one by one"
        )
    kinds_left = dict(sorted(Counter(others.values()).items()))
    return Found(next(iter(kinds)), list(files.values()), sorted(left_out), kinds_left, shape)


def _in_order(path: str) -> list[str]:
    return path.split("/") if is_url(path) else list(Path(path).parts)


def _hint(left_out: set[str]) -> str:
    """What is left out, as the end of a message."""
    return f"; left out is what DivOrder wrote: {', '.join(sorted(left_out)[:3])}" if left_out else ""


def _others(others: Mapping[str, str]) -> str:
    """What else there is, by the end of its name, as the end of a message."""
    found = ", ".join(f"{number:,} {ending}" for ending, number in sorted(Counter(others.values()).items()))
    return f"; there is {found}{f': {CSV_REMEDY}' if '.csv' in others.values() else ''}" if found else ""


class _Tree(Protocol):
    """Files and folders by their names, which slashes divide."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted; nothing where there is no such folder."""

    def kind(self, path: str) -> str:
        """file, folder, or "" for what is neither, such as a link to nothing."""

    def real(self, path: str) -> str:
        """The same of all names of a file."""

    def place(self, folder: str) -> Place: ...

    def source(self, path: str) -> Source: ...


class _Local:
    """Files and folders of this machine."""

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(folder or os.curdir))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unreadable(folder, error) from error

    def kind(self, path: str) -> str:
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return ""
            raise _unreadable(path, error) from error
        return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else ""

    def real(self, path: str) -> str:
        return real_place(path)

    def place(self, folder: str) -> Place:
        return Path(folder)

    def source(self, path: str) -> Source:
        return Path(path)


class _Remote:
    """Files and folders below a URL; each folder is listed once."""

    def __init__(self, url: str) -> None:
        self._tree = tree_of(url)
        self._folders: dict[str, dict[str, RemoteFile | None]] = {}
        self._files: dict[str, RemoteFile] = {}

    def names(self, folder: str) -> list[str]:
        if folder not in self._folders:
            found = self._folders[folder] = self._tree.listed(folder)
            self._files |= {file.url: file for file in found.values() if file}
        return sorted(self._folders[folder])

    def kind(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        if folder in self._folders:
            found = self._folders[folder]
            return "file" if found.get(name) else "folder" if name in found else ""
        if file := self._tree.file(path):
            self._files[path] = file
            return "file"
        return "folder" if not path.startswith("http") and self.names(path) else ""

    def real(self, path: str) -> str:
        return real_place(path)

    def place(self, folder: str) -> Place:
        return Url(folder)

    def source(self, path: str) -> Source:
        return self._files[path]


class _Search:
    """The search for one pattern. It adds to the folders that are left out and, of other files that are, the ends of
    their names."""

    def __init__(self, tree: _Tree, own: list[str], skipped: set[str], others: dict[str, str]) -> None:
        self.tree, self.own, self.skipped, self.others = tree, own, skipped, others

    def matches(self, pattern: str) -> Iterator[str]:
        """Files that a pattern names, in no order; of a file that has several names, perhaps all of them."""
        kind = self.tree.kind(pattern)
        if kind == "file":
            yield pattern
        elif kind == "folder":
            yield from self._in_folder(pattern)
        else:
            scheme, divided, path = pattern.rpartition("://")
            parts = [part for part in path.split(os.sep) if part not in ("", os.curdir)]
            fixed = next((at for at, part in enumerate(parts) if _MAGIC.search(part)), None)
            if fixed is not None:
                root = scheme + divided or (os.sep if os.path.isabs(pattern) else "")
                yield from self._in_glob(root + os.sep.join(parts[:fixed]), tuple(parts[fixed:]))

    def _in_folder(self, base: str) -> Iterator[str]:
        """The corpus files of a folder; what else is there is counted."""
        # Asked first: it lists the folder, and below a URL `_is_store` then finds its files in that list.
        is_output = self._is_output(base)
        if self._is_store(base):
            self.skipped.add(self.tree.real(base))
            return
        waiting, seen = deque([base]), set()
        while waiting:
            folder = waiting.popleft()
            real = self.tree.real(folder)
            if real in seen:
                continue
            seen.add(real)
            for name in self.tree.names(folder):
                path = os.path.join(folder, name)
                kind = self.tree.kind(path)
                if name.startswith((".", "_")):
                    self.others[path] = "hidden (. or _)"
                elif kind == "folder":
                    if not self.is_ours(path):
                        waiting.append(path)
                elif kind != "file":
                    self.others[path] = "no regular file"
                elif not is_corpus_file(Path(name)):
                    self.others[path] = _ending(name)
                # Of an output that is named as input the records alone are read.
                elif not is_output or (name.startswith("curated") and name != MANIFEST):
                    yield path

    def _in_glob(self, base: str, pattern: tuple[str, ...]) -> Iterator[str]:
        """The files below a folder that the parts of a pattern match, as `glob` matches them."""
        waiting, seen = deque([(base, pattern)]), set()
        while waiting:
            folder, parts = waiting.popleft()
            state = (self.tree.real(folder), len(parts))
            if state in seen:
                continue
            seen.add(state)
            part, rest = parts[0], parts[1:]
            if part == _ANY and rest:
                waiting.append((folder, rest))
            for path, kind in self._matching(folder, part):
                below = parts if part == _ANY else rest
                if kind == "file" and not rest:
                    yield path
                elif kind == "folder" and below and not self.is_ours(path):
                    waiting.append((path, below))

    def is_ours(self, folder: str) -> bool:
        """Whether DivOrder wrote a folder; if so it is counted as skipped."""
        real = self.tree.real(folder)
        ours = self.is_own(real) or self._is_output(real) or self._is_store(real)
        if ours:
            self.skipped.add(real)
        return ours

    def is_own(self, real: str) -> bool:
        """Whether a path without links lies in a folder that this run writes."""
        return any(real == own or real.startswith(os.path.join(own, "")) for own in self.own)

    def _matching(self, folder: str, part: str) -> Iterator[tuple[str, str]]:
        """What is in a folder that one part of a pattern matches, and its kind."""
        names = [part]
        if _MAGIC.search(part):
            there = self.tree.names(folder)
            shown = (name for name in there if part.startswith(".") or not name.startswith("."))
            names = [name for name in shown if part == _ANY or fnmatchcase(name, part)]
        for name in names:
            path = os.path.join(folder, name)
            yield path, self.tree.kind(path)

    def _is_store(self, folder: str) -> bool:
        for path in (os.path.join(folder, name) for name in (FORMAT_FILE, HEAD)):
            if self.tree.kind(path) == "file":
                with open_source(self.tree.source(path)) as file:
                    if tells_of_store(file.read()):
                        return True
        return False

    def _is_output(self, folder: str) -> bool:
        """Whether a folder holds an output or an export, or what a run that was killed while it wrote one has left."""
        names = self.tree.names(folder)
        place = self.tree.place(folder)
        # A neighbour with a manifest is like an export of old, which held its own.
        there = OLD_EXPORT_MANIFEST in names or (
            self.tree.kind(str(file_at(place, EXPORT_MANIFEST))) == "file"
        )
        if there and read_manifest(place, EXPORT_MANIFEST, replaced=True) is not None:
            return True
        return any(name == MANIFEST or name.startswith(TEMPORARY) for name in names)


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(
        f"input.paths: {path} cannot be listed: {error.strerror}; make it readable for this user, or name what else "
        "is to be read"
    )


def _ending(name: str) -> str:
    """The end of a name that says what a file holds: `.csv`, `.jsonl.zip`, `.csv.gz`."""
    *_, before, last = ("", "", *Path(name.lower()).suffixes)
    both = before in (*JSONL_SUFFIXES, *PARQUET_SUFFIXES) or last in CODECS
    return (before + last if both else last) or "without suffix"
