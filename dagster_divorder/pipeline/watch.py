"""Decides for the sensor of `defs.automation` whether the input has changed since the last run, and a run may start.

A check first compares times and sizes with the last answered check; if they are equal, it reads nothing. After a
change, the input must stay unchanged for `advanced.settle_seconds` by the watcher's clock. Then the check compares it
with the file states of the last run: if that run read every byte (a file was touched, or someone ran the pipeline by
hand), no run starts. The first check has no times to compare and compares contents at once.
If a run would change rows that a trainer may have read, the change waits until `order.frozen_tokens` is set
(`reordered.choice`); the reason says what to set.

Guarantee: a change starts one run, whether the run succeeds or fails, and even if the watcher restarts, because its
memory is in the cursor and in the store.
Cost: one `stat` per file, one listing per folder at a URL; after a change that leaves all sizes equal, hashing the
local files if they have at most CONTENT_BYTES.
Known weakness: a touched file starts a run with nothing new to do if the input is larger, a last line has no line feed,
or the file is at a URL and was written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import orjson
import xxhash
from pydantic import TypeAdapter, ValidationError

from dagster_divorder.corpus.file_states import FileState, KnownFiles, load_file_states
from dagster_divorder.corpus.find import find_inputs
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.pipeline.graph import OUTPUT, Graph
from dagster_divorder.pipeline.reordered import choice
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.store.base import Store
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.sources import RemoteFile, Source, identity, open_source
from dagster_divorder.store.state import load_receipt
from dagster_divorder.units import byte_size

CONTENT_BYTES = 2 << 30
"""A larger input is not hashed to confirm a change: even on a slow disk a check has to end within a minute."""
_NAMED = 3
"""Most files that a reason names."""

_UNUSABLE = "unusable"
"""The state of an input that is missing or unreadable."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a watcher remembers. seen: the answered state of the input. noticed, since: a later state, and when it was
    first seen (seconds since 1970). waits: the state, with the last results, whose run waits for a choice; and its
    change in words."""

    seen: str | None = None
    noticed: str | None = None
    since: float = 0.0
    waits: tuple[str, str] | None = None

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str | None) -> Cursor:
        """A cursor from its JSON; a new cursor if there is none, or if another version wrote it."""
        try:
            return TypeAdapter(cls).validate_json(text) if text else cls()
        except ValidationError:
            return cls()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one check of the input: whether to start a run, why (or why not), and what to remember. settling:
    seconds until a change has settled."""

    start: bool
    reason: str
    cursor: Cursor
    settling: float = 0.0


class _File(NamedTuple):
    path: Source
    size: int
    identity: tuple[int | str, ...]


def check_input(
    graph: Graph, settings: Settings, cursor: Cursor, now: float, in_progress: Callable[[], str | None]
) -> Outcome:
    """Check the input once.

    Args:
        now: seconds since 1970, by the same clock in every check.
        in_progress: names the run under way, None if there is none; called only if a run may have to start.
    """
    try:
        files = _stat_all(settings)
    except InputError as error:
        return Outcome(False, f"{error}. A run starts once there is input.", replace(cursor, seen=_UNUSABLE))
    state = xxhash.xxh3_128_hexdigest(orjson.dumps([(str(file.path), file.identity) for file in files]))
    if state == cursor.seen:
        return Outcome(False, f"no change in {_count(files)}", cursor)
    if busy := in_progress():
        return Outcome(False, f"{busy}; the input is checked again after that run", cursor)
    waiting = f"{state} {_last_made(settings)}"
    if cursor.waits and cursor.waits[0] == waiting and (asked := _choice(settings)):
        return _wait(cursor, cursor.waits, asked)
    read = _file_states(settings)
    if read is None and cursor.seen is None:
        reason = (
            f"nothing was made of this input yet ({_count(files)}): materialise it once (Materialize all, or the job "
            "curate); from then on every change starts a run"
        )
        return Outcome(False, reason, Cursor(seen=state))
    changes = _changed_sizes(files, read or [])
    answered = Cursor(seen=state)
    if (
        cursor == Cursor()
        and not changes
        and not _changed_contents(files, read or [])
        and _unfinished(graph, settings) is None
    ):
        return Outcome(False, f"no change in {_count(files)} since the last run", answered)
    if state != cursor.noticed or now < cursor.since:
        cursor = replace(cursor, noticed=state, since=now)
    settling = cursor.since + settings.advanced.settle_seconds - now
    if settling > 0:
        change = _few(changes) or f"times of {_count(files)}"
        wait = f"a run starts once the input has not changed for {settings.advanced.settle_seconds:g} s"
        return Outcome(False, f"changed: {change}; {wait}", cursor, settling)
    changes = changes or _changed_contents(files, read or [])
    unfinished = None if changes else _unfinished(graph, settings)
    if not changes and unfinished is None:
        return Outcome(False, f"only times differ: {_count(files)}, all bytes as in the last run", answered)
    reason = unfinished or _few(changes)
    if asked := _choice(settings):
        return _wait(cursor, (waiting, reason), asked)
    return Outcome(True, reason, answered)


