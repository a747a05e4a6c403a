"""Matches rows of the user's own files with records, by their keys (`corpus.keyed`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dagster_divorder.corpus.keyed import KeyedBy
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run, ToBeMadeError
from dagster_divorder.stages.corpus.ids import IDS, id_hashes, own_ids
from dagster_divorder.stages.corpus.raw_docs import record_index
from dagster_divorder.store.ids import IdIndex, distinct
from dagster_divorder.store.sample import document_ids


class KeyedRecords(NamedTuple):
    """Records by their keys.

    find: a function of (row, keys), with the keys of consecutive rows of the file from `row` on, from `key_values`; it
    returns the first record with each key, int64 (n,), -1 if there is none. key: int64 (N,), equal for records with the
    same key, -1 for a record without one.
    """

    find: Callable[[int, np.ndarray], np.ndarray]
    key: np.ndarray


def keyed_records(run: Run, keyed_by: KeyedBy, path: Path) -> KeyedRecords:
    """The records of the view by a key. path: the file, for messages.

    Raises:
        InputError: records of different texts have the same own id; `row` beside refused records. The function `find`
            raises it for a row number without a record.
    """
    view, refused = run.view, run.receipt("raw_docs").facts["rejected_records"]
    if keyed_by == "row":
        # A .npy has exactly a row for each record.
        if refused and path.suffix.lower() == ".parquet":
            raise InputError(
                f"{path}: 'row' counts accepted records; the input has {len(view):,}, or {len(view) + refused:,} with "
                "the refused ones, and a number may count either: name records by record_id, as in "
                "load_results(store).documents, or by ids of your own"
            )

        def by_row(first: int, keys: np.ndarray) -> np.ndarray:
            for at in np.flatnonzero((keys < 0) | (keys >= len(view)))[:1]:
                raise InputError(
                    f"{path}: 'row' is {keys[at]} in row {first + at}; expected the number of a record, 0 to "
                    f"{len(view) - 1:,}: number the records in input order from 0"
                )
            return keys

        return KeyedRecords(by_row, np.arange(len(view)))

    index = IdIndex()
    if keyed_by == "id":
        if run.planning and IDS.missing(run, run.receipt("ids").key):
            raise ToBeMadeError("ids")
        records, hashes = id_hashes(run.files("ids"), view)
        once, document = distinct(hashes), view.document_row[records]
        shared = np.flatnonzero(document != document[once.first][once.inverse])
        for at in shared[:1]:
            raise InputError(
                f"{path} is joined by {run.settings.input.id_field!r}, but {len(shared):,} records share their id with "
                f"a record of another text, the first {own_ids(run, records[[at]])[0]!r}; expected a different id for "
                "each text: make the ids unique, or join by record_id (load_results(store).documents has it)"
            )
        index.add(hashes[once.first])
        position = np.append(records[once.first], -1)
        key = np.full(len(view), -1, np.int64)
        key[records] = once.inverse
    elif keyed_by == "doc_id":
        index.add(document_ids(run.store, view))
        key = view.document_row.astype(np.int64)
        position = first_of(key, view.document_rows)
    else:
        index.add(record_index(run, "id"))
        key = view.record_row.astype(np.int64)
        position = first_of(key, index.size)
    return KeyedRecords(lambda first, keys: position[index.find(keys)], key)


def first_of(codes: np.ndarray, size: int) -> np.ndarray:
    """The first place of each code in [0, size), int64 (size + 1,); -1 for codes that do not occur, and for the code
    -1."""
    first = np.full(size + 1, -1, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first
