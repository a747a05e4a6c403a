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
from dagster_divorder.store.ids import distinct, places


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

    if keyed_by == "id":
        if run.planning and IDS.missing(run, run.receipt("ids").key):
            raise ToBeMadeError("ids")
        records, hashes = id_hashes(run.files("ids"), view)
        once, document = distinct(hashes), run.copies[records]
        shared = np.flatnonzero(document != document[once.first][once.inverse])
        for at in shared[:1]:
            raise InputError(
                f"{path} is joined by {run.settings.input.id_field!r}, but {len(shared):,} records share their id with "
                f"a record of another text, the first {own_ids(run, records[[at]])[0]!r}; expected a different id for "
                "each text: make the ids unique, or join by record_id (load_results(store).documents has it)"
            )
        known, position = hashes[once.first], records[once.first]
        key = np.full(len(view), -1, np.int64)
        key[records] = once.inverse
    else:
        ids = (run.records.text_ids if keyed_by == "doc_id" else run.records.ids)(view.fragments)
        once = distinct(ids)
        known, position, key = ids[once.first], once.first, once.inverse

    def find(first: int, keys: np.ndarray) -> np.ndarray:
        at = places(keys, known)
        return np.where(at < 0, -1, position[at])

    return KeyedRecords(find, key)
