"""`divorder explore` and `divorder stats`: every question is answered on a small store, by what it needs alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder.cli import GROUPS, main
from dagster_divorder.cli.explore import QUESTIONS
from dagster_divorder.core.measure.vendi import gram, vendi
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH, open_run, run_all
from dagster_divorder.stages.measure import set_diversity
from dagster_divorder.stages.measure.set_diversity import load_groups
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.state import load_receipt
from tests.conftest import topic_records, write_jsonl
from tests.tiny_models import save_model, save_tokenizer

CHOOSING = '[selection]\nmethod = "random"\ndocuments = 12\nvectors = "shallow"\n'
CAUSAL = '[gradients]\nmodel = "{model}"\ndims = 64\n'
TOML = """seed = 1
[input]
paths = ["docs \u6d77.jsonl"]
source_field = "source"
[advanced]
vocab_size = 512
token_dims = 16
decoder_tokens = 2000
film_frames = 4
[deep]
dtype = "float32"
[clusters]
k = 4
[order]
length_bins = 5
[sequence]
length = 128
batch = 4
[store]
path = "a store"
[output]
path = "curated"
sidecars = []
"""

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty documents of four sources, one of them twice, and a near copy, in a folder with a space in its name."""
    folder = tmp_path / "my corpus"
    folder.mkdir()
    monkeypatch.chdir(folder)
    records = topic_records(15)
    near = {**records[5], "text": f"{records[5]['text']} ebb"}
    write_jsonl(folder / "docs \u6d77.jsonl", [*records, near, records[3]])
    return folder


