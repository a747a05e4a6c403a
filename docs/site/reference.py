"""The site's reference, in Markdown, from the code: settings, command line and Python."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

from example import effects, toml
from pydantic import BaseModel

import dagster_divorder
import dagster_divorder.torch
from dagster_divorder import cli, errors
from dagster_divorder.results import Results
from dagster_divorder.settings import Settings
from dagster_divorder.tables.comparison import Comparison


def settings() -> str:
    """Every setting: type and range, default, variable, effect."""
    return "\n".join(_settings())


def _settings() -> Iterator[str]:
    schema, texts = Settings.model_json_schema(), effects(Settings)
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            section = type(default)
            yield f"\n## `[{name}]`\n\n{linked(inspect.getdoc(section) or '')}\n"
            properties = schema["$defs"][section.__name__]["properties"]
            for key, text in effects(section).items():
                inner = section.model_fields[key]
                value = inner.get_default(call_default_factory=True)
                yield _setting(f"{name}.{key}", properties[key], value, text, inner.examples)
        elif isinstance(default, dict):
            yield f"\n## `[{name}]`\n\n{linked(texts[name])}\n"
            for key, value in default.items():
                yield _setting(f"{name}.{key}", schema["properties"][name]["additionalProperties"], value)
        else:
            yield f"\n## `{name}`\n"
            yield _described(name, schema["properties"][name], default, texts[name])


def _setting(key: str, schema: dict[str, Any], *described: Any) -> str:
    return f"### `{key}`\n\n{_described(key, schema, *described)}"


def _described(key: str, schema: dict[str, Any], default: Any, text: str = "", examples: Any = None) -> str:
    given = "unset" if default is None else f"`{toml(default)}`"
    shown = f" Example: `{toml(examples[0])}`." if examples and default in (None, (), {}) else ""
    variable = f"DIVORDER_{key.upper().replace('.', '__')}"
    return f"{kind(schema)}. Default: {given}.{shown} Variable: `{variable}`.\n\n{linked(' '.join(text.split()))}\n"


def kind(schema: dict[str, Any]) -> str:
    """The values that a JSON Schema allows, in words, such as `Whole number from 1 to 64`."""
    words = " or ".join(_kinds(schema))
    return words[:1].upper() + words[1:]


def _kinds(schema: dict[str, Any]) -> Iterator[str]:
    if "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _kinds(part)
    elif "enum" in schema or "const" in schema:
        yield ", ".join(f"`{toml(value)}`" for value in schema.get("enum", [schema.get("const")]))
    elif schema.get("type") == "array":
        items = schema.get("prefixItems") or [schema["items"]]
        each = [" or ".join(_kinds(item)) for item in items]
        yield f"[{', '.join(each)}]" if "prefixItems" in schema else f"list of: {each[0]}"
    elif schema.get("type") == "object":
        inner = schema["additionalProperties"]
        yield "table" if inner is True else f"table of: {' or '.join(_kinds(inner))}"
    elif schema.get("type") != "null":
        # Paths that may be URLs have no type in JSON.
        name = "path" if schema.get("format") == "path" else schema.get("type", "path or URL")
        yield {"string": "text", "integer": "whole number", "boolean": "true or false"}.get(
            name, name
        ) + _range(schema)


def _range(schema: dict[str, Any]) -> str:
    bounds = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return "".join(f" {word} {schema[bound]:,}" for bound, word in bounds.items() if bound in schema)


def command_line() -> str:
    """Every command with its options, in the groups of `divorder --help`."""
    parser = cli.command_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    shared = {flag for action in parser._actions for flag in action.option_strings}
    lines = ["\n## Options of every command\n", *_options(parser, set())]
    for group, verbs in cli.GROUPS.items():
        lines.append(f"\n## {group}\n")
        for verb in verbs:
            lines += [f"### `divorder {verb.name}`\n", f"{linked(verb.does[0].upper() + verb.does[1:])}.\n"]
            lines += [f"```console\n$ {verb.example}\n```\n", f"Cost: {linked(verb.cost)}.\n"]
            lines += _options(commands.choices[verb.name], shared)
    return "\n".join(lines)


def _options(parser: argparse.ArgumentParser, hidden: set[str]) -> list[str]:
    formatter = parser._get_formatter()
    return [
        f"- `{formatter._format_action_invocation(action)}`: {linked(formatter._expand_help(action))}"
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction)
        and not hidden.intersection(action.option_strings)
    ] + [""]


PAGES = Path(__file__).parent.parent
TYPES = {
    "int": {"type": "integer"},
    "int or null": {"type": ["integer", "null"]},
    "string": {"type": "string"},
    "object": {"type": "object"},
    "list of ints": {"type": "array", "items": {"type": "integer"}},
    "list of strings": {"type": "array", "items": {"type": "string"}},
}
"""Type in a table of keys -> its JSON Schema."""


def schemas() -> dict[str, dict[str, Any]]:
    """Name -> JSON Schema of a manifest, from the page that describes it."""
    return {
        "curated_meta": _schema("curated_meta.json", (PAGES / "curated_meta.md").read_text()),
        "export_manifest": _schema("manifest.json of an export", (PAGES / "exports.md").read_text()),
    }


def _schema(title: str, page: str) -> dict[str, Any]:
    table = page.split("| key | type | meaning |\n|---|---|---|\n")[1].split("\n\n")[0]
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    schema |= {"type": "object", "properties": {}, "required": []}
    for key, kind, meaning in re.findall(r"^\| `([\w.]+)` \| ([\w ]*) \| (.*)\|$", table, re.M):
        *outer, name = key.split(".")
        inside = schema
        for part in outer:
            empty = {"type": "object", "properties": {}, "required": []}
            if part not in inside["properties"]:
                inside["required"].append(part)
            inside = inside["properties"].setdefault(part, empty)
        described = {"description": meaning.strip().replace("`", "")} if meaning.strip() else {}
        inside["properties"][name] = TYPES[kind] | described
        if not meaning.startswith("only"):
            inside["required"].append(name)
    return schema


def manifests() -> str:
    """The JSON Schema of both manifests, each with a link to its file."""
    return "\n".join(
        f'\n## {schema["title"]}\n\n<a href="{name}.schema.json" download>{name}.schema.json</a>\n\n'
        f"```json\n{json.dumps(schema, indent=2, ensure_ascii=False)}\n```"
        for name, schema in schemas().items()
    )


MEMBERS = {
    FunctionType: "method",
    classmethod: "classmethod",
    staticmethod: "staticmethod",
    property: "property",
    cached_property: "property",
}
"""Kind of a class's member -> its directive."""


