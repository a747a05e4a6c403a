"""What the code of a page may import: what `make install` installs, and what the pip lines above it name."""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED = "dagster-divorder[films]"
"""What `make install` installs."""
BRINGS = {"notebook": ["ipykernel"]}
"""Distributions that pages name and that are not installed here -> what they bring."""


@functools.cache
def _needs_of(name: str) -> list[str]:
    if name == PROJECT["name"]:
        extras = PROJECT["optional-dependencies"].items()
        return PROJECT["dependencies"] + [
            f'{need}; extra == "{extra}"' for extra, needs in extras for need in needs if ";" not in need
        ]
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return BRINGS.get(name, [])


def distributions(requirements: Iterable[str]) -> set[str]:
    """The distributions that pip installs for some requirements, those that they need among them."""
    todo, seen = [*map(Requirement, requirements)], set[tuple[str, str]]()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {known for of, known in seen if of == name}:
            seen.add((name, extra))
            needs = map(Requirement, _needs_of(name))
            todo += [need for need in needs if not need.marker or need.marker.evaluate({"extra": extra})]
    return {name for name, _ in seen}


_closure = functools.cache(distributions)


@functools.cache
def _owners() -> dict[str, set[str]]:
    """Module -> its distributions."""
    return {module: {*map(canonicalize_name, of)} for module, of in packages_distributions().items()}


@functools.cache
def _scripts() -> dict[str, str]:
    """Command -> its distribution."""
    found = entry_points(group="console_scripts")
    return {script.name: canonicalize_name(script.dist.name) for script in found if script.dist}


def allowed(above: str) -> set[str]:
    """The distributions that code may use, below some text of a page."""
    lines = re.findall(r"pip install ([^`\n#]+)", above)
    named = {word for line in lines for word in shlex.split(line) if not re.match(r"-|\.|constraints", word)}
    return _closure(frozenset(named | {INSTALLED, "pip"}))


def hidden_modules(above: str, *others: str) -> set[str]:
    """The modules, installed here, that code below some text of a page may not import. others: distributions that it
    may use."""
    known = allowed(above) | set(others)
    return {module for module, of in _owners().items() if known.isdisjoint(of)}


def hidden_commands(above: str) -> set[str]:
    """The commands, installed here, that a page may not use below some text."""
    known = allowed(above)
    return {name for name, of in _scripts().items() if of not in known}