@pytest.fixture
def ask(folder: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Answers a command in JSON, with these lines in the settings."""

    def ask(*command: str, settings: str = "") -> dict[str, Any]:
        (folder / "divorder.toml").write_text(TOML + settings, encoding="utf-8")
        assert main([*command, "--json"]) == 0, capsys.readouterr().err
        return orjson.loads(capsys.readouterr().out)

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_has_an_answer_by_what_it_needs_and_no_more(
    question: str, ask: Ask, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = CHOOSING if question == "selection" else ""
    if question == "proxy":
        sizes = {"tie_word_embeddings": True, "num_hidden_layers": 3}
        lines = CAUSAL.format(model=save_model(save_tokenizer(folder / "llama"), **sizes))
    answer = ask("explore", question, settings=lines)
    assert answer["question"] == question and all(answer["answer"])
    assert all(Path(file).is_file() for file in answer["files"])
    assert bool(answer["files"]) == (question in ("k", "ari", "map", "films"))
    assert bool(answer["rows"]) == (question != "films")

    settings, stage = load_settings("divorder.toml"), QUESTIONS[question].stage
    made = {name for name in GRAPH if load_receipt(store_of(settings.store), name)}
    assert made == {*GRAPH.needed(settings, stage)}
    assert (folder / "curated").exists() == (question == "films")

    # For people: the same sentence first, and no line of the table wider than a page.
    assert main(["explore", question]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == answer["answer"][0]


@pytest.mark.slow
def test_answers_are_right(ask: Ask, folder: Path) -> None:
    copies = ask("explore", "near-copies")
    assert copies["answer"][0].startswith("1 of 61 distinct texts (1.6%) are near copies")
    assert copies["answer"][1] == "Records that repeat a text byte for byte: 1."
    assert [row["documents"] for row in copies["rows"]] == [2]

    proxy_lines = CAUSAL.format(
        model=save_model(save_tokenizer(folder / "llama"), tie_word_embeddings=True, num_hidden_layers=3)
    )
    proxy = ask("explore", "proxy", settings=proxy_lines)
    rows = {(row["blocks"], row["dims"]): row for row in proxy["rows"]}
    assert set(rows) == {(1, None), (2, None), (3, None), (2, 4), (2, 16), (2, 64)}
    assert [key for key, row in rows.items() if row["used"]] == [(2, 64)]
    agreement = [rows[key]["Spearman"] for key in ((2, 4), (2, 16), (2, 64), (2, None), (3, None))]
    assert agreement == sorted(agreement) and agreement[0] < agreement[-1]
    assert proxy["figures"]["documents_measured"] == 61

    selected = ask("explore", "selection", settings=CHOOSING)
    assert selected["answer"][0].startswith("random chooses 12 of 62 records")


@pytest.mark.slow
def test_the_diversity_of_a_corpus_needs_no_selection_and_of_a_large_one_is_of_a_sample(
    ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ask("explore", "vendi")
    settings = load_settings("divorder.toml")
    run = open_run(settings)
    (vectors,) = (arrays["vectors"] for _, arrays in run.files("shallow_embeddings").each(run.view.documents))
    rows = {(row["of"], row["value"]): row for row in load_groups(run)}
    assert rows["corpus", "all"]["vendi"] == pytest.approx(vendi(gram(vectors, np.arange(61))), abs=1e-3)
    assert {value for of, value in rows if of == "source"} == {
        record["source"] for record in topic_records(1)
    }
    assert ("corpus", "chosen") not in rows and "batches" not in run.receipt("set_diversity").files
    assert "61 documents)" in answer["answer"][0]

    # As many bytes as 20 documents have.
    monkeypatch.setattr(set_diversity, "SAMPLE_BYTES", 20 * 4 * 16)
    (folder / "docs \u6d77.jsonl").open("ab").write(orjson.dumps(topic_records(1, start=90)[0]) + b"\n")
    answer = ask("explore", "vendi")
    assert "from 20 documents, a random sample of 62" in answer["answer"][0]
    # With a selection, and without it again: neither takes the other's sums.
    (folder / "divorder.toml").write_text(TOML + CHOOSING, encoding="utf-8")
    chosen = load_settings("divorder.toml")
    for each in (chosen, settings, chosen):
        run_all(each, Silent(), GRAPH.needed(each, "set_diversity"))


@pytest.mark.slow
def test_stats_say_what_a_run_says_and_write_no_output(ask: Ask, folder: Path) -> None:
    stats = ask("stats")
    assert not (folder / "curated").exists()
    run = ask("run")
    assert {name: of for name, of in stats.items() if name != "stages"} == {
        name: of for name, of in run.items() if name not in ("stages", "exports", "output", "reordered")
    }
    assert {row["stage"] for row in run["stages"]} - {row["stage"] for row in stats["stages"]} == {
        "curated_output"
    }


def test_a_question_that_needs_settings_says_which(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "divorder.toml").write_text(TOML, encoding="utf-8")
    assert main(["explore", "selection"]) == 1
    said = capsys.readouterr().err
    lines = said.partition("\n\n")[2]
    assert "explore selection" in said and lines.startswith("[selection]\n")
    (folder / "divorder.toml").write_text(TOML + lines, encoding="utf-8")
    assert load_settings("divorder.toml").selects
    assert not (folder / "a store").exists()


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_help_lists_verbs_and_questions_with_their_cost_in_the_width_of_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for command, names in (
        (["--help"], [verb.name for verbs in GROUPS.values() for verb in verbs]),
        (["explore", "--help"], [*QUESTIONS]),
    ):
        with pytest.raises(SystemExit):
            main(command)
        lines = capsys.readouterr().out.splitlines()
        starts = {line.split()[0]: at for at, line in enumerate(lines) if line[:2] == "  " and line[2] != " "}
        for name in names:
            rest = lines[starts[name] : starts[name] + 8]
            assert any(line.startswith(f"{'':<16}cost: ") for line in rest), name
        examples = [line for line in lines if line.startswith((f"{'':<16}$ ", "example: "))]
        assert max(len(line) for line in lines if line not in examples) <= int(columns)
        assert len(examples) == (len(names) if command == ["--help"] else 1)


def test_settings_hold_no_stage_that_no_question_or_verb_reaches() -> None:
    """What can be asked has a verb."""
    asked = {question.stage for question in QUESTIONS.values()}
    verbs = {
        "strategy_comparison",
        "curriculum_comparison",
        "training_evidence",
        "ordering_report",
        "curated_output",
        "diversity_metrics",
    }
    settings = Settings(
        selection={"method": "random", "documents": 1},
        curriculum={"score": "score"},
        evidence={"tokens": 1000},
        heldout={"documents": 0.1},
        exports={"formats": ["parquet"]},
    )
    reached = {name for stage in asked | verbs for name in GRAPH.needed(settings, stage)}
    assert set(GRAPH.upstream(settings)) <= reached


def test_the_page_of_verbs_has_every_verb_and_question() -> None:
    page = (Path(__file__).parents[1] / "docs" / "verbs.md").read_text(encoding="utf-8")
    verbs = {row.split()[1] for row in re.findall(r"^\| `(.*?)`", page, re.M) if row.startswith("divorder ")}
    assert verbs == {verb.name for verbs in GROUPS.values() for verb in verbs}
    questions = re.findall(r"^\| `([\w-]+)` .*\| `(\w+)` \|", page, re.M)
    assert questions == [(name, question.stage) for name, question in QUESTIONS.items()]
