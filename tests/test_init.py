"""`divorder init` writes settings that run, and says what it took for what; nothing there is ever overwritten."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder.cli import main
from dagster_divorder.corpus.peek import recognised
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import run_stage
from dagster_divorder.trainers import TRAINERS
from tests.conftest import topic_records, write_jsonl

SMALL = {
    "DIVORDER_ADVANCED__VOCAB_SIZE": "512",
    "DIVORDER_ADVANCED__TOKEN_DIMS": "16",
    "DIVORDER_CLUSTERS__K": "4",
}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DIVORDER_")]:
        monkeypatch.delenv(name)


def numbered(value: Any, number: int) -> Any:
    """A value of a record with its number for {n}; of a text with a comma, a part in turn."""
    if isinstance(value, dict):
        return {name: numbered(inner, number) for name, inner in value.items()}
    return value.replace("{n}", str(number)).split(",")[number % 2 - 1] if isinstance(value, str) else value


def write_records(path: Path, record: dict[str, Any]) -> None:
    """Sixty records of one shape."""
    records = [numbered(record, number) for number in range(60)]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        write_jsonl(path, records)


def initialised(*paths: str) -> Settings:
    assert main(["init", *paths]) == 0
    return load_settings()


@pytest.mark.parametrize(
    ("record", "text", "own_id", "source", "traits"),
    [
        ({"url": "u{n}", "content": "long text {n}" * 9, "lang": "en"}, "content", "url", None, []),
        ({"url": "u{n}", "content": "long text {n}" * 9, "lang": "en,de"}, "content", "url", None, ["lang"]),
        ({"text": "t{n}", "body": "a much longer body {n}" * 9}, "body", None, None, []),
        ({"ID": "x{n}", "Text": "some text {n}" * 9, "Domain": "d"}, "Text", "ID", "Domain", []),
        (
            {"text": "words {n}" * 9, 'ein "Feld"\u00e9\U0001f600': "v,w"},
            "text",
            None,
            None,
            ['ein "Feld"\u00e9\U0001f600'],
        ),
        (
            {"doc": {"id": "{n}", "text": "t {n}" * 9}, "meta": {"pile_set_name": "Github"}},
            "doc.text",
            "doc.id",
            "meta.pile_set_name",
            [],
        ),
    ],
)
@pytest.mark.parametrize("name", ["docs.jsonl", "docs.parquet"])
def test_fields_are_taken_for_what_they_are(
    record: dict[str, Any],
    text: str,
    own_id: str | None,
    source: str | None,
    traits: list[str],
    name: str,
    tmp_path: Path,
) -> None:
    write_records(tmp_path / name, record)
    settings = initialised(name)
    assert (settings.input.text_field, settings.input.id_field) == (text, own_id)
    assert settings.input.source_field == source
    assert settings.order.traits == dict.fromkeys(["cluster", "length", *traits], 1.0)


def test_nothing_that_is_there_is_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_jsonl(tmp_path / "divorder/docs.jsonl", topic_records(5))
    settings = initialised("divorder")
    # The input lies in the folder that would be taken first.
    assert settings.store.path == tmp_path / "divorder-2/store"
    before = Path("divorder.toml").read_bytes()
    assert main(["init", "divorder"]) == 1
    assert "divorder.toml is there already; remove it" in capsys.readouterr().err
    assert Path("divorder.toml").read_bytes() == before
    assert main(["--config", "other.toml", "init", "divorder"]) == 0
    assert load_settings("other.toml").input == settings.input


# Records of several fields that belong together ----------------------------------------------------------------------

TURNS = [
    {"role": "user", "content": "what is a tide"},
    {"role": "assistant", "content": "water that rises " * 9},
]
SHARED = [{"from": "human", "value": "what is a tide"}, {"from": "gpt", "value": "water that rises " * 9}]
STRUCTURED = {
    "messages": ({"id": "{n}", "source": "web", "messages": TURNS}, "messages", "'messages'"),
    "sharegpt": ({"id": "{n}", "conversations": SHARED}, "conversations", "'conversations'"),
    "completion": (
        {"prompt": "what is {n}", "completion": "it is {n} " * 30},
        "prompt_completion",
        "'prompt', 'completion'",
    ),
    "turns of both": (
        {"prompt": TURNS[:1], "completion": TURNS[1:]},
        "prompt_completion",
        "'prompt', 'completion'",
    ),
    "alpaca": (
        {"instruction": "do {n}", "input": "", "output": "done {n} " * 30},
        "alpaca",
        "'instruction', 'input', 'output'",
    ),
    "preferences": (
        {"prompt": "{n}", "chosen": "good {n} " * 30, "rejected": "bad"},
        "pairs",
        "'prompt', 'chosen', 'rejected'",
    ),
}


@pytest.mark.parametrize(
    ("labels", "formats"),
    [
        ((True, False), ()),
        ((1, 0), ()),
        (("true", "false"), ()),
        (("news", "wiki"), ("parquet",)),
        ((1, 2), ("parquet",)),
    ],
)
def test_answers_that_may_be_unwanted_are_not_exported_for_fine_tuning(
    labels: tuple[Any, ...], formats: tuple[str, ...], tmp_path: Path
) -> None:
    rows = [{"prompt": "Q ", "completion": f"a {at}", "label": labels[at % 2]} for at in range(60)]
    (tmp_path / "docs.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    settings = initialised("docs.jsonl")
    assert settings.exports.formats == formats
    assert settings.packing.method == ("best_fit" if formats else "none")
    assert "label" in settings.order.traits


@pytest.mark.parametrize(("record", "form", "named"), STRUCTURED.values(), ids=STRUCTURED)
@pytest.mark.parametrize("name", ["docs.jsonl", "docs.parquet"])
def test_chats_and_pairs_are_recognised(
    record: dict[str, Any],
    form: str,
    named: str,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_records(tmp_path / name, record)
    settings = initialised(name)
    assert (settings.input.format, settings.input.model_fields_set & {"text_field"}) == (form, set())
    assert settings.packing.method == ("none" if form == "pairs" else "best_fit")
    # No template ends a completion that is a text.
    assert settings.packing.end_of_text == isinstance(record.get("completion"), str)
    assert settings.exports.formats == (() if form == "pairs" else ("parquet",))
    assert settings.input.source_field == ("source" if "source" in record else None)
    assert f"it reads {form} in {named}; every window" in capsys.readouterr().out
    Path("divorder.toml").write_text(f'[input]\npaths = ["{name}"]\n', encoding="utf-8")
    # What init writes is what a look at the first record finds.
    assert recognised(load_settings()).input.format == form
    with pytest.raises(InputError, match=f'set input.format = "{form}", and no input.text_field'):
        run_stage("raw_docs", Settings(input={"paths": [name], "text_field": "text"}), Silent())


def test_chats_and_texts_in_one_file_are_refused_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [{"messages": TURNS}] * 20 + [{"text": "words " * 9}] * 40
    write_jsonl(tmp_path / "docs.jsonl", [{"id": n, **kinds[7 * n % 60]} for n in range(60)])
    Path("divorder.toml").write_text('[input]\npaths = ["docs.jsonl"]\n', encoding="utf-8")
    assert main(["plan"]) == 1
    assert "write each form into a file of its own" in capsys.readouterr().err


# Names that a terminal must not obey ---------------------------------------------------------------------------------

CONTROLS = "\x1b[31m\x9b31m\u202e\u2028\x7f\r"


def test_no_control_character_of_a_corpus_reaches_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of file names, fields and ids; and what is printed to be pasted is what it was."""
    records = [
        {"id": f"x{CONTROLS}{n}", "text": f"doc {n} sea rail bread", f"a{CONTROLS}\n[model]": "ab"[n % 2]}
        for n in range(60)
    ]
    write_jsonl(tmp_path / f"in/a{CONTROLS}.jsonl", records)
    name = f"in/a{CONTROLS}.jsonl"
    settings = initialised(name)
    assert settings.input.paths == (str(tmp_path / name),)
    assert settings.model.base == "bootstrap"
    file = Path("divorder.toml").read_text(encoding="utf-8")
    # The trait that is only proposed is taken, and the model is a small one.
    few = "[advanced]\nvocab_size = 512\ntoken_dims = 8\n"
    small = file.replace('# "a', '"a').replace("[model]\n", f"{few}[model]\n", 1)
    Path("divorder.toml").write_text(small, encoding="utf-8")
    assert main(["init", name]) == 1
    assert main(["run"]) == 0
    assert main(["where", "--step", "0"]) == 0
    assert main(["where", "--id", records[7]["id"]]) == 0
    said = capsys.readouterr()
    with open(tmp_path / name, "ab") as more:
        more.write(b"{bad\n" * 9)
    assert main(["run"]) == 1
    for text in (said.out, said.err, file, capsys.readouterr().err):
        assert text
        assert not set(text) & {"\x1b", "\x9b", "\u202e", "\u2028", "\x7f", "\r"}
    assert "\\u001b[31m\\u009b31m\\u202e\\u2028\\u007f\\u000d" in text


