"""docs/recipes.md: the settings of each recipe, added to those of `divorder init`, run on a small corpus, where another
output comes of them. What each setting does is for the tests of its stage."""

from __future__ import annotations

import contextlib
import copy
import functools
import gzip
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomlkit

from dagster_divorder.cli import main
from tests.conftest import over, topic_records, write_jsonl

PAGE = (Path(__file__).parent.parent / "docs/recipes.md").read_text()
RECIPES = {
    section.partition("\n")[0]: [
        tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", section, re.S)
    ]
    for section in PAGE.split("\n## ")[1:]
    if "```toml" in section
}
SMALL = {
    "advanced": {"vocab_size": 512, "token_dims": 16},
    "clusters": {"k": 4},
    "sequence": {"length": 64, "batch": 4},
    "output": {"sidecars": ()},
    "engine": {"workers": 1},
}
FOR_THIS_CORPUS: dict[str, dict[str, Any]] = {
    "Some sources should be read more often, others in part": {"mixing": {"total_tokens": 20_000}},
    "I appended data: do trained batches stay?": {"order": {"frozen_tokens": 2048}},
    "I want to see whether it is worth it": {
        "heldout": {"documents": 0.1},
        "evidence": {"tokens": 512},
    },
    "My loss has a spike": {"order": {"frozen_tokens": 2048, "cut": ["doc-0-7"]}},
    "I can train on a tenth of my corpus": {"selection": {"tokens": 1200}},
}
"""Recipe -> what of it has to be smaller here."""
RULES = "I append data every day"
"""Decides about later runs alone."""


def merged(*tables: dict[str, Any]) -> dict[str, Any]:
    """Settings, the later ones before the earlier ones."""
    return functools.reduce(over, tables)


def write_corpus(folder: Path) -> None:
    """Records of every field that a recipe names, vectors by their ids, and the folders of several inputs."""
    records = topic_records(40)
    for at, record in enumerate(records):
        record |= {"source": "web" if at % 3 else "books", "lang": "en" if at % 4 else "de"}
        record |= {"id": f"doc-0-{at}", "quality": at}
    write_jsonl(folder / "in/docs.jsonl", records)
    vectors = np.random.default_rng(0).normal(size=(len(records), 8)).astype(np.float32)
    np.save(folder / "vectors.npy", vectors)
    for name in ("books", "web"):
        (folder / name).mkdir()
    pq.write_table(
        pa.table({"text": [record["text"] for record in records[:40]]}), folder / "books/a.parquet"
    )
    web = [{"body": f"{r['text']} too", "url": r["id"], "meta": {"site": r["lang"]}} for r in records]
    (folder / "web/a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(map(orjson.dumps, web))))


pytestmark = pytest.mark.slow


def made(folder: Path, *tables: dict[str, Any]) -> dict[str, bytes]:
    """What a run under some settings writes in the current folder, by name."""
    (folder / "divorder.toml").write_text(tomlkit.dumps(merged(*tables)))
    assert main(["run"]) == 0
    files = [path for path in (folder / "divorder").glob("[ce]*/**/*") if path.suffix != ".json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, bytes]]:
    """A folder in which the proposal of `init` has run, the proposal, and what came out."""
    folder = tmp_path_factory.mktemp("first")
    write_corpus(folder)
    with contextlib.chdir(folder):
        assert main(["init", "in"]) == 0
        proposed = tomllib.loads((folder / "divorder.toml").read_text())
        proposed["order"]["traits"] = {"cluster": 1.0, "length": 1.0}
        return folder, proposed, made(folder, proposed, SMALL, {"order": {"frozen_tokens": 0}})


@pytest.mark.parametrize(
    ("title", "recipe"),
    [(title, recipe) for title, recipes in RECIPES.items() for recipe in recipes],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_recipe_runs_and_changes_what_comes_out(
    title: str, recipe: dict[str, Any], first: tuple[Path, dict[str, Any], dict[str, bytes]], tmp_path: Path
) -> None:
    source, proposed, before = first
    folder, proposed = tmp_path / "copy", copy.deepcopy(proposed)
    shutil.copytree(source, folder)
    if "append" in recipe.get("order", {}):
        del proposed["order"]["frozen_tokens"]
        write_jsonl(folder / "in/more.jsonl", [{"text": "new words", "source": "web", "id": "new"}])
    else:
        recipe = merged(recipe, FOR_THIS_CORPUS.get(title, {}))
    if isinstance(recipe.get("input"), list):
        del proposed["input"]
        for block in recipe["input"]:
            block["paths"] = [path.replace("/data", str(folder)) for path in block["paths"]]
    with contextlib.chdir(folder):
        assert (made(folder, proposed, SMALL, recipe) != before) == (title != RULES)
