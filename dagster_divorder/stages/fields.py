"""fields: what of each record the order looks at: the fields that `order.traits` names, and the source.

Per record fragment a table with a column a field, as `store.columns` extracts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson
import pyarrow as pa

from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.store.arrays import row_array, unpack_table
from dagster_divorder.store.columns import concat, extract, settle
from dagster_divorder.store.find import find_input
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.peek import first_records
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.view import Fragment, View

BUILT_IN = ("cluster", "length", "difficulty")
"""Traits that are no field of the input; of an input with a field of such a name the field is not used."""
VALUES_SHOWN = 20


def extracted(settings: Settings) -> list[str]:
    """The fields by name, sorted."""
    source = settings.input.source_field
    fields = {trait for trait in settings.order.traits if trait not in BUILT_IN}
    return sorted(fields | ({source} if source else set()))


def check_fields(run: Run) -> None:
    """Raise where no record has a field that the settings name, or a value that `order.targets` names.

    The input is read up to where all of them have been seen, most often its first records; what the last run saw is not
    looked for again.

    Raises:
        InputError: names the field or the value.
    """
    unseen = {field: _target_values(run.settings, field) for field in extracted(run.settings)}
    _drop_known(run, unseen)
    missing = set(unseen)
    values: dict[str, set[str]] = {field: set() for field in unseen}
    for record in first_records(find_input(run.settings), extracted(run.settings)) if unseen else ():
        for field in [field for field in unseen if record.get(field) is not None]:
            missing.discard(field)
            value = record[field]
            name = str(value).lower() if isinstance(value, bool) else value
            # The names of numbers are those of the bins that they are cut into, which only all of them decide.
            unseen[field] = unseen[field] - {name} if isinstance(name, str) else set()
            if not unseen[field]:
                del unseen[field]
            elif len(values[field]) < VALUES_SHOWN:
                values[field].add(name)
        if not unseen:
            return
    for field, names in sorted(unseen.items()):
        if field in missing:
            raise no_such_field(field)
        raise InputError(
            f"order.targets.{field} names {min(names)!r}, which no document has; the values are "
            f"{', '.join(sorted(values[field]))}"
        )


def no_such_field(field: str) -> InputError:
    return InputError(
        f"no record has the field {field!r}, which order.traits or input.source_field names; "
        "expected a field of the input, `cluster`, `length` or `difficulty`"
    )


def _target_values(settings: Settings, field: str) -> set[str]:
    return set(settings.order.targets.get(field, {})) - {"progress", "(missing)", "(other)"}


def _drop_known(run: Run, unseen: dict[str, set[str]]) -> None:
    """Leave out what the last run saw: an input that has lost it since is found by the stages themselves."""
    fields, traits = load_receipt(run.store, "fields"), load_receipt(run.store, "traits")
    for field in fields.facts["fields"] if fields else ():
        if not unseen.get(field, True):
            del unseen[field]
    for field, names in orjson.loads(run.store.read(traits.files["names"])) if traits else ():
        if field in unseen and unseen[field] <= set(names):
            del unseen[field]


def load_fields(run: Run, *fields: str) -> pa.Table:
    """Fields of the records, in input order.

    Raises:
        InputError: no record has one of the fields.
    """
    if not fields:
        return pa.table({})
    return read_fields(run.store, run.view, run.receipt("fields"), *fields)


def read_fields(store: LocalStore, view: View, receipt: Receipt, *fields: str) -> pa.Table:
    """As `load_fields`, of a receipt."""
    present = store.hashed(f"stages/{receipt.stage}/{receipt.key}")
    parts = [unpack_table(store.read_verified(present[fragment.name])) for fragment in view.records]
    rows = row_array(view.record_row)
    columns = {field: settle(concat([part.column(field) for part in parts]).take(rows)) for field in fields}
    for field, column in columns.items():
        if column.null_count == len(column):
            raise no_such_field(field)
    return pa.table(columns)


def _compute(run: Run, fragments: Sequence[Fragment]) -> Iterator[pa.Table]:
    fields = extracted(run.settings)
    return (extract(read_content(run.store, fragment.file), fields) for fragment in fragments)


FIELDS = PerDocument(
    name="fields",
    version=1,
    asset=False,
    of="records",
    description="Fields of the records that orders balance.",
    reads=lambda settings: ("raw_docs",),
    settings=lambda settings: {"fields": extracted(settings)},
    inputs=lambda run: {"records": run.receipt("raw_docs").key},
    doing="reading fields",
    check_settings=check_fields,
    compute=_compute,
    facts=lambda run: {"fields": extracted(run.settings), "source": run.settings.input.source_field},
)