# The export of a trainer ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainers") / "store"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, trainer in TRAINERS.items() if trainer.formats])
def test_the_export_of_a_trainer_keeps_every_batch(
    name: str,
    shared_store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(60))
    for key, value in SMALL.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("DIVORDER_STORE__PATH", str(shared_store))
    numbers = ["--world-size", "2", "--micro-batch", "2", "--workers", "2"]
    assert main(["init", "docs.jsonl", "--trainer", name, *numbers, "--sequence-length", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    export = tmp_path / "divorder/exports" / TRAINERS[name].formats[0]
    assert f"  divorder verify  # what {name} reads of it" in lines
    assert main(["run"]) == 0
    capsys.readouterr()
    for asked in ([str(export), "--trainer", name, *numbers], [str(export)], []):
        assert main(["--json", "verify", *asked]) == 0
        (trainer,) = orjson.loads(capsys.readouterr().out)["trainers"]
        kept, planned = re.findall(r"\d+", trainer["at_best"])
        assert trainer["trainer"] == name and trainer["keeps_order"] and kept == planned and int(planned) > 3
        # Nothing of the settings has to be another.
        assert "exports." not in trainer["needs"]


# What is told of the records -----------------------------------------------------------------------------------------


def test_every_field_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        {
            "id": n,
            "text": f"words\nnumber {n} " + "long " * 40,
            "meta": {"score": n / 7, "lang": "en" if n % 2 else "de"},
            "a\nb": ["x", n],
            "source": "web" if n % 3 else "book",
            **({} if n % 4 else {"rare": None if n % 8 else "r"}),
        }
        for n in range(1200)
    ]
    write_jsonl(tmp_path / "docs.jsonl", records)
    initialised("docs.jsonl")
    said = capsys.readouterr().out
    table = said[said.index(": fields of 1,200 records\n") :].partition("\n\n")[0].splitlines()
    assert [line.split() for line in table[1:]] == [
        ["field", "records", "values", "use"],
        ["id", "1,200", "1,200", "id"],
        ["text", "1,200", "1,200", "text"],
        ["meta.score", "1,200", "1,200", "\N{EN DASH}"],
        ["meta.lang", "1,200", "2", "trait"],
        ["a", "b", "1,200", "0", "\N{EN DASH}"],
        ["source", "1,200", "2", "source"],
        ["rare", "150", "1", "\N{EN DASH}"],
    ]


TWO = {"en": "some words {n} " * 9, "de": "ein paar Worte {n} " * 9}
REFUSED: dict[str, tuple[dict[str, Any] | bytes, str, str]] = {
    "no text": (
        {"a": 1, "b": [2]},
        "",
        "unclear which field holds the text, of 'a', 'b'. Name it with --text-field",
    ),
    "no record": (b"", "", "docs.jsonl holds no readable record"),
    "no known answer": (
        {"input": "what {n}", "output": "that {n} " * 30},
        "",
        "which fields are question and answer",
    ),
    "no pair": (
        {"messages": TURNS},
        "--trainer trl-dpo",
        "it reads records of pairs, and the inputs hold messages",
    ),
    "a list of texts": ({"id": "a{n}", "turns": ["many words " * 9] * 3}, "", "Name it with --text-field"),
    "two texts inside": (
        {"id": "a{n}", "to": TWO},
        "",
        "unclear which field holds the text, of 'id', 'to.en', 'to.de'",
    ),
    "an array": (b'[{"text": "words"}]', "", "expected one JSON object a line; it looks like a JSON array"),
    "no trainer": (TWO, "--text-field en --world-size 4", "world_size applies to a trainer"),
    "length": (TWO, "--text-field en --sequence-length 2", "nothing was written: sequence.length = 2: "),
    "no such field": (TWO, "--text-field txt", "the text field is 'txt'; expected one of"),
}


@pytest.mark.parametrize(("records", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    records: dict[str, Any] | bytes,
    options: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if isinstance(records, bytes):
        (tmp_path / "docs.jsonl").write_bytes(records)
    else:
        write_records(tmp_path / "docs.jsonl", records)
    assert main(["init", "docs.jsonl", *options.split()]) == 1
    assert said in capsys.readouterr().err
    assert os.listdir() == ["docs.jsonl"]


def test_files_beside_the_corpus_that_are_not_read_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", topic_records(15))
    (tmp_path / "in/b.csv").touch()
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/b.csv").touch()
    assert main(["init", "csv"]) == 1
    assert "left out: 1 .csv (first: csv/b.csv); write it as Parquet" in capsys.readouterr().err
    initialised("in")
    assert "\nnot read: 1 .csv (first: " in capsys.readouterr().out


def test_a_text_field_can_be_named(tmp_path: Path) -> None:
    both = [{"my text.v2": f"some words {n} " * 9, "de": f"ein paar Worte {n} " * 9} for n in range(60)]
    write_jsonl(tmp_path / "both.jsonl", both)
    write_records(tmp_path / "pairs.jsonl", STRUCTURED["completion"][0])
    assert initialised("both.jsonl", "--text-field", "my text.v2").input.text_field == "my text.v2"
    Path("divorder.toml").unlink()
    assert initialised("pairs.jsonl", "--text-field", "completion").input.text_field == "completion"
