"""fields: what of each record the order looks at: the fields that `order.traits` names, and the source.

Per record fragment a table with a column a field, as `corpus.columns` extracts them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from dagster_divorder.core.order.traits import as_category
from dagster_divorder.corpus.columns import concat, extract, settle, sources
from dagster_divorder.corpus.find import find_inputs
from dagster_divorder.corpus.peek import unseen
from dagster_divorder.corpus.shapes import SOURCE, Shape, by_shape, shapes_of
from dagster_divorder.errors import DamagedFileError, InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import read_content, records_folder
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.store.view import Fragment, View

BUILT_IN = ("cluster", "length", "difficulty")
"""Traits that are no field of the input; of an input with a field of such a name the field is not used."""


def coded_traits(settings: Settings) -> list[str]:
    """The traits that records have codes of: those that an order balances, and the one that is mixed or held out by."""
    mixed = [settings.mixed_trait] if settings.repeats else []
    return list(dict.fromkeys([*settings.order.traits, *mixed]))


def fields_read(settings: Settings) -> list[str]:
    """The fields of the input that are read, by name, sorted."""
    source = settings.input.source_field
    quality = settings.selection.quality_field if settings.selects else None
    fields = {trait for trait in coded_traits(settings) if trait not in BUILT_IN}
    return sorted(fields | {field for field in (source, quality) if field})


def _check_settings(run: Run) -> None:
    """
    Raises:
        InputError: no record has a field that the settings name, or a value that `order.targets` names. What the last
            run saw is not looked for again: an input that has lost it since is found by the stages.
    """
    wanted = {field: _target_values(run.settings, field) for field in fields_read(run.settings)}
    known = _seen_before(run)
    new = {field: of for field, of in wanted.items() if field not in known or not of <= known[field]}
    for field, (values, some) in unseen(find_inputs(run.settings), new).items():
        if not some:
            raise no_such_field(field)
        raise InputError(
            f"order.targets.{field} names {min(values)!r}, which no document has; the values are {', '.join(some)}"
        )


def _seen_before(run: Run) -> dict[str, set[str]]:
    """Fields that the last run saw, with their values where these are known."""
    known: dict[str, set[str]] = {}
    # What is damaged the run makes again, where it meets it.
    with contextlib.suppress(DamagedFileError):
        if fields := load_receipt(run.store, "fields"):
            known |= {str(field): set() for field in fields.facts["fields"]}
        if traits := load_receipt(run.store, "traits"):
            known |= {
                trait: set(of) for trait, of in orjson.loads(run.store.read_verified(traits.files["names"]))
            }
    return known


def no_such_field(field: str) -> InputError:
    return InputError(
        f"no record has the field {field!r}, which order.traits, mixing.trait, selection.quality or input.source_field "
        "names; expected a field of the input, `cluster`, `length` or `difficulty`"
    )


def _target_values(settings: Settings, field: str) -> set[str]:
    return set(settings.order.targets.get(field, {})) - {"progress", "(missing)", "(other)"}


def category_fields(settings: Settings) -> set[str]:
    """Fields whose whole numbers are names, not amounts: the source, and what is mixed or held out by."""
    mixed = {settings.mixed_trait} if settings.repeats else set()
    return {field for field in (settings.input.source_field, *mixed) if field} - {*BUILT_IN}


def load_fields(run: Run, *fields: str) -> pa.Table:
    """Fields of the records, in input order; those of `category_fields` as categories.

    Raises:
        InputError: no record has one of the fields.
    """
    if not fields:
        return pa.table({})
    return read_fields(
        run.store, run.view, run.receipt("fields"), *fields, categories=category_fields(run.settings)
    )


def read_fields(
    store: Store, view: View, receipt: Receipt, *fields: str, categories: Collection[str] = ()
) -> pa.Table:
    """As `load_fields`, of a receipt."""
    parts = list(StageFiles(store, receipt.stage, receipt.key).tables(view.records))
    rows = row_array(view.record_row)
    columns = {field: settle(concat([part.column(field) for part in parts]).take(rows)) for field in fields}
    for field, column in columns.items():
        if column.null_count == len(column):
            raise no_such_field(field)
        if field in categories:
            columns[field] = as_category(column)
    return pa.table(columns)


def extract_fields(
    store: Store, folder: str, shapes: Sequence[Shape], fields: list[str], fragment: Fragment
) -> pa.Table:
    """Fields of the records of a fragment in `folder`."""

    def extract_shape(content: pa.ChunkedArray, shape: Shape) -> pa.Table:
        found = extract(content, [shape.field(field) for field in fields])
        columns = dict(zip(fields, found.columns, strict=True))
        if shape.key and SOURCE in columns:
            columns[SOURCE] = sources(content, columns[SOURCE], shape.source)
        return pa.table(columns)

    content = read_content(store, fragment.file)
    return by_shape(store, folder, fragment, shapes, content, extract_shape)


def shapes_read(run: Run) -> dict[str, Any]:
    """What a result that depends on the inputs' shapes has in its key."""
    shapes = [shape.key for shape in shapes_of(run.settings)]
    return {"shapes": shapes} if any(shapes) else {}


FIELDS = PerDocument(
    name="fields",
    version=1,
    asset=False,
    unit="records",
    description="Fields of the records that orders balance.",
    reads=("raw_docs",),
    settings=lambda settings: {"fields": fields_read(settings)},
    inputs=lambda run: {"records": run.receipt("raw_docs").key, **shapes_read(run)},
    doing="reading fields",
    check_settings=_check_settings,
    pace=(0.02, 0.01),
    compute=lambda run: partial(
        extract_fields,
        run.store,
        records_folder(run.receipt("raw_docs").key),
        shapes_of(run.settings),
        fields_read(run.settings),
    ),
    facts=lambda run: {"fields": fields_read(run.settings), "source": run.settings.input.source_field},
)
