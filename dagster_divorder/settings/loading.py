"""Settings from file and environment."""

from __future__ import annotations

import difflib
import glob
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, permutations
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dagster_divorder.errors import SettingsError
from dagster_divorder.removed import removed_setting
from dagster_divorder.settings.model import Settings
from dagster_divorder.settings.places import Place, Url, is_url, real_place, why_unusable

ENV_PREFIX = "DIVORDER_"
CONFIG_VARIABLE = "DIVORDER_CONFIG"
DEFAULT_FILE = "divorder.toml"

WRONG_TYPE = re.compile("_type$|_parsing$|_from_float$|literal_error")
"""Types of pydantic's problems that mean: the value does not have the tried type."""


def load_settings(
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    within: Path | None = None,
) -> Settings:
    """Settings from file and environment.

    Args:
        config: TOML file, or its tables; default: the file that `DIVORDER_CONFIG` names, else `divorder.toml` if it
            exists, else none.
        environ: environment to read; default `os.environ`.
        within: the file that holds the tables. Relative paths are relative to its folder; default: the working
            directory.

    Raises:
        SettingsError: file missing or not TOML, unknown key, wrong type or impossible value. The message names the
            key, the value, what was expected and the nearest valid key.
    """
    environ = os.environ if environ is None else environ
    if isinstance(config, Mapping):
        path, data = within, config
    else:
        path = config_file(config, environ)
        data = _read_toml(path) if path else {}
    given = _read_environment(environ, data)
    try:
        settings = Settings.model_validate(_merge(data, given))
    except ValidationError as error:
        raise SettingsError(_explain(error, path)) from None
    return anchored(settings, path.parent if path else Path.cwd())


def refuse_unwritable(path: Path, *, new: bool = False) -> None:
    """Check that a settings file can be written (SettingsError). new: it must not exist."""
    if new and path.exists():
        raise SettingsError(f"{path} is there already; remove it, or name another file with --config")
    if not os.access(path.absolute().parent, os.W_OK):
        raise SettingsError(f"cannot write {path}: its folder is read-only or missing; make it writable")


def write_settings_file(path: Path, text: str, *, new: bool = False) -> None:
    """Writes a settings file wholly or not at all (SettingsError). new: it must not exist."""
    target = path if new else path.with_name(f".{path.name}.tmp")
    try:
        with open(target, "x" if new else "w", encoding="utf-8") as file:
            file.write(text)
        target.replace(path)
    except OSError as error:
        if not isinstance(error, FileExistsError):
            with suppress(OSError):
                target.unlink()
        raise SettingsError(f"cannot write {path}: {error.strerror}") from None