def _wait(cursor: Cursor, waits: tuple[str, str], asked: str) -> Outcome:
    """Leave the change unanswered. asked: what to set."""
    reason = f"{waits[1]}; no run starts yet: {asked}; then reload the code location"
    return Outcome(False, reason, replace(cursor, waits=waits))


def _choice(settings: Settings) -> str:
    try:
        return choice(settings)
    except DivOrderError:  # a run reports the error
        return ""


def _last_made(settings: Settings) -> str:
    """The versions of the last run's input and output, whoever started the run."""
    try:
        store = store_of(settings.store).open(create=False)
        receipts = [load_receipt(store, stage) for stage in ("raw_docs", OUTPUT)]
        return " ".join(receipt.version for receipt in receipts if receipt)
    except DivOrderError:
        return ""


def _stat_all(settings: Settings) -> list[_File]:
    files = []
    for path in (file for group in find_inputs(settings) for file in group.files):
        try:
            known_by = identity(path)
        except OSError as error:
            raise InputError(f"{path} cannot be accessed: {error.strerror}") from None
        files.append(_File(path, int(known_by[0]), known_by))
    return files


def _file_states(settings: Settings) -> list[FileState] | None:
    """The files as the last run on the store read them; None if there was no run."""
    try:
        store = store_of(settings.store).open(create=False)
        receipt = load_receipt(store, "raw_docs")
        return load_file_states(store, receipt.files["readings"]) if receipt else None
    except DivOrderError:
        # The next run finds and repairs the damage.
        return []


def _unfinished(graph: Graph, settings: Settings) -> str | None:
    """Why the output under these settings lacks some of the input last read; None if it has all."""
    try:
        store = store_of(settings.store).open(create=False)
        if Run(settings, store, graph).is_current(OUTPUT):
            return None
        if _output_is_of_last_run(store):
            return "the last run had other settings, or another version of DivOrder"
    except DivOrderError:  # a run repairs the damage
        pass
    return "the last run did not finish"


def _output_is_of_last_run(store: Store) -> bool:
    """Whether the output was made from the current results of the stages before it, under any settings."""
    visited, waiting = set[str](), [(OUTPUT, "")]
    while waiting:
        stage, version = waiting.pop()
        receipt = load_receipt(store, stage)
        if receipt is None or version not in ("", receipt.version):
            return False
        if stage not in visited:
            visited.add(stage)
            waiting += receipt.upstream.items()
    return True


def _changed_sizes(files: Sequence[_File], states: Sequence[FileState]) -> list[str]:
    """Changes of names and sizes, in words."""
    before = {state.path: state.size for state in states}
    changes = []
    for file in _with_content(files):
        size = before.pop(str(file.path), None)
        if size is None:
            changes.append(f"{file.path.name} is new ({byte_size(file.size)})")
        elif size != file.size:
            more = "more" if file.size > size else "less"
            changes.append(f"{file.path.name} has {abs(file.size - size):,} bytes {more}")
    return changes + [f"{Path(path).name} is gone" for path in before]


def _changed_contents(files: Sequence[_File], states: Sequence[FileState]) -> list[str]:
    """Changes of contents in words, for files of unchanged sizes."""
    files = _with_content(files)
    if [str(file.path) for file in files] != [state.path for state in states]:
        return ["the files are in another order"]
    size = sum(file.size for file in files)
    if size > CONTENT_BYTES:
        return [f"times of {_count(files)}, which are too large to compare"]
    known = KnownFiles(states, size)
    return [f"{file.path.name} has other content" for file in files if not _is_unchanged(file.path, known)]


def _is_unchanged(path: Source, known: KnownFiles) -> bool:
    if isinstance(path, RemoteFile):
        return known.tagged(path) is not None
    try:
        with open_source(path) as file:
            # The size is as in the last run, so an unchanged prefix is the whole file.
            unchanged = known.unchanged(file, str(path))
    except OSError:
        return False
    return unchanged is not None and unchanged[0].path == str(path)


def _with_content(files: Sequence[_File]) -> list[_File]:
    """The files that are not empty, since an empty file has no state."""
    return [file for file in files if file.size]


def _few(changes: Sequence[str]) -> str:
    more = [f"and {len(changes) - _NAMED:,} more"] if len(changes) > _NAMED else []
    return ", ".join([*changes[:_NAMED], *more])


def _count(files: Sequence[_File]) -> str:
    return f"{len(files):,} input file{'s' if len(files) != 1 else ''}"
