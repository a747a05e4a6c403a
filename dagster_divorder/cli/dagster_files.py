"""`divorder init --dagster`: the files that `dagster dev` needs to show a corpus and to keep its history."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

from dagster_divorder.errors import SettingsError
from dagster_divorder.view.answer import Part

OURS = Path(__file__).parents[1] / "defs"
PROJECT = [
    "pyproject.toml names the definitions that Dagster shows here; merge the corpus's definitions into them:",
    "  from dagster_divorder import build_definitions",
]


def write_dagster_files(file: Path) -> tuple[list[Part], dict[str, str | None]]:
    """Write dagster.yaml and workspace.yaml beside a settings file. Existing files stay; where pyproject.toml names the
    definitions, `dagster dev` reads no workspace file.

    Returns:
        lines about both files, what to add to existing ones, and how to start Dagster; the paths of "dagster" and
        "workspace", None without one.

    Raises:
        SettingsError: a file cannot be read or written.
    """
    from dagster_divorder.settings import DEFAULT_FILE

    folder, parts, paths = file.absolute().parent, list[Part](), dict[str, str | None]()
    try:
        project = folder / "pyproject.toml"
        text = project.read_text(encoding="utf-8") if project.exists() else ""
        is_project = bool(tomllib.loads(text).get("tool", {}).keys() & {"dagster", "dg"})
        for name in ("dagster", "workspace"):
            if name == "workspace" and is_project:
                parts += [*PROJECT, f'  defs = dg.Definitions.merge(defs, build_definitions("{file.name}"))']
                paths[name] = None
                continue
            ours = OURS / f"{name}.yaml"
            path = next(filter(Path.exists, folder.glob(f"{name}.y*ml")), folder / f"{name}.yaml")
            paths[name] = str(path)
            there = path.read_bytes() if path.exists() else None
            if there is None:
                path.write_bytes(ours.read_bytes())
                parts.append(f"wrote {path}")
            else:
                lacks = "" if there == ours.read_bytes() else f"; add to it what it lacks of {ours}"
                parts.append(f"{path} is there already, and stays as it is{lacks}")
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot write Dagster's files into {folder}: {error}") from error
    config = "" if file.name == DEFAULT_FILE else f"DIVORDER_CONFIG={shlex.quote(file.name)} "
    parts += [
        f"start Dagster in {folder}:",
        f"  {'' if is_project else config}dagster dev",
        "  export DAGSTER_HOME=$PWD    # Dagster then shows divorder run too; dagster-daemon needs it",
    ]
    return parts, paths
