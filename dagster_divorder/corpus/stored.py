"""The stored records of a corpus, and their texts, which are parsed where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagster_divorder.chats.document import all_words
from dagster_divorder.core.arrow import binary_array, plain_array
from dagster_divorder.corpus.parquet_rows import json_lines
from dagster_divorder.corpus.records import parse_lines, parse_rows
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import StoreError
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import distinct
from dagster_divorder.store.view import Fragment, View, by_fragment


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a corpus. kind: of its view. shapes: of its inputs. A conversation is a text too
    (`chats.document`). Methods raise DamagedFileError if a file is missing or damaged."""

    fragments: Fragments
    kind: str
    shapes: tuple[Shape, ...]

    def records(self, fragment: Fragment) -> pa.Array:
        """Records of a fragment as the output holds them: large_binary lines, or struct (rows,)."""
        content = self.fragments.content(fragment)
        as_lines = self.kind == "jsonl" and pa.types.is_struct(content.type)
        return binary_array(json_lines(content)) if as_lines else content

    def texts(self, fragment: Fragment) -> pa.Array:
        """Texts of the records of a fragment, large_string (rows,). Raises StoreError: these settings do not read the
        records of the fragment."""
        content, shape = self.fragments.content(fragment), self.shape_of(fragment)
        if pa.types.is_struct(content.type):
            parsed = parse_rows(pa.RecordBatch.from_struct_array(content), shape)
        else:
            parsed = parse_lines(content.to_pylist(), shape)
        if reason := next((each for each in parsed if isinstance(each, str)), None):
            raise StoreError(
                f"a stored record of fragment {fragment.name} has no text any more: {reason}; run again with the "
                "settings that it was read with, or set store.path to a new folder"
            )
        return binary_array([each for each in parsed if isinstance(each, bytes)]).view(pa.large_string())

    def words(self, fragment: Fragment) -> pa.Array:
        """Texts of the records of a fragment; of conversations without roles and control tokens."""
        return all_words(self.texts(fragment))

    def shape_of(self, fragment: Fragment) -> Shape:
        """The shape of the records of a fragment."""
        found = next((shape for shape in self.shapes if shape.key == fragment.shape), None)
        if found is None:
            raise StoreError(
                f"fragment {fragment.name} belongs to no input of these settings; run raw_docs first"
            )
        return found


CLIP_BYTES = 1 << 16
"""A text sample takes at most this many UTF-8 bytes of a document, so that no book crowds out the rest."""

MAX_DOCUMENTS = 1 << 18
"""A text sample has at most this many documents: even a short document takes memory during a fit."""


def records_by_text(
    records: Records, view: View, most: int | None = None, without: np.ndarray | None = None
) -> np.ndarray:
    """One record of each text, the first one, by rising hash of the text, int64: the first `most`, or all if None.
    without: records to leave out, bool (N,). Memory: some 60 bytes a record."""
    rows = np.arange(len(view)) if without is None else np.flatnonzero(~without)
    ids = records.fragments.column(view.fragments, "text")[rows]
    first = distinct(ids).first
    order = np.lexsort((ids[first, 1], ids[first, 0]))[:most]
    return rows[first[order]]


def sample_texts(records: Records, view: View, rows: np.ndarray, max_bytes: int) -> list[str]:
    """Clipped texts of the first records of `rows`, int64 (n,): at most `max_bytes` in all, but at least one text."""
    sizes = records.fragments.column(view.fragments, "text_size")
    total = np.cumsum(np.minimum(sizes[rows], CLIP_BYTES))
    rows = rows[: max(1, int(np.searchsorted(total, max_bytes, side="right")))]
    # CLIP_BYTES characters have at least CLIP_BYTES bytes.
    return [
        text if len(text) <= CLIP_BYTES // 4 else text.encode()[:CLIP_BYTES].decode(errors="ignore")
        for text in beginnings(records, view, rows, CLIP_BYTES).to_pylist()
    ]


def beginnings(records: Records, view: View, rows: np.ndarray, characters: int) -> pa.Array:
    """First characters of each record's words, large_string (n,), in the order of `rows`."""
    import pyarrow.compute as pc

    return contents(
        view.fragments, rows, lambda part: pc.utf8_slice_codeunits(records.words(part), 0, characters)
    )


EXAMPLE_CHARACTERS = 200


def first_lines(records: Records, view: View, rows: np.ndarray) -> list[str]:
    """First EXAMPLE_CHARACTERS of each record's text, as one line."""
    texts = beginnings(records, view, rows, 4 * EXAMPLE_CHARACTERS).to_pylist()
    return [" ".join(text.split())[:EXAMPLE_CHARACTERS] for text in texts]


def contents(
    fragments: Sequence[Fragment], rows: np.ndarray, read: Callable[[Fragment], pa.Array]
) -> pa.Array:
    """What `read` gives for records, in the order of `rows`, int64 (n,). read: takes some records of a fragment. Raises
    StoreError: a fragment is missing or damaged."""
    by_number = list(by_fragment(fragments, rows))
    if not by_number:
        return pa.nulls(0, pa.large_string())
    parts = [read(fragments[number].pick(inside)) for number, _, inside in by_number]
    place = np.empty(len(rows), np.int64)
    place[np.concatenate([places for _, places, _ in by_number])] = np.arange(len(rows))
    return pa.concat_arrays(parts).take(plain_array(place))
