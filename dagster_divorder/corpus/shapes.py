"""The shape of an input: how its records are read, and which fields hold texts, ids and sources.

A fragment holds records of one shape. Equal bytes of two shapes are two records with the same record id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import orjson
from blake3 import blake3

from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Inputs

SOURCE = "source"
"""The common name for the sources of several inputs, whatever their fields are called."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Fields of an input: see `settings.Input`. form: `Input.form`. chat_template: the template that must accept
    conversations, None for texts. key: identifies its records, 0 for a single input. label: start of its messages if
    there are several inputs. as_lines: rows are stored as JSON lines."""

    text_field: str = "text"
    id_field: str | None = None
    source_field: str | None = None
    source: str | None = None
    form: str = "text"
    chat_template: ChatTemplate | None = None
    key: int = 0
    label: str = ""
    as_lines: bool = False

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Puts the input's label before the message of an InputError, unless already present."""
        try:
            yield
        except InputError as error:
            if str(error).startswith(self.label):
                raise
            raise InputError(f"{self.label}{error}") from error

    def field(self, name: str) -> str:
        """The name of a field in this input."""
        return self.source_field if self.key and name == SOURCE and self.source_field else name

    def constant(self, name: str) -> str | None:
        """The constant value of a field for all records, None if it varies."""
        return self.source if name == SOURCE else None


DEFAULT_SHAPE = Shape()


def shapes_of(settings: Settings) -> tuple[Shape, ...]:
    """The shapes of the inputs, in order."""
    shapes = []
    for number, block in enumerate(settings.input.each, 1):
        shape = Shape(block.text_field, block.id_field, block.source_field, block.source, block.form)
        if isinstance(settings.input, Inputs):
            fields = (block.text_field, block.id_field, block.source_field, block.source, block.form)
            more = f" and {len(block.paths) - 1:,} more" if len(block.paths) > 1 else ""
            shape = replace(
                shape,
                key=int.from_bytes(blake3(orjson.dumps(fields)).digest(8)),
                label=f"input {number} ({block.paths[0]}{more}): ",
            )
        shapes.append(shape)
    return tuple(shapes)
