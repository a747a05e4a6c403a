"""Every setting with its default and its trade-off, as a settings file:

    python docs/site/example.py > divorder.example.toml

A section's comment is its model's docstring; a key's comment is the text below its field. A field that is unset by
default shows the first of its `examples`.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from typing import Any

from pydantic import BaseModel

from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.settings.model import Settings

WIDTH = 110
HEAD = """\
# Every setting with its default, the most important first. Copy to divorder.toml, or name another file in
# DIVORDER_CONFIG. Keys that are unset by default are commented out and show an example.
# Each key can be overridden by an environment variable: DIVORDER_CLUSTERS__K=50, DIVORDER_SEED=1,
# DIVORDER_INPUT__PATHS=/data/a.jsonl, DIVORDER_ORDER__TRAITS='{"cluster": 1, "source": 0.5}'.
# Relative paths are relative to this file.
"""


def example() -> str:
    """The text of the example file."""
    texts, single, tables = effects(Settings), list[str](), list[str]()
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            tables += ["", *_comment(vars(type(default))["__doc__"]), f"[{name}]"]
            for key, text in effects(type(default)).items():
                of_key = type(default).model_fields[key]
                value = of_key.get_default(call_default_factory=True)
                is_unset = of_key.examples and value in (None, (), {})
                line = f"# {key} = {toml(of_key.examples[0])}" if is_unset else f"{key} = {toml(value)}"  # type: ignore[index]
                tables += [*_comment(text), line]
        elif isinstance(default, dict):
            tables += ["", *_comment(texts[name]), f"[{name}]"]
            tables += [f"{key} = {toml(value)}" for key, value in default.items()]
        else:
            single += ["", *_comment(texts[name]), f"{name} = {toml(default)}"]
    return "\n".join([HEAD.rstrip("\n"), *single, *tables, ""])


def toml(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool | int | float):
        return f"{value:_}" if type(value) is int and value >= 100_000 else json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)


def effects(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the text below it in the source, with the options of strategies filled in."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    texts = dict.fromkeys(model.model_fields, "")
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(below.value, ast.Constant)
            texts[field.target.id] = str(below.value.value)
    if "options" in texts:
        declared: dict[str, list[str]] = {}
        for name, strategy in STRATEGIES.items():
            for option, declares in strategy.Options.model_fields.items():
                declared.setdefault(f"{option} = {toml(declares.get_default())}", []).append(name)
        defaults = "; ".join(f"{option} ({', '.join(names)})" for option, names in declared.items())
        texts["options"] += f" The defaults: {defaults}"
    return texts


def _comment(text: str) -> list[str]:
    words = " ".join(text.split()).replace("`", "")
    return [f"# {line}" for line in textwrap.wrap(words, WIDTH - 2, break_on_hyphens=False)]


if __name__ == "__main__":
    print(example(), end="")
