"""Whether the input has changed since the last run read it, and a run may start: for the sensor of `defs.automation`.

Times and sizes come first: if they are those of the last answered check, nothing is read. A change has to be still for
`advanced.settle_seconds` by the watcher's own clock, whatever the files' times say. Then the input is compared with the
file states of the last run: if every byte is what that run read (a file was touched, or someone ran the pipeline by
hand), no run is needed. The first check knows no times, and compares at once.
A run that would change what a trainer may have read does not start before `order.frozen_tokens` is set
(`reordered.choice`): the change waits, and the reason says what to set.

Guarantee: a change is answered once, whether its run succeeds or fails, also across restarts of the watcher, since all
that it knows is in the cursor and in the store.
Cost: one `stat` per file, one listing per folder at a URL; after a change, hashing the files if no size differs and
they have CONTENT_BYTES at most.
Known weakness: in a larger input, or where a last line has no line feed, a touched file starts a run that then has
nothing new to do.
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
from dagster_divorder.store.sources import Source, identity, open_source
from dagster_divorder.store.state import load_receipt
from dagster_divorder.units import byte_size

CONTENT_BYTES = 2 << 30
"""A larger input is not hashed to confirm a change: a check has to end within a minute on a slow disk, too."""
_NAMED = 3
"""Files that a reason names, at most."""

_UNUSABLE = "unusable"
"""The state of an input that is missing or that no run could read."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a watcher remembers. seen: the state of the input that is answered. noticed: a later state, and since when
    (seconds since the epoch). waits: the state whose run waits for a choice, beside what was made until then, and its
    change in words."""

    seen: str | None = None
    noticed: str | None = None
    since: float = 0.0
    waits: tuple[str, str] | None = None

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str | None) -> Cursor:
        """A cursor from its JSON; a new one where there is none, or one that another version wrote."""
        try:
            return TypeAdapter(cls).validate_json(text) if text else cls()
        except ValidationError:
            return cls()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one check of the input: whether to start a run, why (or why not), and what to remember. settling:
    the seconds for which a change still has to be still."""

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
        now: seconds since the epoch, by the clock of every check.
        in_progress: says which run is under way, None if there is none; called only where a run may have to start.
    """
    try:
        files = _stat_all(settings)
    except InputError as error:
        return Outcome(False, f"{error}. A run starts once there is input.", replace(cursor, seen=_UNUSABLE))
    state = xxhash.xxh3_128_hexdigest(orjson.dumps([(str(file.path), file.identity) for file in files]))
    if state == cursor.seen:
        return Outcome(False, f"no change in {_count(files)}", cursor)
    if busy := in_progress():
        return Outcome(False, f"{busy}; the input is looked at again when it has ended", cursor)
    waiting = f"{state} {_last_made(settings)}"
    if cursor.waits and cursor.waits[0] == waiting and (asked := _choice(settings)):
        return _wait(cursor, cursor.waits, asked)
    read = _file_states(settings)
    if read is None and cursor.seen is None:
        reason = (
            f"nothing was ever made of this input ({_count(files)}): materialise it once (Materialize all, or the job "
            "curate); from then on every change starts a run by itself"
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
        wait = f"a run starts once the input has been still for {settings.advanced.settle_seconds:g} s"
        return Outcome(False, f"changed: {change}; {wait}", cursor, settling)
    changes = changes or _changed_contents(files, read or [])
    unfinished = None if changes else _unfinished(graph, settings)
    if not changes and unfinished is None:
        return Outcome(
            False, f"only times differ: {_count(files)}, every byte as the last run read it", answered
        )
    reason = unfinished or _few(changes)
    if asked := _choice(settings):
        return _wait(cursor, (waiting, reason), asked)
    return Outcome(True, reason, answered)


def _wait(cursor: Cursor, waits: tuple[str, str], asked: str) -> Outcome:
    """The change stays unanswered. asked: what is to be set."""
    reason = f"{waits[1]}; no run starts by itself: {asked}; then reload the code location"
    return Outcome(False, reason, replace(cursor, waits=waits))


def _choice(settings: Settings) -> str:
    try:
        return choice(settings)
    except DivOrderError:  # a run says what is wrong
        return ""


def _last_made(settings: Settings) -> str:
    """Names what the last run has read and written, whoever started it."""
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
            raise InputError(f"{path} cannot be looked at: {error.strerror}") from None
        files.append(_File(path, int(known_by[0]), known_by))
    return files


def _file_states(settings: Settings) -> list[FileState] | None:
    """The files as the last run on the store read them, None if there was no run."""
    try:
        store = store_of(settings.store).open(create=False)
        receipt = load_receipt(store, "raw_docs")
        return load_file_states(store, receipt.files["readings"]) if receipt else None
    except DivOrderError:
        # The next run finds and mends the damage.
        return []


def _unfinished(graph: Graph, settings: Settings) -> str | None:
    """Why the output under these settings does not have all that was read last; None where it has."""
    try:
        store = store_of(settings.store).open(create=False)
        if Run(settings, store, graph).is_current(OUTPUT):
            return None
        if _output_is_of_last_run(store):
            return "the last run had other settings, or another version of DivOrder"
    except DivOrderError:  # a run mends the damage
        pass
    return "the last run did not come to its end"


def _output_is_of_last_run(store: Store) -> bool:
    """Whether the output was made from the current results of the stages before it, whatever the settings."""
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
        return [f"times of {_count(files)}, which are too large to look into"]
    known = KnownFiles(states, size)
    return [f"{file.path.name} has other content" for file in files if not _is_unchanged(file.path, known)]


def _is_unchanged(path: Source, known: KnownFiles) -> bool:
    if known.tagged(path):
        return True
    try:
        with open_source(path) as file:
            # The size is that of the last run, so a prefix of that size is the whole file.
            unchanged = known.unchanged(file, str(path))
    except (OSError, InputError):
        return False
    return unchanged is not None and unchanged[0].path == str(path)


def _with_content(files: Sequence[_File]) -> list[_File]:
    """The files that are not empty: an empty file has no state."""
    return [file for file in files if file.size]


def _few(changes: Sequence[str]) -> str:
    more = [f"and {len(changes) - _NAMED:,} more"] if len(changes) > _NAMED else []
    return ", ".join([*changes[:_NAMED], *more])


def _count(files: Sequence[_File]) -> str:
    return f"{len(files):,} input file{'s' if len(files) != 1 else ''}"
