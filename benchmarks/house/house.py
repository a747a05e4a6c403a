"""How large is the house, which way do its imports go, and how much of it does a first run call?

Prints lines by room (the package and its tests), the arrows between rooms (one room imports of another), the arrows
upwards, a circle of modules if there is one, and the modules and functions that a first run on some records calls,
and those that a line which was appended later walks through.

    python benchmarks/house/house.py [--run]

An arrow goes upwards where it leads to a room of a higher floor than its own; FLOORS states them, the lowest first.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.test_layers import arrows  # noqa: E402

PACKAGE = ROOT / "dagster_divorder"
RECORDS = 1000
CONTENT = ("corpus", "chats", "models", "store", "stages/text", "write")
"""Rooms that handle the content of a line: its bytes, text and tokens."""
FLOORS = (
    ("errors", "extras", "caches"),
    ("core",),
    ("settings",),
    ("engine", "trainers"),
    ("view",),
    ("tables", "store"),
    ("corpus", "readers"),
    ("models",),
    ("write",),
    ("pipeline",),
    ("stages",),
    ("defs", "results", "verify", "forensics", "propose", "streams", "torch", "warm"),
    ("definitions", "cli"),
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """A folder of the package; inside core and stages a folder of these."""
    parts = module.split(".")[1:]
    deep = len(parts) > 1 and parts[0] in ("core", "stages") and (PACKAGE / parts[0] / parts[1]).is_dir()
    return "/".join(parts[:2] if deep else parts[:1]) or "dagster_divorder"


def lines_by_room(folder: Path) -> Counter[str]:
    lines: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        place = path.relative_to(folder).parts
        lines[place[0] if len(place) > 1 else "."] += len(path.read_text().splitlines())
    return lines


Called = set[tuple[str, str, int]]
"""Functions of this package: file, qualified name, line."""


def called_by(run: Callable[[], object]) -> Called:
    """The functions of this package that a run calls in this process."""
    called: Called = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        is_function = not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(str(PACKAGE)):
            called.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return called


def called_in_runs() -> tuple[Called, Called]:
    """(Functions that a first run on RECORDS calls; those that a run calls for appended records, and not a run with
    nothing new: the walk of a line from its file to an export)."""
    from dagster_divorder import run_all
    from dagster_divorder.settings import load_settings
    from tests.conftest import topic_records, write_jsonl

    with tempfile.TemporaryDirectory() as folder:
        corpus, file = Path(folder) / "docs.jsonl", Path(folder) / "divorder.toml"
        records = topic_records(RECORDS // 4 + 1)
        write_jsonl(corpus, records[:RECORDS])
        file.write_text(
            f'[input]\npaths = ["{corpus}"]\n[exports]\nformats = ["ds"]\n[order]\nfrozen_tokens = 0\n'
        )
        settings = load_settings(file)
        first = called_by(lambda: run_all(settings))
        nothing_new = called_by(lambda: run_all(settings))
        write_jsonl(corpus, records)
        return first, called_by(lambda: run_all(settings)) - nothing_new


def modules_in(called: Called) -> int:
    return len({file for file, _, _ in called})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", action="store_true", help="also count what runs on the sample call")
    wanted = parser.parse_args()

    for folder in (PACKAGE, ROOT / "tests"):
        lines = lines_by_room(folder)
        files = sum(1 for _ in folder.rglob("*.py"))
        print(f"{folder.name}: {sum(lines.values()):,} lines in {files} files")
        print("  " + ", ".join(f"{room} {count:,}" for room, count in sorted(lines.items())))

    modules = {module_of(path): path for path in PACKAGE.rglob("*.py")}
    imported = {
        module: arrows(ast.parse(path.read_text()), modules.keys() - {module})
        for module, path in modules.items()
    }
    rooms = {(room_of(module), room_of(other)) for module, others in imported.items() for other in others}
    rooms = {(a, b) for a, b in rooms if a != b}
    floor = {room: height for height, floor in enumerate(FLOORS) for room in floor}
    top = {(a.split("/")[0], b.split("/")[0]) for a, b in rooms} - {(room, room) for room in floor}
    top = {(a, b) for a, b in top if a != b}
    print(f"arrows between rooms: {len(rooms)}; between the folders of the package: {len(top)}")
    for a, b in sorted(top):
        if floor.get(a, len(FLOORS)) < floor.get(b, -1):
            which = [
                f"{module} -> {other}"
                for module, to in imported.items()
                for other in to
                if room_of(module).split("/")[0] == a and room_of(other).split("/")[0] == b
            ]
            print(f"  upwards: {a} -> {b}: {'; '.join(sorted(which))}")
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        print(f"a circle of modules: {' <- '.join(error.args[1])}")
    else:
        print("no circle of modules")
    if wanted.run:
        first, line = called_in_runs()
        print(f"a first run calls {len(first)} functions in {modules_in(first)} modules")
        print(f"an appended line walks through {len(line)} functions in {modules_in(line)} modules")
        content = {each for each in line if room_of(module_of(Path(each[0]))) in CONTENT}
        print(f"  {len(content)} in {modules_in(content)} modules of {', '.join(CONTENT)}")
        rooms_walked = Counter(room_of(module_of(Path(file))) for file, _, _ in line)
        print("  " + ", ".join(f"{room} {count}" for room, count in sorted(rooms_walked.items())))


if __name__ == "__main__":
    main()
