"""HTML by template. Every value that is put in is escaped: what a corpus holds is shown as text and never read as
markup. Only what came out of a template itself goes into another one as it is."""

from __future__ import annotations

import functools
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from dagster_divorder.view.report import words

__all__ = ["Markup", "fill"]


def fill(template: str, **values: Any) -> Markup:
    """The template with the values in it. The filters `number`, `percent`, ... are those of `words`."""
    return Markup(_template(template).render(**values))


@functools.cache
def _template(template: str) -> Template:
    return _environment().from_string(template)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("number", "points", "percent", "short", "megabytes", "seconds", "clip"):
        environment.filters[name] = getattr(words, name)
    return environment
