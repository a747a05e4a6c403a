"""What pip installs: a wheel, tried in an environment of its own, and a source archive. And what deploy/ says."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from shutil import copy2, copystat

import pytest
import yaml

import dagster_divorder
from tests.conftest import ROOT, topic_records, variables_without, write_jsonl

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
SMALL = {"ADVANCED__VOCAB_SIZE": "512", "ADVANCED__TOKEN_DIMS": "16", "CLUSTERS__K": "4"}


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """What a command prints that sees neither this repository nor settings of DivOrder's."""
    own = variables_without("DAGSTER_", "DIVORDER_", "MYPY", "PYTHONPATH")
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=own | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def repository() -> list[str]:
    """Files of the repository, those among them that are not committed yet."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git repository here that says which files are its own")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def archives(repository: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive, both built from the repository's files."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in repository:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        copy2(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", dist, cwd=source)
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return wheel, archive


@pytest.fixture(scope="module")
def python(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment: the wheel is installed, and what it needs is that of this environment."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin/python"
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # Folders that a .pth file names are searched last, and their own .pth files (an editable install) have no effect.
    (packages / "others.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    options = ("--no-deps", "--no-index", "--no-compile", "--ignore-installed")
    run(*PIP, "--python", python, "install", *options, archives[0], cwd=folder)
    # As if these kernels had been compiled there, which takes half a minute.
    kernels = Path("dagster_divorder/core/kernels")
    (packages / kernels / "__pycache__").mkdir()
    for source in (ROOT / kernels).glob("*.py"):
        copystat(source, packages / kernels / source.name)
    for compiled in (ROOT / kernels).glob("__pycache__/*"):
        copy2(compiled, packages / kernels / "__pycache__")
    return python


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_its_page(
    archives: tuple[Path, Path], repository: list[str]
) -> None:
    wheel = zipfile.ZipFile(archives[0])
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == {name for name in repository if name.startswith("dagster_divorder/")}
    assert {"dagster_divorder/py.typed", "dagster_divorder/view/report/templates/style.css"} < files
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    # The page of PyPI.
    assert wheel.read(metadata).endswith((ROOT / "README.md").read_bytes())


@pytest.mark.slow
def test_the_source_archive_holds_the_repository(archives: tuple[Path, Path], repository: list[str]) -> None:
    with tarfile.open(archives[1]) as file:
        files = {info.name.partition("/")[2] for info in file if info.isfile()}
    generated = {name for name in files if re.match(r"PKG-INFO|setup\.cfg|dagster_divorder\.egg-info/", name)}
    assert files - generated == set(repository)


@pytest.mark.slow
def test_the_installed_command_goes_from_records_to_an_output(python: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    divorder = python.with_name("divorder")
    run(divorder, "init", "docs.jsonl", "--yes", cwd=tmp_path)
    run(divorder, "run", cwd=tmp_path, **{f"DIVORDER_{name}": value for name, value in SMALL.items()})
    output = tmp_path / "divorder/curated"
    records, ordered = (
        file.read_text().splitlines() for file in (tmp_path / "docs.jsonl", output / "curated.jsonl")
    )
    assert sorted(ordered) == sorted(records) and ordered != records


SCRIPT = """\
import dagster_divorder as divorder

reveal_type(divorder.load_settings().seed)
divorder.order({"topic": ["sea", "rail"]}, by=1)
divorder.reordered
"""


@pytest.mark.slow
def test_mypy_sees_the_types_of_the_installed_package(python: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    # Types of other packages are not read, nor are those of modules that the script does not need: a minute.
    read = ("dagster_divorder", "dagster_divorder.settings.*", "dagster_divorder.tables.*")
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nfollow_imports = skip\n"
        + "".join(f"[mypy-{modules}]\nfollow_imports = silent\n" for modules in read)
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", python, "--no-incremental", "script.py"],
        cwd=tmp_path,
        env=variables_without("PYTHONPATH"),
        capture_output=True,
        text=True,
    )
    assert re.findall(r"^script.py:(\d+): (?:note|error): (.*?)[;\n]", done.stdout, re.M) == [
        ("3", 'Revealed type is "int"'),
        ("4", 'Argument "by" to "order" has incompatible type "int"'),
        ("5", 'Module has no attribute "reordered"'),
    ], done.stdout + done.stderr


def test_the_changelog_and_the_citation_are_of_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    version, date = re.findall(
        r"^(?:version|date-released): (.+)$", (ROOT / "CITATION.cff").read_text(), re.M
    )
    assert headings[:2] == ["[Unreleased]", f"[{version}] - {date}"]
    assert version == dagster_divorder.__version__


DEPLOY = Path(__file__).parent.parent / "deploy"


def test_ports_are_open_to_this_machine_alone() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_a_secret_that_is_not_set_is_refused_with_a_sentence() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    variables = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    assert {name for name, _ in variables} == {"S3_SECRET", "POSTGRES_PASSWORD"}
    for _, otherwise in variables:
        assert re.fullmatch(r":\?set it to a \w+ of your own, .+", otherwise)
    assert not re.search(r"(PASSWORD|SECRET\w*): *[\w\"'](?!\$\{)", text)


def test_the_folders_of_the_image_that_are_written_to_are_writable_for_any_user() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (variables,) = re.findall(r"^ENV (HOME=.*)$", text, re.MULTILINE)
    assert dict(part.split("=") for part in variables.split()).keys() == {
        "HOME",
        "DAGSTER_HOME",
        "NUMBA_CACHE_DIR",
    }
    # After the kernels are compiled into one of them.
    warmed = text.partition("dagster_divorder.warm && ")[2].partition("\n")[0]
    assert warmed == 'chmod -R a+rwX "$HOME" "$DAGSTER_HOME" "$NUMBA_CACHE_DIR"'
