"""Computes and stores results of fragments where the engine runs them: in this process, a worker or another machine.

Rows of records that are known come from earlier results; only the rest is computed. Only the names of the results come
back. A name has the hash of the result's bytes, so a fragment is stored once even if it is computed twice, for example
because a worker died before it reported.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from dagster_divorder.engine.base import Needs
from dagster_divorder.engine.progress import Advance
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import distinct, places
from dagster_divorder.store.stages import Result, StageFiles, joined, take
from dagster_divorder.store.view import Fragment, View, by_fragment

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run

WORKER_BYTES = 384 << 20
"""Text for each worker. A worker starts in a second and reaches full speed after another second, when gigatoken has
learnt the corpus's words; then it tokenises some 120 MB of text a second."""


class Copied(NamedTuple):
    """Rows of an earlier result, int64 (n,), and their places in the fragment."""

    file: str
    rows: np.ndarray
    places: np.ndarray


@dataclass(frozen=True, slots=True)
class Work:
    """A fragment without a result. new: its records to compute. copied: known rows. repeats: places of records whose
    texts an earlier new record has, and that record's number among all, int64 (2, n)."""

    fragment: Fragment
    new: Fragment
    copied: Sequence[Copied] = ()
    repeats: np.ndarray | None = None

    @property
    def places(self) -> np.ndarray:
        """Where the rows of `new`, then those of `copied`, belong, int64 (n,)."""
        new = np.arange(self.new.rows) if self.new.picks is None else self.new.picks
        return np.concatenate([new, *(copy.places for copy in self.copied)])


class StoredFragment(NamedTuple):
    """A fragment whose result is stored. rows: number of computed records. result: if it lacks rows and was not
    stored."""

    rows: int
    result: Result | None = None


def work_to_do(
    fragments: Fragments, view: View, files: StageFiles, *, by_text: bool = False, plan: bool = False
) -> list[Work]:
    """The fragments of a view without a result. Rows of records are copied from results whose fragments have left the
    view, by record id. by_text: from all results, by the hash of the text, and each new text is computed once. plan:
    nothing is copied; only the number of new records counts."""
    present = files.present()
    missing = [fragment for fragment in view.fragments if fragment.name not in present]
    if not missing:
        return []
    here = {fragment.name for fragment in view.fragments}
    stored = fragments.present()
    lost = [Fragment(name, 0) for name in present if name in stored and (by_text or name not in here)]
    column = "text" if by_text else "id"
    parts = list(fragments.parts(lost, column))
    known = np.concatenate([np.empty((0, 2), np.uint64), *parts])
    rows_of = [Fragment(old.name, len(part)) for old, part in zip(lost, parts, strict=True)]
    wanted = list(fragments.parts(missing, column))
    found = [places(ids, known) for ids in wanted]
    repeats = _repeats(wanted, found) if by_text else [None] * len(missing)
    works = []
    for fragment, at, again in zip(missing, found, repeats, strict=True):
        new = at < 0
        if again is not None:
            new[again[0]] = False
        picked = fragment if new.all() else fragment.pick(np.flatnonzero(new))
        known_at = np.flatnonzero(at >= 0)
        copied = [
            Copied(present[rows_of[number].name], inside, known_at[where])
            for number, where, inside in (by_fragment(rows_of, at[known_at]) if not plan else ())
        ]
        works.append(Work(fragment, picked, copied, again if again is not None and again.size else None))
    return works


def _repeats(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> list[np.ndarray]:
    """For each fragment: places of unknown texts that an earlier unknown one equals, and that one's number among the
    records of all these fragments, int64 (2, n)."""
    unknown = np.flatnonzero(np.concatenate(found) < 0)
    once = distinct(np.concatenate(wanted)[unknown])
    first = unknown[once.first][once.inverse]
    later = first != unknown
    ends = np.cumsum([len(ids) for ids in wanted])
    cuts = np.searchsorted(unknown[later], ends)[:-1]
    parts = np.split(np.stack([unknown[later], first[later]]), cuts, axis=1)
    starts = ends - [len(ids) for ids in wanted]
    return [part - np.array([[start], [0]]) for part, start in zip(parts, starts, strict=True)]


@dataclass(frozen=True, slots=True)
class ComputeAndStore:
    """Computes the result of a fragment and stores it under the stage's key. Picklable if `compute` is."""

    store: Store
    stage: str
    key: str
    compute: Callable[..., Result]

    def __call__(self, work: Work, **tells: Advance) -> StoredFragment:
        """tells: `advance` if `compute` takes it."""
        files = StageFiles(self.store, self.stage, self.key)
        parts = [self.compute(work.new, **tells)] if work.new.rows else []
        parts += [take(files.get(copy.file), copy.rows) for copy in work.copied]
        if work.repeats is not None:
            return StoredFragment(work.new.rows, joined(parts) if parts else None)
        result = joined(parts)
        if len(parts) > 1 or work.new.picks is not None:
            result = take(result, np.argsort(work.places))
        files.put(work.fragment.name, result)
        return StoredFragment(work.new.rows)


def store_with_repeats(
    files: StageFiles, works: Sequence[Work], stored: Iterable[StoredFragment]
) -> Iterator[StoredFragment]:
    """Adds the rows of repeated texts, and stores what lacked them. Results are arrays of fixed width. Memory: the rows
    of texts that repeat, on disk."""
    ends = np.cumsum([work.fragment.rows for work in works])
    firsts = np.unique(np.concatenate([work.repeats[1] for work in works if work.repeats is not None]))
    kept: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for work, end, part in zip(works, ends.tolist(), stored, strict=True):
            start, size = end - work.fragment.rows, work.fragment.rows
            low, high = np.searchsorted(firsts, [start, end])
            arrays: dict[str, np.ndarray] = {}
            if work.repeats is None and high > low:
                arrays = files.read(work.fragment)
            elif part.result is not None:
                assert not isinstance(part.result, pa.Table)
                for name, values in part.result.items():
                    arrays[name] = np.empty((size, *values.shape[1:]), values.dtype)
                    arrays[name][work.places] = values
            for name, values in arrays.items():
                if name not in kept:
                    shape = (len(firsts), *values.shape[1:])
                    kept[name] = np.memmap(f"{folder}/{name}", values.dtype, "w+", shape=shape)
                kept[name][low:high] = values[firsts[low:high] - start]
            if work.repeats is not None:
                again, slots = work.repeats[0], np.searchsorted(firsts, work.repeats[1])
                for name, rows in kept.items():
                    whole = arrays.setdefault(name, np.empty((size, *rows.shape[1:]), rows.dtype))
                    whole[again] = rows[slots]
                files.put(work.fragment.name, arrays)
            yield part._replace(result=None)
        kept.clear()


def by_size(run: Run, works: Sequence[Work]) -> Needs:
    """One worker for each WORKER_BYTES of text."""
    return {"workers": sum(work.new.text_bytes for work in works) // WORKER_BYTES}


def threaded_by_size(run: Run, works: Sequence[Work]) -> Needs:
    """As `by_size`, for a function that uses several threads."""
    return {**by_size(run, works), "threads": 0}
