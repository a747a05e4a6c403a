"""docs/recipes.md: the settings of each recipe, added to those of `divorder init`, on a small corpus of its kind."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results
from dagster_divorder.cli import main
from dagster_divorder.results import Results
from dagster_divorder.stages.evidence.strategy_comparison import DOCUMENTS, SEQUENCES
from tests.conftest import topic_records, write_jsonl

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
FROZEN = 8 * 64 * 4
"""Tokens of eight steps."""


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, the later ones before the earlier ones."""
    whole: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, dict) and isinstance(whole.get(key), dict)
            whole[key] = merged(whole[key], value) if both else value
    return whole


def toml(table: Mapping[str, Any], name: str = "") -> str:
    inner = name.strip("[]") + "." if name else ""
    blocks = {
        key: value
        for key, value in table.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines = [f"[{name}]"] if name else []
    lines += [f"{key} = {json.dumps(table[key])}" for key in table if key not in blocks | tables]
    lines += [toml(value, f"{inner}{key}") for key, value in tables.items()]
    lines += [toml(block, f"[{inner}{key}]") for key in blocks for block in blocks[key]]
    return "\n".join(lines)


def records_of(first: int, number: int) -> list[dict[str, Any]]:
    """Of four topics: a third of the sea in books and in German, the rest of the web, mostly English."""
    records = topic_records(number, first)
    for at, record in enumerate(records):
        record["source"] = "web" if at % 3 else "books"
        record["lang"] = "en" if at % 4 else "de"
        record["id"] = f"doc-{first}-{at}"
    return records


class Case:
    """A folder with a corpus and the settings that `divorder init` writes for it, and the tables of a recipe."""

    def __init__(
        self, folder: Path, recipe: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.recipe, self._capsys = folder, recipe, capsys
        self.config = folder / "divorder.toml"
        self.append(0, 40)
        self.divorder("init", str(folder / "in"))
        self.proposed = tomllib.loads(self.config.read_text())

    def append(self, first: int, number: int) -> None:
        write_jsonl(self.folder / f"in/docs-{first}.jsonl", records_of(first, number))

    def divorder(self, *arguments: str) -> str:
        """What a command prints; it ends well."""
        self._capsys.readouterr()
        status = main(["--config", str(self.config), *arguments])
        said = self._capsys.readouterr()
        assert status == 0, said.err
        return said.out

    def refused(self, *arguments: str) -> str:
        """What a command says that ends with an error."""
        self._capsys.readouterr()
        assert main(["--config", str(self.config), *arguments]) == 1
        return self._capsys.readouterr().err

    def run(self, *tables: Mapping[str, Any]) -> Results:
        """What a run of some settings makes, beside those of a small model."""
        self.write(*tables)
        self.divorder("run")
        return self.results()

    def write(self, *tables: Mapping[str, Any]) -> None:
        self.config.write_text(toml(merged(self.proposed, SMALL, *tables)))

    def results(self) -> Results:
        return load_results(self.folder / "divorder/store")

    def exported(self, name: str = "parquet") -> list[list[int]]:
        """Ids of each row of the export."""
        files = sorted((self.folder / f"divorder/exports/{name}").glob("*.parquet"))
        return [row for file in files for row in pq.ParquetFile(file).read()["input_ids"].to_pylist()]


pytestmark = pytest.mark.slow

CASES: dict[str, Callable[[Case], None]] = {}


def recipe(title: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    def register(case: Callable[[Case], None]) -> Callable[[Case], None]:
        CASES[title] = case
        return case

    return register


@recipe("My corpus has several languages")
def languages(case: Case) -> None:
    results = case.run(*case.recipe)
    assert set(results.documents["lang"]) == {"de", "en"}
    assert "lang: closer to the mix" in case.divorder("summary", "--details")


@recipe("My corpus comes from several places, each with its own fields")
def several_inputs(case: Case) -> None:
    books, web = records_of(100, 5), records_of(200, 5)
    (case.folder / "books").mkdir()
    pq.write_table(
        pa.Table.from_pylist([{"text": record["text"]} for record in books]), case.folder / "books/a.parquet"
    )
    lines = [
        orjson.dumps({"body": record["text"], "url": record["id"], "meta": {"site": record["lang"]}})
        for record in web
    ]
    (case.folder / "web").mkdir()
    (case.folder / "web/a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    (table,) = case.recipe
    here = [
        {**block, "paths": [path.replace("/data", str(case.folder)) for path in block["paths"]]}
        for block in table["input"]
    ]
    # Traits of the one folder that `init` saw.
    del case.proposed["order"]["traits"]
    results = case.run(table, {"input": here})
    assert results.documents["source"].value_counts().to_dict() == {"books": 20, "en": 15, "de": 5}
    assert set(results.documents["id"].dropna()) == {record["id"] for record in web}


@recipe("My sources must keep their shares")
def sources(case: Case) -> None:
    results = case.run(*case.recipe)
    assert set(results.documents["source"]) == {"books", "web"}
    assert "batch TV of source" in case.divorder("summary", "--details")


@recipe("Some sources should be read more often, others in part")
def mixing(case: Case) -> None:
    case.run(*case.recipe, {"mixing": {"total_tokens": 20_000}})
    documents = case.results().documents
    tokens = (documents["tokens"] * documents["repeats"]).groupby(documents["source"]).sum() / 20_000
    assert tokens.to_dict() == pytest.approx(case.recipe[0]["mixing"]["weights"], abs=0.01)


@recipe("The mix should change during training")
def phases(case: Case) -> None:
    case.run(*case.recipe)
    documents = case.results().documents
    first = documents["position"] < documents["position"].quantile(0.5)
    web = documents["source"] == "web"
    tokens = documents["tokens"]
    assert tokens[first & web].sum() / tokens[first].sum() > tokens[~first & web].sum() / tokens[~first].sum()
    assert "source along training" in case.divorder("summary", "--details")


@recipe("My records have a score, and the best should come last")
def curriculum(case: Case) -> None:
    # The records' own order is their quality.
    scored = [record | {"quality": at} for at, record in enumerate(records_of(0, 40))]
    write_jsonl(case.folder / "in/docs-0.jsonl", scored)
    results = case.run(*case.recipe)
    place = results.documents["position"].to_numpy()
    assert np.corrcoef(place, np.arange(len(place)))[0, 1] > 0.9
    assert re.search(
        r"the mean rank of a batch is 0\.0\d+ off the schedule", case.divorder("summary", "--details")
    )


@recipe("I append data every day")
def appending(case: Case) -> None:
    clusters = case.run(*case.recipe).documents["cluster"].tolist()
    case.append(40, 40)
    assert "160 of them new" in case.divorder("plan")
    documents = case.run(*case.recipe).documents
    assert len(documents) == 2 * len(clusters)
    assert documents["cluster"].tolist()[: len(clusters)] == clusters


@recipe("I appended data: do trained batches stay?")
def frozen(case: Case) -> None:
    del case.proposed["order"]["frozen_tokens"]
    case.run()
    before = case.exported()
    case.append(40, 40)
    assert "order.frozen_tokens is unset" in case.divorder("plan")
    frozen_beginning, extend = case.recipe
    assert frozen_beginning == {"order": {"frozen_tokens": 1150 * 256 * 8192}}
    case.divorder("freeze", "--step", "8")
    assert tomllib.loads(case.config.read_text())["order"]["frozen_tokens"] == FROZEN
    assert "order.frozen_tokens is unset" not in case.divorder("plan")
    case.divorder("run")
    after = case.exported()
    assert after[:32] == before[:32]
    assert len(after) > 1.5 * len(before)
    case.append(80, 40)
    case.write()
    assert f"would change from row 0 of {len(after)} on" in case.refused("run")
    case.run({"order": {"frozen_tokens": 0}})
    before = case.exported()
    case.append(120, 40)
    case.write(extend)
    case.divorder("run")
    assert case.exported()[: len(before) - 1] == before[:-1]


@recipe("My documents are books")
def books(case: Case) -> None:
    book = {"text": "a tide and a wave on the sea " * 300, "source": "books"}
    write_jsonl(case.folder / "in/book.jsonl", [book])
    longest = [
        case.run(*tables).sequences["length"].max()
        for tables in ((), (*case.recipe, {"packing": {"piece_tokens": 32}}))
    ]
    assert longest == [64, 32]


@recipe("Documents must not be cut at all")
def best_fit(case: Case) -> None:
    sequences = case.run({"sequence": {"length": 256}}, *case.recipe).sequences
    assert sequences["document"].is_unique
    assert len(sequences) == 160


@recipe("I have embeddings of my own")
def own_embeddings(case: Case) -> None:
    ids = [record["id"] for record in records_of(0, 40)]
    topics = np.eye(4, 8, dtype=np.float32)[np.arange(len(ids)) // 40]
    pq.write_table(
        pa.table({"id": ids[::-1], "embedding": list(topics[::-1])}), case.folder / "vectors.parquet"
    )
    clusters = case.run(*case.recipe).documents["cluster"].to_numpy().reshape(4, -1)
    assert len(set(clusters[:, 0].tolist())) == 4
    assert (clusters == clusters[:, :1]).all()
    case.write(*case.recipe)
    case.divorder("report", "--all")
    assert "external" in (case.folder / "divorder/curated/ordering_report.html").read_text()


@recipe("I train for several epochs")
def epochs(case: Case) -> None:
    case.run(*case.recipe)
    order = np.load(case.folder / "divorder/curated/sequence_order.npy")
    assert len(order) == 3
    assert {tuple(sorted(epoch)) for epoch in order.tolist()} == {tuple(range(order.shape[1]))}
    assert len({tuple(epoch) for epoch in order.tolist()}) == 3


@recipe("I want to see whether it is worth it")
def worth_it(case: Case) -> None:
    (evidence,) = case.recipe
    table = case.divorder("compare")
    for strategies in product(DOCUMENTS, SEQUENCES):
        assert re.search("^{} +{} ".format(*strategies), table, re.M), strategies
    case.write(evidence, {"heldout": {"documents": 0.1}, "evidence": {"tokens": 512}})
    said = case.divorder("prove")
    for order in evidence["evidence"]["orders"]:
        assert re.search(rf"^{order} ", said, re.M), order


@recipe("I use Megatron, OLMo-core, torchtitan, the Hugging Face Trainer")
def trainers(case: Case) -> None:
    case.run(*case.recipe, {"sequence": {"batch": 8}})
    assert len(list((case.folder / "divorder/exports/megatron").glob("train-*.bin"))) == 1
    assert re.search(r"^megatron .* 24 of 24", case.divorder("verify", "--world-size", "8"), re.M)
    assert "--train-data-path" in case.divorder("verify", "--trainer", "megatron")


@recipe("My loss has a spike")
def spike(case: Case) -> None:
    case.run()
    before = case.exported()
    assert "of document" in case.divorder("where", "--step", "9..10")
    ids = orjson.loads(case.divorder("where", "--step", "9..10", "--json"))["ids"]
    case.run(*case.recipe, {"order": {"frozen_tokens": FROZEN, "cut": ids}})
    after = case.exported()
    assert after[:32] == before[:32]
    assert len(after) < len(before)


@recipe("I can train on a tenth of my corpus")
def tenth(case: Case) -> None:
    case.run(*case.recipe, {"selection": {"tokens": 1200}})
    left_out = pd.read_parquet(case.folder / "divorder/curated/left_out.parquet")
    assert left_out["reason"].notna().all()
    assert 1000 < sum(map(len, case.exported())) <= 1200


def test_every_recipe_is_run() -> None:
    assert CASES.keys() == RECIPES.keys()


@pytest.mark.parametrize("title", CASES)
def test_a_recipe_does_what_it_says(
    title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    CASES[title](Case(tmp_path, RECIPES[title], capsys))
