"""fields: what of each record the order looks at: the fields that `order.traits` names, and the source.

Per record fragment a table with a column a field, as `store.columns` extracts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.columns import concat, extract, settle
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View

BUILT_IN = ("cluster", "length", "difficulty")
"""Traits that are no field of the input; of an input with a field of such a name the field is not used."""


def extracted(settings: Settings) -> list[str]:
    """The fields by name, sorted."""
    source = settings.input.source_field
    fields = {trait for trait in settings.order.traits if trait not in BUILT_IN}
    return sorted(fields | ({source} if source else set()))


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
    parts = list(StageFiles(store, receipt.stage, receipt.key).tables(view.records))
    rows = row_array(view.record_row)
    columns = {field: settle(concat([part.column(field) for part in parts]).take(rows)) for field in fields}
    for field, column in columns.items():
        if column.null_count == len(column):
            raise InputError(
                f"no record has the field {field!r}, which order.traits or input.source_field names; "
                "expected a field of the input, `cluster`, `length` or `difficulty`"
            )
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
    compute=_compute,
    facts=lambda run: {"fields": extracted(run.settings), "source": run.settings.input.source_field},
)
