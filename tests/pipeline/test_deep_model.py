"""The model of deep_embeddings: when and of what the bootstrap's decoder is made; a checkpoint that nobody touched is
known again without being read, and its content alone names what comes of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.models import checkpoint, decoder
from dagster_divorder.settings import Settings
from dagster_divorder.stages import run_all
from dagster_divorder.stages.topics import deep_model
from dagster_divorder.stages.topics.deep_model import DeepModel, load_deep_model
from dagster_divorder.store.state import Receipt
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.runs import Make, ran
from tests.tiny_models import save_model, save_tokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records(15))


def model_of(settings: Settings) -> DeepModel:
    return load_deep_model(ran(settings, "deep_model"))


def forbid_making(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "make_decoder", lambda *_, **__: pytest.fail("made again"))


def test_the_decoder_is_made_once_and_appended_documents_use_it(
    corpus: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    run = ran(settings, "base_model")
    assert not run.store.list("fits/deep_model")
    model = model_of(settings)
    (fit,) = {path.parent.name for path in run.store.local("fits/deep_model").glob("*/*")}
    assert model.fingerprint == fit
    assert model.directory == run.store.local(f"fits/deep_model/{fit}")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in model.directory.iterdir()
    }

    forbid_making(monkeypatch)
    assert model_of(settings) == model
    write_jsonl(corpus, topic_records(20))
    assert model_of(settings) == model


def test_its_settings_and_the_base_model_decide_it(
    corpus: Path, make_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(make_settings())
    elsewhere = {"store": {"path": tmp_path / "elsewhere"}, "engine": {"workers": 1}}
    assert model_of(make_settings(**elsewhere)).fingerprint == model.fingerprint
    others = make_settings(seed=1), make_settings(advanced={"token_dims": 8})
    assert len({model.fingerprint, *(model_of(settings).fingerprint for settings in others)}) == 3

    forbid_making(monkeypatch)
    assert model_of(make_settings(output={"sidecars": ("plot",)})) == model


def test_the_bootstrap_decoder_needs_the_bootstrap_table(
    corpus: Path, make_settings: Make, tmp_path: Path
) -> None:
    save_tokenizer(save_model(tmp_path / "llama"))
    settings = make_settings(model={"base": str(tmp_path / "llama")}, deep={"model": "bootstrap"})
    with pytest.raises(SettingsError, match=r"leave deep\.model out"):
        model_of(settings)


def test_a_checkpoint_is_named_by_its_content(
    corpus: Path, make_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SETTLED_NS", 0)
    folder = save_tokenizer(save_model(tmp_path / "llama"))
    settings = make_settings(deep={"model": str(folder)})
    run = ran(settings, "deep_model")
    assert run.receipt("base_model").figures["base"] == "bootstrap"
    model = load_deep_model(run)
    assert (model.directory, model.narrow) == (folder, False)
    (folder / "README.md").write_text("about it")
    assert model_of(settings) == model

    found = {model.fingerprint}
    weights = folder / "model.safetensors"
    changes = {
        "config.json": orjson.dumps(
            {**orjson.loads((folder / "config.json").read_bytes()), "rms_norm_eps": 0.1}
        ),
        "tokenizer.json": (folder / "tokenizer.json").read_bytes() + b"\n",
        "1_Pooling/config.json": b'{"pooling_mode_cls_token": true}',
        weights.name: weights.read_bytes()[:-1] + b"\1",
    }
    for name, content in changes.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        found.add(model_of(settings).fingerprint)
    assert len(found) == 1 + len(changes)
    weights.unlink()
    with pytest.raises(InputError, match=r"expected weights as model\.safetensors"):
        ran(settings, "deep_model")


STAGES = ("raw_docs", "base_model", "token_counts", "deep_model", "deep_embeddings")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_tokenizer(save_model(tmp_path / "llama"))


@pytest.fixture
def based(tmp_path: Path, llama: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch) -> Settings:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(5))
    # Files that were written a moment ago are trusted.
    monkeypatch.setattr(checkpoint, "SETTLED_NS", 0)
    return make_settings(model={"base": str(llama)})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What of a checkpoint is read to tell which one it is."""
    said: list[str] = []

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given: said.append(name) or function(*given))

    watch(checkpoint, "table_fingerprint")
    watch(deep_model, "checkpoint_fingerprint")
    return said


def run(based: Settings) -> dict[str, Receipt]:
    return run_all(based, Silent(), STAGES)


def test_a_run_with_nothing_new_does_not_read_the_weights(based: Settings, read: list[str]) -> None:
    first = run(based)
    assert read == ["table_fingerprint", "checkpoint_fingerprint"]
    second = run(based)
    assert len(read) == 2
    assert [made.version for made in first.values()] == [made.version for made in second.values()]


def test_other_bytes_of_the_same_size_and_time_are_noticed(based: Settings, llama: Path) -> None:
    first = run(based)
    weights = llama / "model.safetensors"
    times = weights.stat()
    weights.write_bytes(save_model(llama.parent / "other", seed=1).joinpath(weights.name).read_bytes())
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert weights.stat().st_size == times.st_size
    second = run(based)
    assert second["base_model"].figures["fitted"] == "what it reads has changed"
    assert second["deep_embeddings"].version != first["deep_embeddings"].version


@pytest.mark.parametrize("deep", [{}, {"model": "org/deep@v2"}])
def test_revisions_are_asked_for(
    based: Settings,
    llama: Path,
    make_settings: Make,
    monkeypatch: pytest.MonkeyPatch,
    deep: dict[str, str],
) -> None:
    asked: list[str] = []

    def locate(base: str, **_: Any) -> Path:
        asked.append(base)
        return llama

    monkeypatch.setattr(checkpoint, "locate", locate)
    monkeypatch.setattr(deep_model, "locate", locate)
    run(make_settings(model={"base": "org/base@v1"}, deep=deep))
    wanted = ["org/base@v1", deep.get("model", "org/base@v1")]
    # Once before the first stage, to see that they are there, and once by the stages.
    assert asked == [*wanted, *wanted]
