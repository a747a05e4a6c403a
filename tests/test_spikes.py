"""Steps whose loss stands out, and what they read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dagster_divorder import run_all, where
from dagster_divorder.cli import main
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from dagster_divorder.spikes import loss_spikes, outstanding, read_losses
from tests.conftest import topic_records, write_jsonl


def falling(steps: int, seed: int, noise: float = 0.05) -> np.ndarray:
    """A loss as a training's: steep, then flat, with noise."""
    step = np.arange(steps)
    return 3 + 7 / np.sqrt(1 + step) + noise * np.random.default_rng(seed).normal(size=steps)


def test_a_loss_as_it_should_be_stands_out_nowhere() -> None:
    named = [outstanding(falling(400, seed)) for seed in range(50)]
    assert sum(map(len, named)) <= 2


@pytest.mark.parametrize("at", [4, 30, 200, 396])
def test_a_spike_is_named_with_what_was_expected(at: int) -> None:
    loss = falling(400, at)
    loss[at : at + 2] += [1.5, 0.8]
    (spike,) = outstanding(loss)
    assert spike.first == spike.peak == at and spike.last <= at + 1
    assert spike.expected == pytest.approx(loss[at] - 1.5, abs=0.8)


def test_losses_that_are_no_number_stand_out_first() -> None:
    loss = falling(100, 0)
    loss[60], loss[30] = np.nan, loss[30] + 2
    assert [spike.peak for spike in outstanding(loss)] == [60, 30]
    assert outstanding([1.0, 1.0]) == outstanding([]) == []


LOGS = {
    "jsonl": '{"step": 2, "loss": 3.5}\n{"step": 2, "eval_loss": 9}\n{"step": 4, "loss": NaN}\n{"step": 6, "lo',
    "csv": "iteration,lm loss\n2,3.5\n4,nan\n",
    "from step 0": "step,loss\n0,3.5\n1,nan\n",
    "trainer_state": '{"log_history": [{"step": 2, "loss": 1}, {"step": 2, "loss": 3.5}, {"step": 4, "loss": "nan"}]}',
    "diverged": '{"log_history": [{"step": 2, "loss": 3.5}, {"step": 4, "loss": NaN}], "note": "NaN"}',
}


@pytest.mark.parametrize("kind", LOGS)
def test_logs_are_read_as_trainers_write_them(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "log"
    file.write_text(LOGS[kind])
    log = read_losses(file)
    places = ([0, 1], [1, 2]) if kind == "from step 0" else ([0, 2], [2, 4])
    assert (log.first.tolist(), log.end.tolist()) == places
    assert log.loss.tolist() == pytest.approx([3.5, np.nan], nan_ok=True)


@pytest.mark.parametrize("text", ["", "no log", '{"step": 1, "loss": 2}', "step,loss\n1,x\n2,\n"])
def test_what_is_no_log_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "log"
    file.write_text(text)
    with pytest.raises(InputError, match=r"names [01] losses; expected lines of JSON, or CSV"):
        read_losses(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_losses(tmp_path / "nothing")


def test_the_documents_of_a_spike_are_named(
    tmp_path: Path,
    make_settings: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    random = np.random.default_rng(0)
    good = [{**record, "id": f"good {at}"} for at, record in enumerate(topic_records(60))]
    noise = ["".join(map(chr, random.integers(33, 126, 300).tolist())) for _ in range(4)]
    broken = [{"text": text, "source": "broken", "id": f"broken {at}"} for at, text in enumerate(noise)]
    input = {
        "paths": [str(write_jsonl(tmp_path / "docs.jsonl", [*good[:120], *broken, *good[120:]]))],
        "id_field": "id",
        "source_field": "source",
    }
    settings = make_settings(
        input=input,
        order={"strategy": "original", "frozen_tokens": 0},
        sequence={"length": 32, "batch": 4, "strategy": "original"},
    )
    run_all(settings, Silent())
    read = where(settings, ids=[row["id"] for row in broken])
    steps = int(where(settings, ids=["good 239"]).step.max())
    first, last = int(read.step.min()), int(read.step.max())
    loss = falling(steps, 0)
    loss[first : last + 1] += np.linspace(2, 1, last + 1 - first)
    file = write_jsonl(
        tmp_path / "log.jsonl", ({"step": at + 1, "loss": each} for at, each in enumerate(loss.tolist()))
    )
    (spike, *_) = loss_spikes(settings, file)
    assert spike["steps"] == [first, last] and spike["loss"] == pytest.approx(loss[first])
    source = next(row for row in spike["mix"] if row["value"] == "broken")
    assert source["share"] > 0.5 > source["around"]
    assert {row["id"] for row in broken} <= {row["id"] for row in spike["documents"]}
    monkeypatch.setattr("dagster_divorder.cli.training.settings_of", lambda options: settings)
    for values, words in (
        (loss, f": loss {loss[first]:.4g}"),
        (falling(steps, 0), "no step's loss stands out"),
    ):
        rows = "".join(f"{at + 1},{each}\n" for at, each in enumerate(values))
        (tmp_path / "log.csv").write_text(f"step,loss\n{rows}")
        assert main(["where", "--loss", str(tmp_path / "log.csv")]) == 0
        assert words in capsys.readouterr().out
    assert main(["where", "--loss", str(file), "--step", "1"]) == 1
    assert "--loss names the steps itself" in capsys.readouterr().err
