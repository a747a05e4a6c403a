"""docs/trainers/: each guide's lines and figures; and its commands and settings on a small corpus, and what the trainer
then reads, if .venv has it. Other tests run the readers of all formats (tests/write/exports, `make test-trainers`)."""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tomlkit

from dagster_divorder.cli import main
from dagster_divorder.trainers import TRAINERS, Reading
from dagster_divorder.trainers.replay import Shape, replay
from tests.conftest import topic_records, write_jsonl
from tests.test_recipes import SMALL, merged
from tests.trainers.test_loaders import QUIET as QUIET_LIGHTNING
from tests.trainers.test_loaders import recorder
from tests.trainers.test_trl import QUIET, tokens_and_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

FOLDER = Path(__file__).parents[2] / "docs/trainers"
TRAINER_OF_PAGE = {page.stem: page.stem.replace("_", "-") for page in sorted(FOLDER.glob("*.md"))}
EVERY_PAGE = pytest.mark.parametrize("page", TRAINER_OF_PAGE)
PLAN = {"rows": 2_560_000, "batch": 256, "world_size": 8, "micro_batch": 4}
"""Of the lines that the pages show."""
LENGTH, BATCH = 64, 64
"""Of the small corpus, on which the commands of a page run."""


def sections(page: str) -> dict[str, str]:
    """Heading -> the text below it."""
    _, *parts = re.split(r"^## (.+)\n", (FOLDER / f"{page}.md").read_text(), flags=re.M)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def blocks(text: str, language: str = r"\w+") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def test_every_trainer_with_a_guide_is_known() -> None:
    assert len(TRAINER_OF_PAGE) == 10
    assert set(TRAINER_OF_PAGE.values()) < TRAINERS.keys()
    for page in TRAINER_OF_PAGE:
        assert set(re.findall(r"--trainer ([\w-]+)", (FOLDER / f"{page}.md").read_text())) < TRAINERS.keys()


@EVERY_PAGE
def test_the_lines_are_those_that_verify_prints(page: str) -> None:
    trainer = TRAINERS[TRAINER_OF_PAGE[page]]
    folder = f"divorder/exports/{trainer.formats[0]}" if trainer.formats else "divorder/curated/curated.jsonl"
    reading = Reading(**PLAN, workers=2 if trainer.parts == "workers" else 0)
    expected = trainer.configuration(reading, path=folder, prefix="train-1f3a9c20", sequence_length=4096)
    assert blocks(sections(page)["Lines of its configuration"])[0] == expected


@EVERY_PAGE
def test_the_figures_are_those_of_the_models(page: str) -> None:
    text, trainer = sections(page)["Without them"], TRAINERS[TRAINER_OF_PAGE[page]]
    said = re.search(r"kept of 125 on (1, 2, 4) ranks: (.*) by default;\n(.*) with", text)
    assert said
    ranks, default, best = ([int(number) for number in part.split(", ")] for part in said.groups())
    shape = Shape(sequences=2000, sequence_length=64, batch=16)
    for at, world_size in enumerate(ranks):
        kept = replay(shape, trainer, world_size=world_size, micro_batch=4)
        assert (kept.default.kept.kept, kept.best.kept.kept) == (default[at], best[at])


class Case:
    """A small corpus after the commands of a page, which ran in `folder`, the current one."""

    def __init__(self, page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.page, self.trainer = page, TRAINERS[TRAINER_OF_PAGE[page]]
        write_jsonl(folder / "corpus/docs.jsonl", topic_records(60))
        commands = re.findall(
            r"^\$ divorder (.*)$", "".join(blocks(sections(page)["Settings and commands"], "console")), re.M
        )
        for command in commands:
            words = [
                str(folder / "corpus") if word.startswith("/data/") else word for word in shlex.split(command)
            ]
            capsys.readouterr()
            assert main(words) == 0, capsys.readouterr().err
            if words[0] == "init":
                config = folder / "divorder.toml"
                proposed = tomllib.loads(config.read_text())
                exports = proposed["exports"]
                assert (exports["formats"], exports["trainer"]) == (
                    [*self.trainer.formats],
                    self.trainer.name,
                )
                small = {"sequence": {"length": LENGTH, "batch": BATCH}}
                config.write_text(tomlkit.dumps(merged(proposed, SMALL, small)))
        self.verified = capsys.readouterr().out
        (batches,) = re.findall(
            r"reads (?:\d+ of \d+ batches as planned, and )?(\d+ of \d+) batches", self.verified
        )[-1:]
        kept, whole = batches.split(" of ")
        assert kept == whole and int(whole) > 2
        *_, printed = re.split(r"^its configuration:\n\n", self.verified, flags=re.M)
        self.lines = "".join(f"{line[2:]}\n" for line in printed.splitlines())

    def script(self, heading: str, **names: Any) -> dict[str, Any]:
        """The names after the Python of a section."""
        for block in blocks(sections(self.page)[heading], "python"):
            exec(block, names)
        return names

    @property
    def read(self) -> list[list[int]]:
        """Ids of the sequences of whole batches in the order of the plan."""
        files = sorted(Path("divorder/exports/parquet").glob("*.parquet"))
        rows = [row for file in files for row in pq.read_table(file)["input_ids"].to_pylist()]
        return rows[: len(rows) // BATCH * BATCH]


def trained(case: Case, kind: type, config: type) -> list[dict[str, Any]]:
    """What the model of a script is given at each micro-batch. kind, config: the trainer's class, and that of its
    arguments."""
    from transformers import AutoTokenizer

    batches: list[dict[str, Any]] = []
    compute_loss = kind.compute_loss  # type: ignore[attr-defined]

    def recorded(trainer: Any, model: Any, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        batches.append({name: value.tolist() for name, value in inputs.items() if hasattr(value, "tolist")})
        return compute_loss(trainer, model, inputs, *arguments, **options)

    # One process trains here, and accumulates what the other ranks read.
    alone = re.sub(r"(accumulation_steps)=\d+", rf"\1={BATCH // 4}", case.lines)
    arguments = eval(alone, {config.__name__: partial(config, output_dir="model", **QUIET)})
    _, model = tokens_and_model(len(AutoTokenizer.from_pretrained("divorder/exports/_parquet")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "compute_loss", recorded)
        case.script("In the script", model=model, arguments=arguments)
    return batches


def check_flattened(case: Case, batches: list[dict[str, Any]]) -> None:
    """Rows follow one another, and positions begin again in each of their documents."""
    assert [token for batch in batches for token in batch["input_ids"][0]] == [*chain(*case.read)]
    assert all(batch["position_ids"][0].count(0) > 4 for batch in batches)


def trl(case: Case) -> None:
    package = pytest.importorskip("trl")
    check_flattened(case, trained(case, package.SFTTrainer, package.SFTConfig))


def hf_trainer(case: Case) -> None:
    from transformers import Trainer, TrainingArguments

    check_flattened(case, trained(case, Trainer, TrainingArguments))


def lightning(case: Case) -> None:
    package, module = pytest.importorskip("lightning.pytorch"), recorder()
    once = partial(package.Trainer, accelerator="cpu", max_epochs=1, **QUIET_LIGHTNING)
    case.script("In the script", Trainer=once, module=module)
    assert [row for batch in module.seen for row in batch["input_ids"].tolist()] == case.read


CHECKS = {"trl": trl, "hf_trainer": hf_trainer, "lightning": lightning}


@pytest.mark.parametrize("page", CHECKS)
def test_a_guide_does_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    CHECKS[page](Case(page, tmp_path, capsys))
