"""Samples for fits: documents by rising id, which is a random order that neither input order nor fragments change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pyarrow as pa

from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import DOCUMENTS, index_column, index_parts, read_content
from dagster_divorder.store.view import Fragment, View, by_fragment, offsets

CLIP_BYTES = 1 << 16
"""A document enters a text sample with at most this many UTF-8 bytes, so that no book crowds out the rest."""

MAX_DOCUMENTS = 1 << 18
"""A text sample has at most this many documents: short as they may be, each takes memory while it is learnt from."""

READERS = 2
"""Fragments that are decompressed at once, without the interpreter's lock."""


def document_ids(store: Store, view: View) -> np.ndarray:
    """Ids of all document rows of a view, uint64 (rows, 2)."""
    return index_column(store, DOCUMENTS, view.documents, "id")


def document_sizes(store: Store, view: View) -> np.ndarray:
    """Bytes of the texts of all document rows of a view, int64 (rows,)."""
    return index_column(store, DOCUMENTS, view.documents, "size")


def used_halves(store: Store, view: View) -> np.ndarray:
    """The first half of the id of every used document, by row, uint64 (documents,)."""
    used, start = view.used_documents(), offsets(view.documents)
    parts = index_parts(store, DOCUMENTS, view.documents, "id")
    return np.concatenate(
        [ids[used[low : low + len(ids)], 0] for low, ids in zip(start, parts, strict=False)]
    )


def rows_by_id(
    store: Store, view: View, most: int | None = None, without: np.ndarray | None = None
) -> np.ndarray:
    """Rows of the used documents, but for those of `without`, bool (rows,), by rising id, int64; the first `most`, or
    all. Ids of no more than four times as many are held."""
    used = view.used_documents()
    if without is not None:
        used &= ~without
    return first_by_id(index_parts(store, DOCUMENTS, view.documents, "id"), used, most)


def first_by_id(parts: Iterable[np.ndarray], used: np.ndarray, most: int | None = None) -> np.ndarray:
    """The used rows, bool (N,), by rising id, int64; the first `most`, or all. parts: the ids, uint64 (n, 2) each, N in
    all."""
    held, rows, first = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)], 0
    limit, count = np.uint64(2**64 - 1), 0
    for ids in parts:
        inside = np.flatnonzero(used[first : first + len(ids)])
        inside = inside[ids[inside, 0] <= limit]
        held.append(ids[inside])
        rows.append(inside + first)
        first, count = first + len(ids), count + len(inside)
        if most is not None and count > 2 * most:
            held, rows = [np.concatenate(held)], [np.concatenate(rows)]
            limit = np.partition(held[0][:, 0], most)[most]
            low = held[0][:, 0] <= limit
            held, rows, count = [held[0][low]], [rows[0][low]], int(low.sum())
    found, of = np.concatenate(held), np.concatenate(rows)
    return of[np.lexsort((found[:, 1], found[:, 0]))][:most]


def sample_texts(store: Store, view: View, rows: np.ndarray, max_bytes: int) -> list[str]:
    """Texts of the first documents of `rows`, int64 (n,), each clipped: at most `max_bytes` of them, and at least
    one."""
    total = np.cumsum(np.minimum(document_sizes(store, view)[rows], CLIP_BYTES))
    rows = rows[: max(1, int(np.searchsorted(total, max_bytes, side="right")))]
    # So many characters are as many bytes or more.
    texts: list[str] = beginnings(store, view, rows, CLIP_BYTES).to_pylist()
    return [
        text if len(text) <= CLIP_BYTES // 4 else text.encode()[:CLIP_BYTES].decode(errors="ignore")
        for text in texts
    ]


def beginnings(store: Store, view: View, rows: np.ndarray, characters: int) -> pa.Array:
    """The first characters of the texts of some document rows, large_string (n,), in the order of `rows`."""
    import pyarrow.compute as pc

    return contents(store, view.documents, rows, lambda texts: pc.utf8_slice_codeunits(texts, 0, characters))


EXAMPLE_CHARACTERS = 200


def first_lines(store: Store, view: View, rows: np.ndarray) -> list[str]:
    """How the texts of some document rows begin, in one line of EXAMPLE_CHARACTERS each."""
    read = beginnings(store, view, rows, 4 * EXAMPLE_CHARACTERS)
    return [" ".join(text.split())[:EXAMPLE_CHARACTERS] for text in read.to_pylist()]


def contents(
    store: Store,
    fragments: tuple[Fragment, ...],
    rows: np.ndarray,
    of: Callable[[pa.ChunkedArray], pa.ChunkedArray] = lambda content: content,
) -> pa.Array:
    """Content of some rows, int64 (n,), of fragments laid end to end, or what `of` makes of it, in the order of `rows`;
    all of it is held.

    Raises:
        StoreError: a fragment is missing or damaged.
    """
    held = list(by_fragment(fragments, rows))
    if not held:
        return pa.nulls(0, pa.large_string())

    def read(part: tuple[int, np.ndarray, np.ndarray]) -> list[pa.Array]:
        at, _, inside = part
        chunks: list[pa.Array] = of(read_content(store, fragments[at].file).take(row_array(inside))).chunks
        return chunks

    with ThreadPoolExecutor(READERS, thread_name_prefix="divorder-sample") as threads:
        parts = list(chain.from_iterable(threads.map(read, held)))
    place = np.empty(len(rows), np.int64)
    place[np.concatenate([places for _, places, _ in held])] = np.arange(len(rows))
    return pa.concat_arrays(parts).take(row_array(place))