FIRST = ("order", "reorder", "compare", "balance")
"""What most readers come for: the first names of the page."""


def python() -> str:
    """Every public name with its signature and docstring, as directives of Sphinx's Python domain."""
    lines: list[str] = []
    for module in (dagster_divorder, dagster_divorder.torch):
        lines += [f"\n## `{module.__name__}`\n", f"```{{py:module}} {module.__name__}\n```\n"]
        for name in [name for name in FIRST if name in module.__all__] + [
            name for name in module.__all__ if name not in FIRST
        ]:
            lines += _documented(name, getattr(module, name))
    lines += ["\n## Results\n", "What functions above return.\n"]
    for returned in (Results, Comparison):
        lines += [f"```{{py:currentmodule}} {returned.__module__}\n```\n"]
        lines += _documented(returned.__name__, returned)
    lines += [
        "\n## Errors\n",
        "```{py:module} dagster_divorder.errors\n```\n",
        markdown(errors.__doc__ or ""),
    ]
    for name, error in vars(errors).items():
        if inspect.isclass(error) and error.__module__ == errors.__name__:
            lines += _documented(name, error, "exception")
    return "\n".join(lines)


def _documented(name: str, value: Any, role: str | None = None, fence: str = "``````") -> list[str]:
    role = role or ("class" if inspect.isclass(value) else "function")
    signature = "" if value is Settings or role in ("exception", "property") else _signature(value)
    lines = [f"{fence}{{py:{role}}} {name}{signature}\n", markdown(inspect.getdoc(value) or "")]
    if role == "class" and value is not Settings:
        for member, held in vars(value).items():
            if (
                (member_role := MEMBERS.get(type(held)))
                and not member.startswith("_")
                and inspect.getdoc(held)
            ):
                lines += _documented(member, getattr(held, "__func__", held), member_role, fence[:-1])
    return [*lines, f"{fence}\n"]


class _Annotation:
    """An annotation as the source has it, without the quotes of a string."""

    def __init__(self, annotation: Any) -> None:
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        self.text = re.sub(r"ForwardRef\('(.+?)'\)", r"\1", text)

    def __repr__(self) -> str:
        return self.text


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    shown = str(
        signature.replace(
            parameters=[
                parameter
                if parameter.annotation is empty
                else parameter.replace(annotation=_Annotation(parameter.annotation))
                for parameter in signature.parameters.values()
                if parameter.name not in ("self", "cls")
            ],
            return_annotation=empty
            if inspect.isclass(function) or signature.return_annotation is empty
            else _Annotation(signature.return_annotation),
        )
    )
    # Objects without a form in Python are metadata of an annotation, or a default.
    shown = re.sub(r", <[^<>]* at 0x\w+>", "", shown)
    shown = re.sub(r"<[^<>]* at 0x\w+>", "...", shown).replace("typing.", "")
    return re.sub(r"Annotated\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", r"\1", shown)


_PARAMETER = r"\*{0,2}[a-z]\w*(?:, [a-z]\w*)*"
_ERROR = r"(?:dg\.)?[A-Z]\w*(?:, [A-Z]\w*)*"


def markdown(docstring: str) -> str:
    """A docstring in Markdown: its parameters and errors as lists, its examples as blocks."""
    parts = list[str]()
    for block in re.split(r"\n\n+", docstring):
        heading, _, rest = block.partition("\n")
        if heading in ("Args:", "Attributes:"):
            parts.append(_items(inspect.cleandoc(rest), _PARAMETER))
        elif heading == "Raises:":
            parts.append(f"Raises:\n\n{_items(inspect.cleandoc(rest), _ERROR)}")
        elif block.startswith(">>> "):
            parts.append(f"```pycon\n{block}\n```")
        elif re.match(rf"{_PARAMETER}: ", block):
            parts.append(_items(block, _PARAMETER))
        else:
            parts.append(block if block.startswith("    ") else linked(block))
    return "\n\n".join(parts) + "\n"


def _items(block: str, name: str) -> str:
    """A list of `name: text`, each at the start of a line or behind a sentence."""
    joined = re.sub(r"(?<=,)\n|\n +", " ", block)
    items = re.split(rf"(?:^|\n|(?<=[.)] ))({name}): ", joined)
    pairs = zip(items[1::2], items[2::2], strict=True)
    return "\n".join(f"- `{names}`: {linked(' '.join(text.split()))}" for names, text in pairs)


def linked(text: str) -> str:
    """Words in Markdown, with links to the pages that they name; what is no code stands as it is."""
    words = [
        part if at % 2 else re.sub(r"([*<\[\]])", r"\\\1", part)
        for at, part in enumerate(re.split(r"(`[^`]*`)", text))
    ]
    return re.sub(r"\bdocs/([\w/]+)\.md\b", r"[docs/\1.md](../\1.md)", "".join(words))