def set_keys(path: Path, values: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
    """Writes values by key (`section.key`) into a TOML file. Other lines and comments stay. Replaces the file
    atomically.

    Raises:
        SettingsError: the file cannot be read or written, or the environment overrides one of the keys.
    """
    import tomlkit

    refuse_unwritable(path)
    given = _read_environment(os.environ if environ is None else environ, {})
    for section, name in (key.split(".") for key in values):
        if name in given.get(section, {}):
            variable = f"{ENV_PREFIX}{section.upper()}"
            raise SettingsError(
                f"{variable} or {variable}__{name.upper()} sets {section}.{name} in the environment, which overrides "
                f"{path}; set it there"
            )
    _read_toml(path)
    document = tomlkit.parse(path.read_text(encoding="utf-8-sig"))
    for key, value in values.items():
        section, name = key.split(".")
        table = document.setdefault(section, tomlkit.table())
        if isinstance(table, tomlkit.items.Table) and table.is_super_table():
            # A section that holds only tables has no header of its own; a new header must not repeat the trivia of its
            # tables.
            table._trivia = tomlkit.items.Trivia(trail="\n")
        if isinstance(value, tuple):
            listed = tomlkit.array()
            listed.extend(value)
            table[name] = listed.multiline(len(value) > 1)
        else:
            table[name] = value
    write_settings_file(path, tomlkit.dumps(document))


def refuse_overlap(settings: Settings) -> None:
    """Checks that no input lies where files are written. (A store or an output *below* an input folder is allowed:
    reading the folder skips it.)

    Raises:
        SettingsError: store, output or exports overlap, or an input lies in one of them.
    """
    exports = {"exports.path": settings.exports.path} if settings.exports.formats else {}
    written = {"store.path": settings.store.path, "output.path": settings.output.path, **exports}
    real = {key: real_place(path) for key, path in written.items()}
    for inner, outer in permutations(written, 2):
        if is_in(real[inner], real[outer]):
            raise SettingsError(
                f"{inner} {written[inner]} and {outer} {written[outer]} overlap; expected two folders, neither in the "
                "other"
            )
    sources = [("input.paths", path) for path in settings.input.paths]
    sources += [("heldout.documents", path) for path in settings.heldout.paths]
    sources += [
        (f"{section}.path", str(path))
        for section in ("embedding", "curriculum")
        if (path := getattr(settings, section).path)
    ]
    for key, pattern in sources:
        for place, folder in real.items():
            if is_in(real_place(fixed_beginning(pattern)), folder):
                raise SettingsError(
                    f"{key} {pattern!r} lies in {place} {written[place]}, where runs overwrite and remove files; set "
                    f"{place} to a folder without inputs"
                )


def is_in(path: str, folder: str) -> bool:
    """Whether a real path or URL is the folder itself or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def fixed_beginning(pattern: str) -> str:
    """The path of a file or folder; for a glob, its folders before the first wildcard. Folders that exist have no
    wildcards in their names."""
    while glob.has_magic(pattern) and not os.path.exists(pattern):
        pattern = os.path.dirname(pattern)
    return pattern


def relative_source(path: str, folder: Path, project: Path) -> str:
    """A path as settings in a folder write it: relative if it is in the project; else names of folders that exist are
    escaped, so that they are no patterns even if the folders move."""
    absolute = os.path.abspath(os.path.expanduser(path))
    if is_url(path):
        return path
    if os.path.commonpath([absolute, project]) == str(project):
        return os.path.relpath(absolute, folder)
    fixed = fixed_beginning(absolute)
    return glob.escape(fixed) + absolute.removeprefix(fixed)


def config_file(config: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
    """The file that `load_settings` reads, None if there is none.

    Raises:
        SettingsError: the named file does not exist.
    """
    named = config or environ.get(CONFIG_VARIABLE)
    path = Path(named) if named else Path(DEFAULT_FILE)
    if path.is_file():
        return path.resolve()
    if named:
        where = "the config argument" if config else CONFIG_VARIABLE
        raise SettingsError(f"{where} names {str(path)!r}, which is not a file; give the path of a TOML file")
    return None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        # Editors on Windows begin files with a byte-order mark.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML, which is UTF-8: {error}") from None
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None


def _read_environment(environ: Mapping[str, str], data: Mapping[str, Any]) -> dict[str, Any]:
    """Values from the environment, as nested tables. Lists, tables and whole sections are JSON. data: the file's
    values. SettingsError if a variable is no setting, or contradicts another one or the file's [[input]] blocks."""
    given: dict[str, Any] = {}
    for name in sorted(environ, key=str.lower):
        if not name.upper().startswith(ENV_PREFIX) or name.upper() == CONFIG_VARIABLE:
            continue
        parts = name[len(ENV_PREFIX) :].lower().split("__")
        if problem := removed_setting(".".join(parts)):
            raise SettingsError(f"environment variable {name}: {problem}")
        if (section := parts[0]) not in Settings.model_fields:
            raise SettingsError(
                f"environment variable {name} is not a setting: unknown section {section!r}"
                f"{_nearest(section, Settings.model_fields)}"
            )
        value: Any = environ[name]
        if value.lstrip().startswith(("[", "{")):
            with suppress(ValueError):
                value = json.loads(value)
        for part in reversed(parts):
            value = {part: value}
        merged = _merge(given, value)
        if merged != _merge(value, given):
            raise SettingsError(f"environment variable {name} contradicts another one; unset one of the two")
        given = merged
    if isinstance(data.get("input"), list) and isinstance(given.get("input"), dict):
        key = min(given["input"])
        raise SettingsError(
            f"environment variable {ENV_PREFIX}INPUT__{key.upper()} sets {key} of one input, and the file has "
            f"[[input]] blocks; set it there, or all of them in {ENV_PREFIX}INPUT, a JSON list"
        )
    return given


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def anchored(settings: Settings, base: Path) -> Settings:
    """The settings with absolute paths. base: the folder of the settings file, which relative paths start from. URLs
    stay.

    Raises:
        SettingsError: a path cannot be used; see `why_unusable` and `refuse_overlap`.
    """

    # os.path takes any text; `Path.expanduser` raises for unknown users.
    def absolute(path: str | Path) -> str:
        whole = os.path.normpath(base / os.path.expanduser(path))
        if why := why_unusable(whole):
            raise SettingsError(why)
        return whole

    def absolute_paths(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(path if is_url(path) else absolute(path) for path in paths)

    def absolute_place(place: Place | None) -> Place | None:
        return place if place is None or isinstance(place, Url) else Path(absolute(place))

    def absolute_model(model: str) -> str:
        local = model.startswith((".", "~")) or os.path.isdir(base / model)
        return absolute(model) if local and model != "bootstrap" else model

    deep = settings.deep
    changes: dict[str, dict[str, Any]] = {
        "heldout": {"documents": absolute_paths(settings.heldout.paths) or settings.heldout.share},
        "store": {"path": absolute_place(settings.store.path)},
        "output": {"path": absolute_place(settings.output.path)},
        "exports": {"path": absolute_place(settings.exports.path)},
        "model": {"base": absolute_model(settings.model.base)},
        "deep": {"model": deep.model and absolute_model(deep.model)},
        "embedding": {"path": absolute_place(settings.embedding.path)},
        "curriculum": {"path": absolute_place(settings.curriculum.path)},
    }
    update = {name: getattr(settings, name).model_copy(update=change) for name, change in changes.items()}
    settings = settings.model_copy(update={"input": settings.input.with_paths(absolute_paths), **update})
    refuse_overlap(settings)
    return settings


def _explain(error: ValidationError, path: Path | None) -> str:
    lines = []
    for (block, place), group in groupby(map(_in_table, error.errors()), key=_block_and_field):
        problems = [problem for _, problem in group]
        if not place:  # several sections; the message names them
            lines += [problem["msg"].removeprefix("Value error, ") for problem in problems]
            continue
        for inside, problem, message in _of_one_type(place, problems):
            key = ".".join(str(part) for part in inside if part != "[key]")
            if problem["type"] == "extra_forbidden":
                lines.append(f"{block}unknown key {key!r}{_nearest(key, valid_keys())}")
            else:
                # A whole section's message names the fault itself.
                whole = len(inside) == 1 and isinstance(problem["input"], dict)
                value = "" if whole else f" = {problem['input']!r}"
                if isinstance(problem["input"], str) and message.endswith(("a list", "a table")):
                    message += ", in the environment as JSON"
                lines.append(f"{block}{key}{value}: {message}")
    where = f"{path} or the environment" if path else "settings"
    return f"{where}: " + "; ".join(lines)


def _in_table(problem: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The start of the message ("" outside [[input]] blocks), and the problem as if the block were a table."""
    match problem["loc"]:
        case ("input", int(number), *inside):
            return f"[[input]] block {number + 1}: ", {**problem, "loc": ("input", *inside)}
    return "", problem


def _block_and_field(problem: tuple[str, Mapping[str, Any]]) -> tuple[str, tuple[int | str, ...]]:
    """The block, section and key of a problem, as far as it has them."""
    block, details = problem
    return block, details["loc"][:2]


def _of_one_type(
    place: tuple[int | str, ...], problems: list[Mapping[str, Any]]
) -> Iterator[tuple[tuple[int | str, ...], Mapping[str, Any], str]]:
    """(place, problem, message) for the problems of a field. A field of several types keeps only problems of the
    value's own type; if no type fits, one message names all types."""
    messages = [problem["msg"].removeprefix("Value error, ") for problem in problems]
    for in_toml, in_python in (("a list", "a valid tuple"), ("a table", "a valid dictionary")):
        messages = [message.replace(in_python, in_toml) for message in messages]
    if not _has_several_types(place):
        yield from ((problem["loc"], problem, text) for problem, text in zip(problems, messages, strict=True))
        return
    deepest = max(len(problem["loc"]) for problem in problems)
    inner = [number for number, problem in enumerate(problems) if len(problem["loc"]) == deepest]
    fitting = [number for number in inner if not WRONG_TYPE.search(problems[number]["type"])]
    if deepest > len(place) + 1 or fitting:
        for number in fitting or inner:
            problem = problems[number]
            yield place + problem["loc"][len(place) + 1 :], problem, messages[number]
    else:
        others = [message.removeprefix("Input should be ") for message in messages[1:]]
        yield place, problems[0], ", or ".join([messages[0], *others])


def _has_several_types(place: tuple[int | str, ...]) -> bool:
    if len(place) < 2 or ".".join(map(str, place)) not in valid_keys():
        return False
    section = Settings.model_fields[str(place[0])].annotation
    assert isinstance(section, type) and issubclass(section, BaseModel)
    types = section.model_fields[str(place[1])].annotation
    return get_origin(types) in (Union, UnionType) and len({*get_args(types)} - {NoneType}) > 1


def valid_keys() -> list[str]:
    """Every key as `section.key`, and `seed` and `refit`."""
    keys = []
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys += [f"{name}.{key}" for key in section.model_fields]
        else:
            keys.append(name)
    return keys


def _nearest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.4)
    return (
        f"; the nearest valid key is {close[0]!r}" if close else f"; valid keys: {', '.join(sorted(known))}"
    )
