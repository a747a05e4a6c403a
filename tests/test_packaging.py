"""What pip installs: a wheel and a source archive hold every file that the package reads."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import dagster_divorder

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_wheel_and_a_source_archive_hold_the_templates_of_the_report(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(
        ROOT / "dagster_divorder", source / "dagster_divorder", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,), (archive,) = (list((tmp_path / "dist").glob(of)) for of in ("*.whl", "*.tar.gz"))
    with zipfile.ZipFile(wheel) as file, tarfile.open(archive) as packed:
        inside = {"wheel": file.namelist(), "archive": [name.partition("/")[2] for name in packed.getnames()]}
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "dagster_divorder").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"dagster_divorder/view/report/templates/style.css"} < expected
    for name, files in inside.items():
        assert expected <= set(files), name


def test_the_changelog_and_the_citation_are_of_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    version, date = re.findall(
        r"^(?:version|date-released): (.+)$", (ROOT / "CITATION.cff").read_text(), re.M
    )
    assert headings[:2] == ["[Unreleased]", f"[{version}] - {date}"]
    assert version == dagster_divorder.__version__
