"""Computes and stores results of fragments where the engine runs them: in this process, a worker or another machine.

Rows of records that are known come from earlier results; only the rest is computed. Only the names of the results come
back. A name has the hash of the result's bytes, so a fragment is stored once even if it is computed twice, for example
because a worker died before it reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dagster_divorder.engine.base import Needs
from dagster_divorder.engine.progress import Advance
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import distinct, places
from dagster_divorder.store.stages import Result, StageFiles, joined, take
from dagster_divorder.store.view import Fragment, View, by_fragment, spans

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
    """A fragment without a result. new: its records to compute. copied: known rows. again: places of records whose
    texts are computed beforehand, and their numbers among these texts, int64 (2, n); None if `fragment` itself is some
    records of a fragment whose texts are computed beforehand."""

    fragment: Fragment
    new: Fragment
    copied: Sequence[Copied] = ()
    again: np.ndarray | None = None


def work_to_do(
    fragments: Fragments, view: View, files: StageFiles, *, by_text: bool = False, plan: bool = False
) -> list[Work]:
    """The fragments of a view without a result. Rows of records are copied from results whose fragments have left the
    view, by record id. by_text: from all results, by the hash of the text; new texts that repeat come first, each once.
    plan: nothing is copied; only the number of new records counts."""
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
    found = np.concatenate([places(ids, known) for ids in wanted])
    repeated, firsts = np.empty((2, 0), np.int64), np.empty(0, np.int64)
    if by_text:
        # Every occurrence of a new text that repeats, and the number of its text among these, by first occurrence.
        unknown = np.flatnonzero(found < 0)
        once = distinct(np.concatenate(wanted)[unknown])
        repeats = np.bincount(once.inverse, minlength=len(once.first)) > 1
        occurs = repeats[once.inverse]
        repeated = np.stack([unknown[occurs], (np.cumsum(repeats) - 1)[once.inverse[occurs]]])
        firsts = unknown[once.first[repeats]]
    works = [
        Work(picked := missing[number].pick(inside), picked)
        for number, _, inside in by_fragment(missing, firsts)
    ]
    for fragment, rows in zip(missing, spans(missing), strict=True):
        at = found[rows]
        low, high = np.searchsorted(repeated[0], [rows.start, rows.stop])
        again = repeated[:, low:high] - [[rows.start], [0]]
        new = at < 0
        new[again[0]] = False
        picked = fragment if new.all() else fragment.pick(np.flatnonzero(new))
        known_at = np.flatnonzero(at >= 0)
        copied = [
            Copied(present[rows_of[number].name], inside, known_at[where])
            for number, where, inside in (by_fragment(rows_of, at[known_at]) if not plan else ())
        ]
        works.append(Work(fragment, picked, copied, again))
    return works


@dataclass(frozen=True, slots=True)
class ComputeAndStore:
    """Computes the result of a fragment and stores it under a key. Picklable if `compute` is."""

    files: StageFiles
    compute: Callable[..., Result]

    def __call__(self, work: Work, **tells: Advance) -> int:
        """The number of computed records. tells: `advance` if `compute` takes it."""
        parts = [self.compute(work.new, **tells)] if work.new.rows else []
        parts += [take(self.files.get(copy.file), copy.rows) for copy in work.copied]
        result = joined(parts)
        if len(parts) > 1 or (work.again is not None and work.new.picks is not None):
            # The rows of `new` come first.
            new = np.arange(work.new.rows) if work.new.picks is None else work.new.picks
            at = np.concatenate([new, *(copy.places for copy in work.copied)])
            result = take(result, np.argsort(at))
        self.files.put(work.fragment.name, result)
        return work.new.rows


def with_repeats(works: Sequence[Work], files: StageFiles) -> list[Work]:
    """The works that are not done beforehand, with the rows of `files` that those have stored."""
    once, present, done = [work.fragment for work in works if work.again is None], files.present(), []
    for work in works:
        if work.again is not None:
            found = by_fragment(once, work.again[1])
            copied = [Copied(present[once[at].name], rows, work.again[0][where]) for at, where, rows in found]
            done.append(replace(work, copied=[*work.copied, *copied]))
    return done


def by_size(run: Run, works: Sequence[Work]) -> Needs:
    """One worker for each WORKER_BYTES of text."""
    return {"workers": sum(work.new.text_bytes for work in works) // WORKER_BYTES}
