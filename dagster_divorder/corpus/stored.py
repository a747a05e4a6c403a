"""The stored records of a corpus, and their texts, which are parsed where they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagster_divorder.chats.document import all_words
from dagster_divorder.core.arrow import binary_array
from dagster_divorder.corpus.parquet_rows import json_lines
from dagster_divorder.corpus.records import parse_lines, parse_rows
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import StoreError
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.view import Fragment


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
        return all_words(pa.chunked_array([self.texts(fragment)])).combine_chunks()

    def shape_of(self, fragment: Fragment) -> Shape:
        """The shape of the records of a fragment."""
        found = next((shape for shape in self.shapes if shape.key == fragment.shape), None)
        if found is None:
            raise StoreError(
                f"fragment {fragment.name} belongs to no input of these settings; run raw_docs first"
            )
        return found

    def ids(self, fragments: Sequence[Fragment]) -> np.ndarray:
        """Ids of records, uint64 (N, 2)."""
        return self.fragments.column(fragments, "id")

    def text_ids(self, fragments: Sequence[Fragment]) -> np.ndarray:
        """Hashes of the records' texts, uint64 (N, 2)."""
        return self.fragments.column(fragments, "text")
