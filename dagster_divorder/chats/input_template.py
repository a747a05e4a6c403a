"""`input.template`: Jinja that makes a text of any record, with marks around its trained parts.

The environment is the same as for chat templates: a block removes the white space of its line, `tojson` escapes no
characters, and `{% break %}` and `raise_exception` exist. It is a sandbox: a template reads only its record. A record
is refused if a field is missing, or if null would be written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dagster_divorder.chats.document import MarkedText
from dagster_divorder.chats.forms import refuse_written
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from jinja2 import Template

PROMPTS = "{% for turn in prompt %}{{ turn.content or '' }}\n{% endfor %}"
"""Makes a text of prompts alone, lists of turns."""


class _Trained(str):
    """The text of a `{% generation %}` block."""

    __slots__ = ()


@lru_cache(maxsize=8)
def compiled(jinja: str) -> tuple[Template, frozenset[str], bool]:
    """(a template, the names that it reads, whether it marks trained parts).

    Raises:
        InputError: the text is not valid Jinja.
    """
    from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

        def _text(self, caller: Any) -> str:
            return _Trained(caller())

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        extensions=[Generation, loopcontrols],
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_written,
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = _raise
    try:
        tree = environment.parse(jinja)
        template = environment.from_string(jinja)
    except TemplateError as error:
        line = f" (line {error.lineno})" if isinstance(error, TemplateSyntaxError) else ""
        raise InputError(f"not a Jinja template: {error.message}{line}") from None

    def marks(node: nodes.Node) -> bool:
        return any(isinstance(call.node, nodes.ExtensionAttribute) for call in node.find_all(nodes.Call))

    # Jinja joins the text of these blocks before it writes it, so the place of a mark is lost.
    joining = (nodes.Macro, nodes.AssignBlock, nodes.FilterBlock, nodes.CallBlock, nodes.For)
    for block in tree.find_all(joining):
        body: list[nodes.Node] = block.body  # type: ignore[attr-defined]
        if any(map(marks, body)) and (not isinstance(block, nodes.For) or block.recursive):
            raise InputError(
                "{% generation %} stands inside a macro, a recursive loop, or a block of set, filter, call or "
                "generation; write it outside"
            )
    return template, frozenset(name.name for name in tree.find_all(nodes.Name)), marks(tree)


def _written(value: Any) -> Any:
    if value is None:
        raise InputError(
            "input.template writes a value that is null; test it first, as in {{ context or '' }}"
        )
    return value


def _raise(message: object) -> None:
    raise InputError(f"input.template raises: {message}")


def templated(record: Mapping[str, Any], jinja: str) -> MarkedText:
    """The text that a template makes of a record; the whole text is trained if the template has no marks.

    Raises:
        InputError: a field is missing, the template raises, or no character is trained.
    """
    from jinja2 import TemplateError

    template, _, marks = compiled(jinja)
    spans, pieces, place = [], [], 0
    try:
        for piece in template.generate(record):
            pieces.append(piece)
            if isinstance(piece, _Trained) and piece:
                spans.append((place, place + len(piece)))
            place += len(piece)
    except InputError:
        raise
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise InputError(f"input.template: {error}") from None
    except RecursionError:
        raise InputError("input.template calls itself endlessly") from None
    text = "".join(pieces)
    if not text.strip():
        raise InputError("input.template makes an empty text")
    refuse_written(text, "the text of input.template")
    if not marks:
        return MarkedText(text, ((0, place),))
    if not spans:
        raise InputError("no character is trained on: all {% generation %} blocks are empty")
    return MarkedText(text, tuple(spans))
