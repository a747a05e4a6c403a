"""fields: the fields of each record that the settings name: traits, source, score.

Per fragment: a table with a column a field, from `corpus.columns`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import is_number, is_text
from dagster_divorder.core.fields import column_at, fields_of
from dagster_divorder.core.mix.mixing import check_values
from dagster_divorder.core.order.strategy import nearest
from dagster_divorder.core.order.traits import column_codes
from dagster_divorder.corpus.columns import extract, settle, sources
from dagster_divorder.corpus.find import Found
from dagster_divorder.corpus.peek import first_records, unseen
from dagster_divorder.corpus.shapes import SOURCE
from dagster_divorder.corpus.stored import Records
from dagster_divorder.errors import DamagedFileError, InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.raw_docs import found_inputs
from dagster_divorder.store.base import Store
from dagster_divorder.store.sources import RemoteFile
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.store.view import Fragment, View


def built_in(settings: Settings) -> tuple[str, ...]:
    """Computed traits; an input field of the same name is not used. turns: messages of a conversation."""
    return ("cluster", "length", *(["turns"] if settings.has_chats else []))


SCORES = {"length": ("token_counts", "lengths")}
"""Computed score -> its stage and column; an input field of the same name is not used."""

PEEKED = 100
"""First records whose values are checked before a run."""
NAMED = 20
"""First records of an input whose fields are suggested if a named field does not exist."""


def computed_score(settings: Settings) -> str | None:
    """The computed score that a curriculum follows."""
    chosen = settings.curriculum
    return chosen.score if chosen.score in SCORES else None


def score_field(settings: Settings) -> str | None:
    """The field of the input that a curriculum follows."""
    chosen = settings.curriculum
    return None if chosen.score in SCORES else chosen.score


def coded_traits(settings: Settings) -> list[str]:
    """The traits for which records have codes: the traits that an order balances, and `mixing.trait` if it is used."""
    mixed = [settings.mixed_trait] if settings.repeats else []
    return list(dict.fromkeys([*settings.order.traits, *mixed]))


def trait_name(settings: Settings, trait: str) -> str:
    """A trait that is a field of the input, in messages."""
    # A mix adds its trait to order.traits.
    mixed = settings.repeats and trait == settings.mixed_trait
    return f"{'mixing.trait' if mixed else 'order.traits'}: field {trait!r}"


def _named(settings: Settings) -> list[tuple[str, str, bool]]:
    """(setting, field of the input that it names, whether it needs numbers). The setting that a user wrote comes first:
    a mix adds its traits to `order.traits`."""
    named = [
        ("input.source_field", settings.input.source_field, False),
        ("curriculum.score", score_field(settings), True),
    ]
    traits = [("mixing.trait", settings.mixed_trait, False)] if settings.repeats else []
    traits += [("order.traits", trait, False) for trait in settings.order.traits]
    named += [trait for trait in traits if trait[1] not in built_in(settings)]
    return [(setting, field, number) for setting, field, number in named if field]


def fields_read(settings: Settings) -> list[str]:
    """The fields of the input that are read, by name, sorted."""
    return sorted({field for _, field, _ in _named(settings)})


def _check_settings(run: Run) -> None:
    """Raises InputError: no record has a field that the settings name, or a schema or the first records show that a
    field cannot be what a setting takes it for. Fields of the last run are not looked for again; if the input has lost
    one since, its stage reports it."""
    last, fields = None, fields_read(run.settings)
    with contextlib.suppress(DamagedFileError):  # the run makes a damaged file again
        last = load_receipt(run.store, "fields")
    new = [field for field in fields if not last or field not in last.facts["fields"]]
    kind, inputs = found_inputs(run) if fields else ("jsonl", [])
    for field in unseen([found for found, _ in inputs], new):
        raise no_such_field(field, _field_names([found for found, _ in inputs]), run.settings)
    for found, schema in inputs:
        # A file at a URL is fetched whole: only for fields that the last run has not read.
        if isinstance(found.files[0], RemoteFile) and not new:
            continue
        # `schema.empty_table()` lacks types.
        rows = pa.Table.from_batches([], schema) if kind == "parquet" else None
        with found.shape.naming():
            for setting, field, number in _named(run.settings):
                for record in islice(first_records([found], [field]), PEEKED) if number else ():
                    if fault := no_number(field, record[field]):
                        raise InputError(f"{setting}: field {field!r} {fault}")
                column = None if rows is None else column_at(rows, found.shape.field(field))
                if column is not None and number:
                    number_column(column, setting, field)
                elif column is not None and not found.shape.constant(field):
                    column_codes(column, bins=1, name=f"{setting}: field {field!r}")


def number_column(column: pa.Array | pa.ChunkedArray, setting: str, field: str) -> np.ndarray:
    """The numbers of a column, float64 (n,), NaN for null. InputError names the setting and what the field holds."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_number(column.type) or pa.types.is_null(column.type):
        return column.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy()
    fault = f"holds {column.type}; expected numbers"
    for record, value in enumerate(column.to_pylist() if is_text(column.type) else ()):
        if value is not None and not is_numeral(value):
            place = f"is {value[:40]!r} in record {record:,}, counted from 0"
            fault = f"{place}; expected a number, or null for none"
            break
    raise InputError(f"{setting}: field {field!r} {fault}")


