"""The form of an input's records if the settings leave it open: the first record with a text or a form decides."""

from __future__ import annotations

from itertools import islice

from dagster_divorder.chats.forms import form_of, without_nulls
from dagster_divorder.core.fields import value_at
from dagster_divorder.corpus.find import find_files, own_folders
from dagster_divorder.corpus.peek import first_records
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import DivOrderError
from dagster_divorder.settings import Input, Settings
from dagster_divorder.settings.places import is_url
from dagster_divorder.settings.sections import Inputs

LOOKED_AT = 100
"""Most records read until one decides."""


def recognised(settings: Settings) -> Settings:
    """The settings with the format of each input that has none, by its first records. "auto" stays for texts, and for
    an input with a text field, at a URL, or unreadable: reading it reports why."""
    formats = [_format(block, settings) for block in settings.input.each]
    if all(block.format == name for block, name in zip(settings.input.each, formats, strict=True)):
        return settings
    blocks = tuple(
        block.model_copy(update={"format": name})
        for block, name in zip(settings.input.each, formats, strict=True)
    )
    several = isinstance(settings.input, Inputs)
    changed = settings.input.model_copy(update={"several": blocks}) if several else blocks[0]
    update = {"input": changed, "packing": settings.packing.fitting({block.form for block in blocks})}
    return settings.model_copy(update=update)


def _format(block: Input, settings: Settings) -> str:
    # Every access to a URL is a request.
    named = "text_field" in block.model_fields_set or any(map(is_url, block.paths))
    if block.format != "auto" or named:
        return block.format
    try:
        files = find_files(block.paths, own_folders(settings), Shape())
        for record in islice(first_records([files]), LOOKED_AT):
            if isinstance(value_at(record, block.text_field), str):
                return "auto"
            if form := form_of(without_nulls(record)):
                return form
    except DivOrderError:
        pass
    return "auto"
