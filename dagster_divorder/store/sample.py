"""Samples for fits: documents by rising id, a random order independent of input order and fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pyarrow as pa

from dagster_divorder.chats.document import all_words
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import DOCUMENTS, index_column, index_parts, read_content
from dagster_divorder.store.view import Fragment, View, by_fragment, offsets

CLIP_BYTES = 1 << 16
"""A text sample takes at most this many UTF-8 bytes of a document, so that no book crowds out the rest."""

MAX_DOCUMENTS = 1 << 18
"""A text sample has at most this many documents: even a short document takes memory during a fit."""

READERS = 2
"""Threads that decompress fragments; decompression releases the interpreter's lock."""


KEPT_BYTES = 1 << 20
_kept: tuple[tuple[Fragment, ...], np.ndarray, list[str]] = ((), np.empty(0, np.int64), [])
"""(fragments, rows, texts) of the beginning of the last sample: several stages of a run begin with the same one, and
reading it decompresses all documents."""


def document_ids(store: Store, view: View) -> np.ndarray:
    """Ids of all document rows of a view, uint64 (rows, 2)."""
    return index_column(store, DOCUMENTS, view.documents, "id")


def document_sizes(store: Store, view: View) -> np.ndarray:
    """Bytes of the texts of all document rows of a view, int64 (rows,)."""
    return index_column(store, DOCUMENTS, view.documents, "size")


def used_halves(store: Store, view: View) -> np.ndarray:
    """First half of each used document's id, by row, uint64 (documents,)."""
    used, start = view.used_documents(), offsets(view.documents)
    parts = index_parts(store, DOCUMENTS, view.documents, "id")
    return np.concatenate(
        [ids[used[low : low + len(ids)], 0] for low, ids in zip(start, parts, strict=False)]
    )


def rows_by_id(
    store: Store, view: View, most: int | None = None, without: np.ndarray | None = None
) -> np.ndarray:
    """Rows of used documents by rising id, int64: the first `most`, or all if None. without: documents to leave out,
    bool (rows,). Memory: ids of four times `most` documents."""
    used = view.used_documents()
    if without is not None:
        used &= ~without
    return first_by_id(index_parts(store, DOCUMENTS, view.documents, "id"), used, most)


def first_by_id(parts: Iterable[np.ndarray], used: np.ndarray, most: int | None = None) -> np.ndarray:
    """Rows of used documents by rising id, int64: the first `most`, or all if None. parts: ids, each part uint64
    (n, 2), N ids in all. used: bool (N,)."""
    low_ids, low_rows, first = [np.empty((0, 2), np.uint64)], [np.empty(0, np.int64)], 0
    limit, count = np.uint64(2**64 - 1), 0
    for ids in parts:
        inside = np.flatnonzero(used[first : first + len(ids)])
        inside = inside[ids[inside, 0] <= limit]
        low_ids.append(ids[inside])
        low_rows.append(inside + first)
        first, count = first + len(ids), count + len(inside)
        if most is not None and count > 2 * most:
            kept_ids, kept_rows = np.concatenate(low_ids), np.concatenate(low_rows)
            limit = np.partition(kept_ids[:, 0], most)[most]
            low = kept_ids[:, 0] <= limit
            low_ids, low_rows, count = [kept_ids[low]], [kept_rows[low]], int(low.sum())
    ids, rows = np.concatenate(low_ids), np.concatenate(low_rows)
    return rows[np.lexsort((ids[:, 1], ids[:, 0]))][:most]


def sample_texts(store: Store, view: View, rows: np.ndarray, max_bytes: int) -> list[str]:
    """Clipped texts of the first documents of `rows`, int64 (n,): at most `max_bytes` in all, but at least one
    text."""
    total = np.cumsum(np.minimum(document_sizes(store, view)[rows], CLIP_BYTES))
    rows = rows[: max(1, int(np.searchsorted(total, max_bytes, side="right")))]
    global _kept
    fragments, first, known = _kept
    if fragments == view.documents and np.array_equal(first[: len(rows)], rows):
        return known[: len(rows)]
    # CLIP_BYTES characters have at least CLIP_BYTES bytes.
    texts: list[str] = [
        text if len(text) <= CLIP_BYTES // 4 else text.encode()[:CLIP_BYTES].decode(errors="ignore")
        for text in beginnings(store, view, rows, CLIP_BYTES).to_pylist()
    ]
    first = rows[: np.searchsorted(total, KEPT_BYTES, side="right")]
    _kept = view.documents, first, texts[: len(first)]
    return texts


def beginnings(store: Store, view: View, rows: np.ndarray, characters: int) -> pa.Array:
    """First characters of each row's document, large_string (n,), in the order of `rows`."""
    import pyarrow.compute as pc

    return contents(
        store, view.documents, rows, lambda texts: pc.utf8_slice_codeunits(all_words(texts), 0, characters)
    )


EXAMPLE_CHARACTERS = 200


def first_lines(store: Store, view: View, rows: np.ndarray) -> list[str]:
    """First EXAMPLE_CHARACTERS of each row's document, as one line."""
    texts = beginnings(store, view, rows, 4 * EXAMPLE_CHARACTERS).to_pylist()
    return [" ".join(text.split())[:EXAMPLE_CHARACTERS] for text in texts]


def contents(
    store: Store,
    fragments: tuple[Fragment, ...],
    rows: np.ndarray,
    transform: Callable[[pa.ChunkedArray], pa.ChunkedArray] = lambda content: content,
) -> pa.Array:
    """Content of rows of fragments laid end to end, in the order of `rows`, int64 (n,). transform: applied to each
    fragment's content.

    Raises:
        StoreError: a fragment is missing or damaged.
    """
    by_number = list(by_fragment(fragments, rows))
    if not by_number:
        return pa.nulls(0, pa.large_string())

    def read(part: tuple[int, np.ndarray, np.ndarray]) -> list[pa.Array]:
        number, _, inside = part
        content = read_content(store, fragments[number].file).take(row_array(inside))
        chunks: list[pa.Array] = transform(content).chunks
        return chunks

    with ThreadPoolExecutor(READERS, thread_name_prefix="divorder-sample") as threads:
        chunks = list(chain.from_iterable(threads.map(read, by_number)))
    place = np.empty(len(rows), np.int64)
    place[np.concatenate([places for _, places, _ in by_number])] = np.arange(len(rows))
    return pa.concat_arrays(chunks).take(row_array(place))