def no_number(name: str, value: Any) -> str | None:
    """Why a value of the field `name` is not a number, and the remedy; None for a number or null."""
    if value is None or (isinstance(value, Number) and not isinstance(value, bool)):
        return None
    if isinstance(value, str) and is_numeral(value):
        return f"holds numbers as text, such as {value[:60]!r}; write them as numbers, without quotes"
    if isinstance(value, Mapping):
        fields = ", ".join(repr(f"{name}.{field}") for field in value)
        return f"holds objects; name one of their fields: {fields or 'they have none'}"
    kinds = {bool: "true and false", list: "lists"}
    kind = kinds.get(type(value), f"{str(value)[:60]!r}")
    return f"holds {kind}; expected a number in each record, or null where there is none"


def is_numeral(text: str) -> bool:
    """Whether a text is a number as Python writes it."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _field_names(inputs: Sequence[Found]) -> set[str]:
    """The fields of the first records of each input, including fields of nested objects."""
    names: set[str] = set()
    for found in inputs:
        for record in islice(first_records([found]), NAMED):
            names |= record.keys() | {name for name, _ in fields_of(record, 2)}
    return names


def no_such_field(field: str, names: Collection[str] = (), settings: Settings | None = None) -> InputError:
    """names: existing fields; the message suggests the nearest. settings: name the field."""
    near = f"; {field!r} is null in each" if field in names else nearest(field, names)
    if settings is None:
        return InputError(f"no record has the field {field!r}; expected a field of the input{near}")
    setting = next(setting for setting, named, _ in _named(settings) if named == field)
    which = f"which {setting} names"
    if setting == "mixing.trait" and "trait" not in settings.mixing.model_fields_set:
        needs = "mixing.weights" if settings.mixing.on else "heldout.documents"
        which = f"the default of mixing.trait, which {needs} needs"
    computed: dict[str, Collection[str]] = {"input.source_field": (), "curriculum.score": SCORES}
    expected = ["a field of the input", *(f"`{name}`" for name in computed.get(setting, built_in(settings)))]
    return InputError(f"no record has the field {field!r}, {which}; expected {', '.join(expected)}{near}")


def category_fields(settings: Settings) -> set[str]:
    """Fields whose whole numbers are names, not amounts: the source, and `mixing.trait` if it is used."""
    mixed = settings.mixed_trait if settings.repeats else None
    return {field for field in (settings.input.source_field, mixed) if field} - {*built_in(settings)}


def load_fields(run: Run, *fields: str) -> pa.Table:
    """Fields of the records, in input order; the source and `mixing.trait` as categories. Raises InputError: no record
    has one of the fields."""
    if not fields:
        return pa.table({})
    return read_fields(
        run.store, run.view, run.receipt("fields"), *fields, categories=category_fields(run.settings)
    )


def read_fields(
    store: Store, view: View, receipt: Receipt, *fields: str, categories: Collection[str] = ()
) -> pa.Table:
    """As `load_fields`, for the receipt of `fields`."""
    table = pa.concat_tables(StageFiles(store, receipt.stage, receipt.key).tables(view.fragments))
    columns = {field: settle(table.column(field), categories=field in categories) for field in fields}
    for field, column in columns.items():
        if column.null_count == len(column):
            raise no_such_field(field)
    return pa.table(columns)


def extract_fields(records: Records, fields: list[str], fragment: Fragment) -> pa.Table:
    """Fields of the records of a fragment."""
    shape, content = records.shape_of(fragment), pa.chunked_array([records.records(fragment)])
    extracted = extract(content, [shape.field(field) for field in fields])
    columns = dict(zip(fields, extracted.columns, strict=True))
    if shape.key and SOURCE in columns:
        columns[SOURCE] = sources(content, columns[SOURCE], shape.source)
    return pa.table(columns)


def _check_values(run: Run, files: StageFiles) -> Mapping[str, Any]:
    """No figures. The stages that use traits come after tokens and vectors are made, so what they would refuse of a
    field is refused here.

    Raises:
        InputError: the values of a trait hardly repeat, or a mix names a value that no record has.
    """
    settings, table = run.settings, pa.concat_tables(files.tables(run.view.fragments))
    shares = [of.weights for of in settings.mixing.phases if isinstance(of.weights, Mapping)]
    for trait in coded_traits(settings):
        if trait in built_in(settings):
            continue
        column = settle(table.column(trait), categories=trait in category_fields(settings))
        if is_number(column.type) or column.null_count == len(column):
            continue
        names = column_codes(column, bins=1, name=trait_name(settings, trait), balanced=True).names
        if trait == settings.mixed_trait:
            check_values([value for of in shares for value in of], names)
    return {}


FIELDS = PerDocument(
    name="fields",
    version=2,
    asset=False,
    description="Fields of the records that orders balance.",
    reads=("raw_docs",),
    when=lambda settings: bool(fields_read(settings)),
    settings=("input", "order", "mixing", "heldout", "selection", "curriculum"),
    # Other settings of these sections must not make the bins of these fields again.
    decided_by=lambda run: {"fields": fields_read(run.settings)},
    doing="reading fields",
    check=_check_settings,
    compute=lambda run: partial(extract_fields, run.records, fields_read(run.settings)),
    figures=_check_values,
    facts=lambda run: {"fields": fields_read(run.settings), "source": run.settings.input.source_field},
)
