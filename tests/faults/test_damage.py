"""Files of the store altered, swapped or deleted: found by their hash, named, made again once they are deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import topic_records, write_jsonl
from tests.faults.conftest import differing, make_corpus, output_of, was_written
from tests.faults.runner import Runner

Damage = Callable[[Path], object]


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# What happens after the damage, so that the file is read.
def lose_output(folder: Path) -> None:
    shutil.rmtree(folder / "curated")


def append(folder: Path) -> None:
    write_jsonl(folder / "in/9.jsonl", topic_records(3, start=700))


def tokenise_again(folder: Path) -> None:
    shutil.rmtree(folder / "store/stages/token_counts")


def embed_again(folder: Path) -> None:
    shutil.rmtree(folder / "store/stages/shallow_embeddings")


def order_again(folder: Path) -> None:
    shutil.rmtree(folder / "store/stages/greedy_order")


EVENTS = (lose_output, append, tokenise_again, embed_again, order_again)

MADE_AGAIN = [
    ("records/*/*.frames", tokenise_again),
    ("views/*", lose_output),
    ("stages/token_counts/*/*", embed_again),
    ("stages/fields/*/*", append),
    ("stages/traits/*/codes.*", order_again),
]


@pytest.fixture(scope="module")
def restore(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> Callable[[], Path]:
    """Gives the folder of a pipeline that has run to its end, always at the same path, since rejects name paths."""
    folder = tmp_path_factory.mktemp("whole") / "corpus"
    config = make_corpus(folder, files=3)
    # A refused record, so that the rejects are not empty.
    (folder / "in/2.jsonl").write_bytes((folder / "in/2.jsonl").read_bytes() + b'{"no": "text"}\n')
    assert runner.run(config, folder / "log") == 0, (folder / "log.out").read_text()
    kept = shutil.copytree(folder, folder.with_name("kept"))

    def restored() -> Path:
        shutil.rmtree(folder)
        return Path(shutil.copytree(kept, folder))

    return restored


@pytest.fixture(scope="module")
def expected(restore: Callable[[], Path], runner: Runner) -> dict[str, Any]:
    """The output after each event, with nothing damaged."""
    found = {}
    for event in EVENTS:
        folder = restore()
        event(folder)
        assert runner.run(folder / "divorder.toml", folder / "log") == 0
        found[event.__name__] = output_of(folder / "divorder.toml")
    return found


@pytest.fixture
def folder(restore: Callable[[], Path], expected: dict[str, Any]) -> Path:
    # After `expected`, which uses the same path.
    return restore()


@pytest.mark.parametrize(("pattern", "event"), MADE_AGAIN, ids=[pattern for pattern, _ in MADE_AGAIN])
def test_a_damaged_file_is_named_and_made_again_once_it_is_deleted(
    pattern: str,
    event: Callable[[Path], None],
    folder: Path,
    runner: Runner,
    expected: dict[str, Any],
) -> None:
    path, config = min((folder / "store").glob(pattern)), folder / "divorder.toml"
    alter(path)
    event(folder)
    assert runner.run(config, folder / "log") == 1
    said = (folder / "log.out").read_text()
    assert f"{path} is damaged" in said and "delete" in said and "Traceback" not in said
    path.unlink()
    assert runner.run(config, folder / "log") == 0, (folder / "log.out").read_text()
    assert differing(config, expected[event.__name__]) == []
    assert runner.run(config, folder / "log") == 0
    assert not was_written(config)


@pytest.mark.parametrize("damage", [alter, Path.unlink])
def test_a_damaged_state_is_refused(damage: Damage, folder: Path, runner: Runner) -> None:
    state = folder / "store/state.json"
    damage(state)
    for command in ("run", "plan", "summary"):
        assert runner.run(folder / "divorder.toml", folder / "log", command=command) == 1
        said = (folder / "log.out").read_text()
        assert f"{state} is {'missing' if damage is Path.unlink else 'damaged'}" in said
        assert "restore it from a copy" in said and "Traceback" not in said


REFUSED = [
    *((alter, stage) for stage in ("base_model", "cluster_names")),
    (Path.unlink, "centroids"),
]
REFIT = {"base_model": "model", "centroids": "clusters"}
"""The name by which `--refit` asks for another fit."""


@pytest.mark.parametrize(
    ("damage", "stage"), REFUSED, ids=[f"{damage.__name__}-{stage}" for damage, stage in REFUSED]
)
def test_fits_are_refused_with_the_remedy_and_the_remedy_works(
    damage: Damage, stage: str, folder: Path, runner: Runner, expected: dict[str, Any]
) -> None:
    (fit,) = (folder / "store/fits" / stage).iterdir()
    damage(max(fit.iterdir()))
    lose_output(folder)
    config = folder / "divorder.toml"
    assert runner.run(config, folder / "log") == 1
    said = (folder / "log.out").read_text()
    assert f"fit {fit} is damaged" in said
    assert "Traceback" not in said
    if stage in REFIT:
        assert f"divorder run --refit {REFIT[stage]} to fit again" in said
        asked = {"command": f"run --refit {REFIT[stage]}"}
        assert runner.run(config, folder / "log", **asked) == 0, (folder / "log.out").read_text()
    else:
        assert f"delete {fit.parent} to fit again" in said
        shutil.rmtree(fit.parent)
    assert runner.run(config, folder / "log") == 0, (folder / "log.out").read_text()
    assert differing(config, expected["lose_output"]) == []
