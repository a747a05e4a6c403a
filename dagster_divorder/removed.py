"""What 0.3.0 no longer has, and what to do instead. Kept for this release only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SETTINGS: dict[str, str] = {
    "store.cache": "copies of a store in a bucket lie in the temporary folder while a run lasts; set TMPDIR to a disk "
    "that holds them",
}
"""A key (`section.key`), or a whole section -> what to do instead, as a sentence without its full stop."""

VALUES: dict[str, dict[str, str]] = {}
"""A key that stays -> its removed values, each with what to do instead."""

VERBS: dict[str, str] = {}
"""A verb of the command line -> what to do instead."""


def removed_setting(key: str) -> str:
    """The message for a removed key or one of a removed section; "" for any other key."""
    instead = SETTINGS.get(key) or SETTINGS.get(key.split(".")[0])
    return f"{key} is no longer a setting: {instead}" if instead else ""


def refuse_removed(given: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: settings name what was removed; the message names all of it with what to do instead.
    """
    problems = []
    for section, keys in given.items():
        for key, value in keys.items() if isinstance(keys, Mapping) else [("", None)]:
            name = f"{section}.{key}".rstrip(".")
            problems.append(removed_setting(name))
            values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            problems += [
                f'{name} = "{gone}" is no longer possible: {instead}'
                for gone, instead in VALUES.get(name, {}).items()
                if gone in values
            ]
    if any(problems):
        raise ValueError("; ".join(filter(None, problems)))


def removed_verb(arguments: Sequence[str]) -> str:
    """The message for a command line whose verb was removed; "" for any other."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] == "--config" else 1
    verb = arguments[at] if at < len(arguments) else ""
    return f"`divorder {verb}` was removed: {VERBS[verb]}" if verb in VERBS else ""
