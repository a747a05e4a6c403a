"""ids: the user's own ids of the records (`input.id_field`), as people see and give them.

Per fragment: a table with a row a record and the columns of `corpus.columns.extract_ids`: a whole number or a
text, neither if the record has no id. No order depends on it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import number_array, plain_array, text_array
from dagster_divorder.core.fields import value_at
from dagster_divorder.corpus.columns import extract, number_or_text
from dagster_divorder.corpus.find import find_inputs
from dagster_divorder.corpus.inputs import parse
from dagster_divorder.corpus.peek import unseen
from dagster_divorder.corpus.stored import Records
from dagster_divorder.errors import DamagedFileError, InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.store.ids import distinct, hash_all, hex_ids, places, words
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import load_receipt
from dagster_divorder.store.view import Fragment, View, offsets

ID_COLUMNS = pa.schema([("number", pa.int64()), ("text", pa.large_string())])
"""Columns of `extract_ids`."""

_RECORD_ID = re.compile("[0-9a-f]{32}")


def read_ids(files: StageFiles, view: View, records: np.ndarray) -> pa.ChunkedArray:
    """Own ids of the records at some input positions, int64 (Q,): int64 if all of them are whole numbers, else text;
    null for a record without an id.

    Only the fragments of these records are read, and no id becomes a Python object. Raises MissingStageError: a
    fragment has no result.
    """
    start = offsets(view.fragments)
    numbers, which = np.unique(np.searchsorted(start, records, side="right") - 1, return_inverse=True)
    fragments = [view.fragments[number] for number in numbers.tolist()]
    table = pa.concat_tables([pa.Table.from_batches([], ID_COLUMNS), *files.tables(fragments)])
    table = table.take(plain_array(records - start[numbers][which] + offsets(fragments)[which]))
    return number_or_text(*table.columns)


def record_names(run: Run, records: np.ndarray, prefix: str = "") -> list[str]:
    """The own ids of the records at some input positions, int64 (Q,); `prefix` and the record id if an own id is
    missing or empty."""
    names: list[str | None] = [None] * len(records)
    if run.settings.input.id_field is not None:
        names = read_ids(run.files("ids"), run.view, records).cast(pa.large_string()).to_pylist()
    # The index is large.
    ids = [] if all(names) else hex_ids(run.index("id")[records])
    return [name or prefix + ids[at] for at, name in enumerate(names)]


def find_records(
    run: Run, names: Collection[str], own: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    """Input positions of all records with some ids, own ids or record ids, int64 rising. own: `id_hashes`, if they are
    known. Raises InputError: no record of the input has one of the ids."""
    wanted, field = sorted(set(names)), run.settings.input.id_field
    record_ids = [name for name in wanted if _RECORD_ID.fullmatch(name)]
    hashes, ids = words(bytes.fromhex("".join(record_ids))), run.index("id")
    lookups = [(record_ids, hashes, np.arange(len(ids)), ids)]
    if field:
        hashes = words(hash_all(name.encode(errors="surrogatepass") for name in wanted))
        lookups.append((wanted, hashes, *(own or id_hashes(run.files("ids"), run.view))))
    known, records_found = set[str](), [np.empty(0, np.int64)]
    for candidates, candidate_hashes, positions, record_hashes in lookups:
        rows = places(record_hashes, candidate_hashes)
        known |= {candidates[row] for row in np.unique(rows[rows >= 0]).tolist()}
        records_found.append(positions[rows >= 0])
    if missing := [name for name in wanted if name not in known]:
        own_id = f"one of the field {field!r}, or " if field else ""
        raise InputError(
            f"no record of the input has the id {missing[0]!r}; expected {own_id}a record id of 32 hex digits, as "
            "shown by `divorder where --step N`"
        )
    return np.unique(np.concatenate(records_found))


def id_hashes(files: StageFiles, view: View) -> tuple[np.ndarray, np.ndarray]:
    """(input positions of the records with an id, int64 (Q,); 128-bit hashes of the ids as text, uint64 (Q, 2)).

    Memory: 32 bytes a record.
    """
    hashes, has_id = [np.empty((0, 2), np.uint64)], [np.empty(0, bool)]
    for table in files.tables(view.fragments):
        texts = number_or_text(*table.columns).cast(pa.large_string()).to_pylist()
        has_id.append(np.fromiter((text is not None for text in texts), np.bool_, len(texts)))
        hashes.append(np.zeros((len(texts), 2), np.uint64))
        hashes[-1][has_id[-1]] = words(hash_all(text.encode() for text in texts if text is not None))
    records = np.flatnonzero(np.concatenate(has_id))
    return records, np.concatenate(hashes)[records]


def ids_of(records: Records, fragment: Fragment) -> pa.Table:
    """The user's ids of the records of a fragment."""
    field = records.shape_of(fragment).id_field
    if field is None:
        return pa.table([pa.nulls(fragment.rows, kind) for kind in ID_COLUMNS.types], ID_COLUMNS)
    return extract_ids(pa.chunked_array([records.records(fragment)]), field)


def _ids_figures(run: Run, files: StageFiles) -> dict[str, Any]:
    field, view = run.settings.input.id_field, run.view
    records, hashes = id_hashes(files, view)
    if not len(records):
        raise _no_ids(field)
    if run.settings.order.cut:
        # An id that is not there is refused before tokens and vectors are made.
        find_records(run, run.settings.order.cut, (records, hashes))
    lacking, repeated = len(view) - len(records), len(records) - len(distinct(hashes).first)
    if lacking or repeated:
        run.progress.note(
            f"of {len(view):,} records {lacking:,} have no id in {field!r}, and {repeated:,} repeat the id of an "
            "earlier record"
        )
    return {"records_without_id": lacking, "repeated_ids": repeated}


def _check_settings(run: Run) -> None:
    # The run repairs a damaged file.
    with contextlib.suppress(DamagedFileError):
        last = load_receipt(run.store, "ids")
        if last and last.fingerprint == IDS.fingerprint(run.settings):
            return
    for input_found in find_inputs(run.settings):
        field = input_found.shape.id_field
        if field and unseen([input_found], {field: set()}):
            with input_found.shape.naming():
                raise _no_ids(field)


def _no_ids(field: str | None) -> InputError:
    return InputError(
        f"input.id_field: no record has a string or a whole number in the field {field!r}; name the field that "
        "holds the records' ids, or remove input.id_field"
    )


IDS = PerDocument(
    name="ids",
    version=2,
    asset=False,
    description="The user's own ids of the records.",
    reads=("raw_docs",),
    settings=("input.id_field",),
    when=lambda settings: settings.input.id_field is not None,
    doing="reading ids",
    check=_check_settings,
    compute=lambda run: partial(ids_of, run.records),
    figures=_ids_figures,
)


def extract_ids(content: pa.ChunkedArray, field: str) -> pa.Table:
    """Ids of records in a field, a row a record: `number` int64, or `text` (also for larger numbers); both null if the
    field holds no id (see `as_id`). Raises InputError: several Parquet columns have this name."""
    if pa.types.is_struct(content.type):
        values = extract(content, [field]).column(0).to_pylist()
    else:
        values = [value_at(parse(line), field) for line in content.to_pylist()]
    ids = [as_id(value) for value in values]
    numbers = [value if isinstance(value, int) and abs(value) < 1 << 63 else None for value in ids]
    texts = [str(value) if value != number else None for value, number in zip(ids, numbers, strict=True)]
    return pa.table([number_array(numbers, np.int64), text_array(texts)], ID_COLUMNS)


def as_id(value: Any) -> int | str | None:
    """A value of a record as its id: strings and whole numbers; None for any other value."""
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None
