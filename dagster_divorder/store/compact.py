"""Rewrites fragments: merges small ones, and removes deleted rows.

Rows of every stage's results are copied, never computed again. The order of the steps keeps every state on disk valid:
new fragments with their stage results are written first, then the view (by the caller); then the old fragments are
removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dagster_divorder.store.arrays import pack_table, row_array, unpack, unpack_table
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import (
    FRAGMENT_BYTES,
    FRAGMENT_ROWS,
    Fragments,
    fragment_name,
    index_column,
    read_content,
)
from dagster_divorder.store.stages import put_arrays
from dagster_divorder.store.view import Fragment, offsets

RAGGED = {"ids": "lengths"} | dict.fromkeys(("span_first", "span_last", "span_kind"), "spans")
"""For arrays of results with several items a row: the array with the number of items."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """Fragments after rewriting.

    row: old row -> new row, -1 for a removed row, int64 (old rows,). dropped: names of replaced fragments.
    """

    fragments: tuple[Fragment, ...]
    row: np.ndarray
    dropped: tuple[str, ...]


def compact(
    store: Store,
    folder: str,
    fragments: Sequence[Fragment],
    used: np.ndarray,
    stage_folders: Sequence[str],
    *,
    drop_unused: bool,
) -> Compacted:
    """Rewrites fragments that are less than half full or, with `drop_unused`, have unused rows.

    Args:
        folder: folder of these fragments.
        used: rows that a record still needs, bool (rows of all fragments,).
        stage_folders: folders of per-fragment results whose rows are copied too.
        drop_unused: remove unused rows.
    """
    stored = Fragments(store, folder)
    start = offsets(fragments)
    sizes = index_column(store, folder, fragments, "size")
    keep = used if drop_unused else np.ones_like(used)
    kept: list[Fragment] = []
    row = np.full(len(used), -1, dtype=np.int64)
    dropped: list[str] = []
    at = 0
    present = {stage: store.hashed(stage) for stage in stage_folders}
    computed = [
        frozenset(stage for stage, files in present.items() if fragment.name in files)
        for fragment in fragments
    ]
    live = [
        (int(keep[low:high].sum()), int(sizes[low:high][keep[low:high]].sum()))
        for low, high in pairwise(start)
    ]
    for group in _groups(fragments, live, computed):
        members = [fragments[number] for number in group]
        picks = [np.flatnonzero(keep[start[number] : start[number + 1]]) for number in group]
        size = sum(len(pick) for pick in picks)
        if len(group) == 1 and size == members[0].rows:
            kept.append(members[0])
        else:
            dropped += [member.name for member in members]
            if size:
                kept.append(_merge(store, stored, members, picks, computed[group[0]]))
        for number, pick in zip(group, picks, strict=True):
            row[start[number] + pick] = np.arange(at, at + len(pick))
            at += len(pick)
    names = {fragment.name for fragment in kept}
    return Compacted(tuple(kept), row, tuple(name for name in dropped if name not in names))


def is_small(fragment: Fragment) -> bool:
    """Whether a fragment may be merged, by its number of rows; a few large rows may still fill it by their bytes."""
    return 2 * fragment.rows < FRAGMENT_ROWS


def _groups(
    fragments: Sequence[Fragment], live: Sequence[tuple[int, int]], computed: Sequence[frozenset[str]]
) -> Iterator[list[int]]:
    """Groups of neighbouring fragments that become one: fragments with rows to drop or less than half full, up to a
    full fragment. A group has results of the same stages, so that no result is lost. live: rows and bytes kept of
    each."""
    group: list[int] = []
    full = np.array([FRAGMENT_ROWS, FRAGMENT_BYTES])
    size = np.zeros(2, dtype=np.int64)
    for number, fragment in enumerate(fragments):
        kept = np.array(live[number])
        rewrite = kept[0] < fragment.rows or (2 * kept < full).all()
        if group and (not rewrite or (size + kept > full).any() or computed[number] != computed[group[0]]):
            yield group
            group, size = [], np.zeros(2, dtype=np.int64)
        if rewrite:
            group.append(number)
            size = size + kept
        else:
            yield [number]
    if group:
        yield group


def _merge(
    store: Store,
    stored: Fragments,
    members: Sequence[Fragment],
    picks: Sequence[np.ndarray],
    stage_folders: Iterable[str],
) -> Fragment:
    indexes = store.hashed(f"{stored.folder}/index")
    parts = [unpack(store.read_verified(indexes[member.name])) for member in members]
    index = {
        column: np.concatenate([part[column][pick] for part, pick in zip(parts, picks, strict=True)])
        for column in parts[0]
    }
    content = pa.concat_arrays(
        [
            read_content(store, member.file).combine_chunks().take(row_array(pick))
            for member, pick in zip(members, picks, strict=True)
        ]
    )
    name = fragment_name(index)
    for folder in sorted(stage_folders):
        _merge_results(store, folder, name, members, picks)
    stored.put(content, index)
    return Fragment(name, stored.files()[name], len(content))


def _merge_results(
    store: Store,
    folder: str,
    name: str,
    members: Sequence[Fragment],
    picks: Sequence[np.ndarray],
) -> None:
    present = store.hashed(folder)
    files = [present[member.name] for member in members]
    if files[0].endswith(".arrow"):
        tables = [unpack_table(store.read_verified(file)) for file in files]
        taken = [table.take(row_array(pick)) for table, pick in zip(tables, picks, strict=True)]
        store.put_hashed(
            folder, name, pack_table(pa.concat_tables(taken, promote_options="permissive")), "arrow"
        )
        return
    parts = [
        take_rows(unpack(store.read_verified(file)), pick) for file, pick in zip(files, picks, strict=True)
    ]
    arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    put_arrays(store, folder, name, arrays)


def take_rows(arrays: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The given rows of a stage's result; arrays in RAGGED have several items a row."""
    taken = {}
    for key, array in arrays.items():
        if key in RAGGED:
            starts = np.concatenate([[0], np.cumsum(arrays[RAGGED[key]], dtype=np.int64)])
            pieces = [array[starts[row] : starts[row + 1]] for row in rows.tolist()]
            taken[key] = np.concatenate([array[:0], *pieces])
        else:
            taken[key] = array[rows]
    return taken
