"""Settings from file and environment. docs/decisions/libraries.md says why pydantic-settings does not serve."""

from __future__ import annotations

import glob
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dagster_divorder.core.order.strategy import nearest
from dagster_divorder.errors import SettingsError
from dagster_divorder.removed import removed_setting
from dagster_divorder.settings.model import Settings
from dagster_divorder.settings.places import Place, Url, is_url, real_place, why_unusable

ENV_PREFIX = "DIVORDER_"
CONFIG_VARIABLE = "DIVORDER_CONFIG"
DEFAULT_FILE = "divorder.toml"


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
    given = _merge(data, _read_environment(environ, data))
    try:
        settings = Settings.model_validate(given)
    except ValidationError as error:
        where = f"{path} or the environment" if path else "settings"
        raise SettingsError(f"{where}: {'; '.join(_sentences(error, given))}") from None
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


def set_key(path: Path, key: str, value: int | None, environ: Mapping[str, str] | None = None) -> None:
    """Writes the value of a key (`section.key`) into a TOML file; None only checks that it can be written. Other lines
    and comments stay. Replaces the file atomically.

    Raises:
        SettingsError: the file cannot be read or written, or the environment overrides the key.
    """
    import tomlkit

    refuse_unwritable(path)
    section, name = key.split(".")
    if name in _read_environment(os.environ if environ is None else environ, {}).get(section, {}):
        variable = f"{ENV_PREFIX}{section.upper()}"
        raise SettingsError(
            f"{variable} or {variable}__{name.upper()} sets {key} in the environment, which overrides {path}; set it "
            "there"
        )
    _read_toml(path)
    if value is None:
        return
    document = tomlkit.parse(path.read_text(encoding="utf-8-sig"))
    table = document.setdefault(section, tomlkit.table())
    if isinstance(table, tomlkit.items.Table) and table.is_super_table():
        table.trivia.comment = ""  # of a table inside, which the new header would repeat
    table[name] = value
    write_settings_file(path, tomlkit.dumps(document))


def refuse_overlap(settings: Settings) -> None:
    """Checks that no input lies where files are written. (A store or an output *below* an input folder is allowed:
    reading the folder skips it.)

    Raises:
        SettingsError: store, output or exports overlap, or an input lies in one of them.
    """
    written = {"store.path": settings.store.path, "output.path": settings.output.path}
    if settings.exports.formats:
        written["exports.path"] = settings.exports.path
    real = {key: real_place(path) for key, path in written.items()}
    for inner, outer in permutations(written, 2):
        if is_in(real[inner], real[outer]):
            raise SettingsError(
                f"{inner} {written[inner]} and {outer} {written[outer]} overlap; expected two folders, neither in the "
                "other"
            )
    sources = [("input.paths", path) for path in settings.input.paths]
    sources += [("embedding.path", str(settings.embedding.path))] if settings.embedding.path else []
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
    """The file that `load_settings` reads, None if there is none. SettingsError if the named file does not exist."""
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
    """Values from the environment, as nested tables. Lists, tables and whole sections are JSON. data: the
    file's values. SettingsError if a variable is no setting, or contradicts [[input]] blocks."""
    given: dict[str, Any] = {}
    for name in sorted(environ, key=str.lower):
        if not name.upper().startswith(ENV_PREFIX) or name.upper() == CONFIG_VARIABLE:
            continue
        section, *keys = name[len(ENV_PREFIX) :].lower().split("__")
        if section not in Settings.model_fields:
            near = f"unknown section {section!r}{nearest(section, Settings.model_fields)}"
            gone = removed_setting(".".join([section, *keys]))
            raise SettingsError(f"environment variable {name} is not a setting: {gone or near}")
        if keys and isinstance(_merge(data, given).get(section), list):
            raise SettingsError(
                f"environment variable {name} sets {keys[0]} of one input, and there are several; set it in the file's "
                f"[[input]] blocks, or all of them in {ENV_PREFIX}INPUT, a JSON list"
            )
        value: Any = environ[name]
        if value.lstrip().startswith(("[", "{")):
            with suppress(ValueError):
                value = json.loads(value)
        for part in reversed([section, *keys]):
            value = {part: value}
        given = _merge(given, value)
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

    def absolute_model(model: str | None) -> str | None:
        local = model and (model.startswith((".", "~")) or os.path.isdir(base / model))
        return absolute(model) if local and model != "bootstrap" else model  # type: ignore[arg-type]

    changes: dict[str, dict[str, Any]] = {
        "model": {"base": absolute_model(settings.model.base)},
        "deep": {"model": absolute_model(settings.deep.model)},
    }
    for name in ("store", "output", "exports", "embedding"):
        changes[name] = {"path": absolute_place(getattr(settings, name).path)}
    update = {name: getattr(settings, name).model_copy(update=change) for name, change in changes.items()}
    settings = settings.model_copy(update={"input": settings.input.with_paths(absolute_paths), **update})
    refuse_overlap(settings)
    return settings


def _sentences(error: ValidationError, given: Mapping[str, Any]) -> list[str]:
    """A sentence a wrong key."""
    sentences = []
    for problem in error.errors():
        kind, value, message = problem["type"], problem["input"], problem["msg"].removeprefix("Value error, ")
        place, block = [str(part) for part in problem["loc"] if part != "[key]"], ""
        if place[:1] == ["input"] and isinstance(given.get("input"), list) and place[1:]:
            block = f"[[input]] block {int(place.pop(1)) + 1}: "
        key = ".".join(place)
        message = message.replace("a valid tuple", "a list").replace("a valid dictionary", "a table")
        if isinstance(value, str) and message.endswith(("a list", "a table")):
            message += ", in the environment as JSON"
        named = ".".join(part for part in place if not part.isdigit())
        if kind == "extra_forbidden" and (gone := removed_setting(named)):
            sentences.append(block + gone)
        elif kind == "extra_forbidden":
            keys = [known for known in valid_keys() if known.startswith(f"{place[0]}.")]
            keys = keys or [*Settings.model_fields]
            near = nearest(key, [*valid_keys(), *keys]) or f"; expected {', '.join(keys)}"
            sentences.append(f"{block}unknown key {key!r}{near}")
        elif not key:  # several sections; the message names them
            sentences.append(message)
        else:
            # The message of a section or a missing key names the fault itself.
            whole = kind == "missing" or (len(place) == 1 and isinstance(value, dict))
            sentences.append(f"{block}{key}{'' if whole else f' = {value!r}'}: {message}")
    return sentences


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
