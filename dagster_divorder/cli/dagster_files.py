"""`divorder init --dagster`: the files that `dagster dev` needs to show a corpus and to keep its history."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

from dagster_divorder.errors import SettingsError
from dagster_divorder.view.answer import Part

OURS = Path(__file__).parents[1] / "defs"
HISTORY, WORKSPACE = "dagster.yaml", "workspace.yaml"

HISTORY_LINES = {
    "(storage|run_storage)": "storage: {sqlite: {base_dir: .dagster_home/storage}}    # keeps runs and events",
    "nux": "nux: {enabled: false}    # no newsletter prompt on the first visit",
}
"""Lines that a project's own dagster.yaml needs, by a pattern that finds equivalent keys."""
LOCATION_LINE = "- python_module: {module_name: dagster_divorder.definitions, location_name: divorder}"


def write_dagster_files(file: Path) -> tuple[list[Part], dict[str, str | None]]:
    """Write dagster.yaml and workspace.yaml beside a settings file. Existing files stay.

    Returns:
        lines about both files, what to add to existing ones, and how to start Dagster; the paths of "dagster" and
        "workspace", None where `dagster dev` reads no workspace file.

    Raises:
        SettingsError: a file cannot be read or written.
    """
    from dagster_divorder.settings import DEFAULT_FILE

    folder = file.absolute().parent
    try:
        history, workspace, parts = folder / HISTORY, _workspace_file(folder), list[Part]()
        parts += _history(history)
        parts += _workspace(workspace) if workspace else _project(file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot write Dagster's files into {folder}: {error}") from error
    config = "" if file.name == DEFAULT_FILE else f"DIVORDER_CONFIG={shlex.quote(file.name)} "
    parts += [
        f"start Dagster in {folder}:",
        f"  {config if workspace else ''}dagster dev",
        "  export DAGSTER_HOME=$PWD    # Dagster then shows divorder run too; dagster-daemon needs it",
    ]
    return parts, {"dagster": str(history), "workspace": str(workspace) if workspace else None}


def _history(path: Path) -> list[Part]:
    if not path.exists():
        path.write_bytes((OURS / HISTORY).read_bytes())
        return [f"{path} keeps Dagster's history"]
    text = path.read_text(encoding="utf-8")
    missing = [f"  {line}" for keys, line in HISTORY_LINES.items() if not re.search(f"^{keys}:", text, re.M)]
    return [f"{path} is there already, and stays as it is{'; add to it:' if missing else ''}", *missing]


def _workspace_file(folder: Path) -> Path | None:
    """The workspace file that `dagster dev` reads in a folder, which may not exist; None if it reads pyproject.toml."""
    project = folder / "pyproject.toml"
    tools = tomllib.loads(project.read_text(encoding="utf-8")).get("tool", {}) if project.exists() else {}
    if "dagster" in tools or "dg" in tools:
        return None
    names = (WORKSPACE, "workspace.yml")
    return next((folder / name for name in names if (folder / name).exists()), folder / WORKSPACE)


def _workspace(path: Path) -> list[Part]:
    if not path.exists():
        path.write_bytes((OURS / WORKSPACE).read_bytes())
        return [f"{path} names what Dagster shows"]
    if "dagster_divorder" in path.read_text(encoding="utf-8"):
        return [f"{path} is there already, and stays as it is"]
    return [
        f"{path} is there already, and stays as it is; add to its load_from:",
        f"  {LOCATION_LINE}",
    ]


def _project(file: Path) -> list[Part]:
    return [
        "pyproject.toml names the definitions that Dagster shows here; merge the corpus's definitions into them:",
        "  from dagster_divorder import build_definitions",
        f'  defs = dg.Definitions.merge(defs, build_definitions("{file.name}"))',
    ]
