"""The stages of deep embeddings, of gradients and of their model: what they store and reuse, what their keys hang on,
documents without a vector, a model in two processes; a checkpoint that nobody touched is known again without being
read, and its content alone names what comes of it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.models import checkpoint, decoder
from dagster_divorder.models.embed import NOT_FINITE, Embedder, OutOfMemory, load
from dagster_divorder.models.spec import read_spec
from dagster_divorder.models.tensor_parallel import Group
from dagster_divorder.models.tokenize import load_encoder
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all
from dagster_divorder.stages.topics import deep_embeddings, deep_model, gradient_embeddings
from dagster_divorder.stages.topics.deep_model import DeepModel, load_deep_model
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import map_vectors
from dagster_divorder.store.state import Receipt
from tests.conftest import Notes, over, topic_records, write_jsonl
from tests.engine.work import fail_in_rank_one
from tests.pipeline.runs import Make, ran
from tests.tiny_models import CONTEXT, save_checkpoint, save_model, save_tokenizer

pytestmark = pytest.mark.usefixtures("no_matrix_units", "small_fragments")

STAGE = "deep_embeddings"
TEXTS = [record["text"] for record in topic_records(10)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_checkpoint(folder / kind, kind) for kind in ("bert", "llama")}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records(10))


def run(settings: Settings, progress: Any = None) -> Receipt:
    return run_all(settings, progress or Silent(), GRAPH.needed(settings, STAGE))[STAGE]


def stored(settings: Settings, name: str = "vectors") -> np.ndarray:
    """An array of the stage by accepted record, in input order."""
    return open_run(settings).column(STAGE, name)


def expected(folder: Path, texts: list[str], **options: Any) -> np.ndarray:
    encoded = load_encoder(folder).encode(texts)
    return load(folder, read_spec(folder, **options)).embed(*encoded)["vectors"]


def test_a_model_with_a_tokenizer_of_its_own(
    corpus: Path, make_settings: Make, models: dict[str, Path]
) -> None:
    settings = make_settings(deep={"model": str(models["bert"])})
    receipt = run(settings)
    np.testing.assert_allclose(stored(settings), expected(models["bert"], TEXTS), atol=1e-5)
    lengths = load_encoder(models["bert"]).encode(TEXTS)[1]
    np.testing.assert_array_equal(stored(settings, "tokens"), lengths)
    unseen = np.maximum(lengths - (CONTEXT - 2), 0)
    report = receipt.figures
    assert report["documents"] == report["new_documents"] == len(TEXTS)
    assert (report["dim"], report["pooling"], report["max_tokens"]) == (32, "mean", CONTEXT)
    assert (report["device"], report["dtype"]) == ("cpu", "float32")
    assert report["tokens"] == lengths.sum()
    assert report["truncated_documents"] == (unseen > 0).sum() > 0
    assert report["unseen_tokens"] == pytest.approx(unseen.sum() / lengths.sum(), abs=1e-4)
    assert report["flagged_documents"] == 0


def test_the_base_models_tokens_are_not_made_again(
    corpus: Path, make_settings: Make, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(model={"base": str(models["llama"])}, deep={"max_tokens": 20})
    run_all(settings, Silent(), GRAPH.needed(settings, "token_counts"))
    monkeypatch.setattr(deep_embeddings, "tokenize", lambda *_: pytest.fail("tokenised again"))
    run(settings)
    found = expected(models["llama"], TEXTS, max_tokens=20)
    np.testing.assert_allclose(stored(settings), found, atol=1e-5)


def test_the_key_is_what_settings_come_to(
    corpus: Path, make_settings: Make, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def key_of(change: dict[str, Any]) -> str:
        """The key that a run would have, without one."""
        settings = make_settings(**over({"deep": {"model": str(models["bert"])}}, change))
        here = ran(settings, "deep_model", "token_counts")
        embed = deep_embeddings._embed_of(here)
        assert isinstance(pickle.loads(pickle.dumps(embed)), deep_embeddings.Embed)
        return GRAPH[STAGE].key(here)

    key = key_of({})
    for same in (
        {"deep": {"tensor_parallel": 2}},
        {"engine": {"device": "cpu"}},
        {"deep": {"max_tokens": CONTEXT}},
    ):
        assert key_of(same) == key, same
    assert key_of({"deep": {"max_tokens": 20}}) != key
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert key_of({}) != key, "another device"


def test_documents_without_a_finite_vector_are_named(
    corpus: Path, make_settings: Make, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the documents, one of them twice in the corpus. A model without any is refused."""
    marked = [TEXTS[3], TEXTS[25]]
    ids, lengths = load_encoder(models["bert"]).encode(marked)
    starts = [tuple(part[: CONTEXT - 2].tolist()) for part in np.split(ids, np.cumsum(lengths)[:-1])]
    write_jsonl(corpus, [{"text": text, "id": f"doc-{at}"} for at, text in enumerate([*TEXTS, TEXTS[3]])])

    embed, notes = Embedder.__call__, Notes()

    def broken(model: Embedder, ids: np.ndarray, lengths: np.ndarray) -> torch.Tensor:
        vectors = embed(model, ids, lengths).clone()
        for row, length in enumerate(lengths):
            if tuple(ids[row, 1 : length - 1].tolist()) in starts:
                vectors[row, 0] = torch.nan
        return vectors

    monkeypatch.setattr(Embedder, "__call__", broken)
    settings = make_settings(deep={"model": str(models["bert"])})
    report = run(settings, notes).figures
    flagged = stored(settings, "flagged")
    assert np.flatnonzero(flagged == NOT_FINITE).tolist() == [3, 25, len(TEXTS)]
    assert np.isfinite(stored(settings)).all()
    assert report["flagged_documents"] == 3
    assert any("3 documents have no finite vector" in note for note in notes.said)
    named = make_settings(deep={"model": str(models["bert"])}, input={"id_field": "id"})
    assert run(named, notes).figures["new_documents"] == 0
    assert notes.said[-1].endswith(": doc-3, doc-25")
    monkeypatch.setattr(Embedder, "__call__", lambda *given: torch.nan * embed(*given))
    with pytest.raises(InputError, match="no finite vector for any of 41 documents"):
        run(make_settings(deep={"model": str(models["bert"]), "max_tokens": 20}))


def test_two_processes_share_a_model(
    corpus: Path,
    make_settings: Make,
    models: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = make_settings(deep={"model": str(models["llama"]), "tensor_parallel": 2})
    free = deep_embeddings._free
    monkeypatch.setattr(deep_embeddings, "_free", lambda device: None)
    shared = run(settings)
    alone = make_settings(deep={"model": str(models["llama"])}, store={"path": tmp_path / "alone"})
    assert run(alone).version == shared.version
    np.testing.assert_allclose(stored(settings), stored(alone), atol=1e-5)
    (group,) = deep_embeddings._groups.values()
    with pytest.raises(InputError, match="rank one refuses the item") as caught:
        group(lambda limit: fail_in_rank_one, "the item")
    assert "in rank 1" in caught.value.__notes__[0]
    assert not group._ranks, "after an error they start again"
    free("cpu")
    assert not deep_embeddings._groups


def take(limit: int | None, item: str) -> tuple[int, str]:
    if limit is None:
        raise OutOfMemory(100)
    return limit, item


def test_after_memory_ran_out_ranks_begin_again_with_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error as it comes from another process."""
    group = Group(1, "cpu")

    def compute(function: Callable[[str], Any], item: str) -> Any:
        try:
            return function(item)
        except OutOfMemory as error:
            raise pickle.loads(pickle.dumps(error)) from None

    monkeypatch.setattr(group, "_compute", compute)
    assert group(lambda limit: partial(take, limit), "the item") == (50, "the item")
    assert group.limit == 50


GRADIENTS = "gradient_embeddings"
SELECTING: dict[str, Any] = {"selection": {"method": "random", "tokens": 9}, "engine": {"workers": 1}}


def test_gradients_are_stored_by_document(
    corpus: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(**SELECTING)
    records = topic_records(10)
    write_jsonl(corpus, [*records, {"text": "a"}, records[3]])
    last = ran(settings, GRADIENTS)
    first = last.receipt(GRADIENTS)
    vectors = np.array(map_vectors(last.store, last.view, last.receipt(GRADIENTS)))
    assert (vectors.shape, vectors.dtype) == ((42, 64), np.float32)
    # One token has no next one.
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.arange(42) != 40, atol=1e-6)
    np.testing.assert_array_equal(vectors[41], vectors[3])
    report = first.figures
    assert (report["model"], report["max_tokens"], report["flagged_documents"]) == ("bootstrap", 768, 0)
    assert (report["documents"], report["new_documents"]) == (42, 41)
    with monkeypatch.context() as patch:
        patch.setattr(
            gradient_embeddings, "read_spec", lambda *_, **__: pytest.fail("the model was looked at")
        )
        assert ran(settings, GRADIENTS).receipt(GRADIENTS).version == first.version
    # The file of all rows is of the last result, and prune leaves it.
    prune(GRAPH, LocalStore(settings.store.path).open())
    assert [path.name for path in (settings.store.path / "results").iterdir()] == [
        f"gradients-{first.version}.npy"
    ]


def test_no_gradient_is_made_unless_it_is_asked_for(make_settings: Make) -> None:
    assert GRADIENTS not in GRAPH.needed(make_settings())
    assert {GRADIENTS, "deep_model"} <= {*GRAPH.needed(make_settings(**SELECTING))}


def test_the_key_of_gradients_is_what_settings_come_to(
    corpus: Path, make_settings: Make, tmp_path: Path
) -> None:
    keys, tied = [], save_model(tmp_path / "tied", tie_word_embeddings=True)
    save_tokenizer(tied, ("<|endoftext|>",), ("<eos>",))
    for change in ({}, {"deep": {"max_tokens": 9}}, {"seed": 1}):
        settings = make_settings(**over({**SELECTING, "deep": {"model": str(tied)}}, change))
        here = ran(settings, "deep_model", "token_counts")
        embed = gradient_embeddings.gradients_of(here)
        # The window begins as the model's own does, and does not end where a text is cut.
        assert (len(embed.spec.prefix), embed.spec.suffix) == (1, ())
        assert embed.spec.window <= CONTEXT
        keys.append(GRAPH[GRADIENTS].key(here))
    assert keys[0] == keys[1] != keys[2]


def model_of(settings: Settings) -> DeepModel:
    return load_deep_model(ran(settings, "deep_model"))


def test_its_settings_and_the_base_model_decide_the_decoder_and_appended_documents_use_it(
    corpus: Path, make_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(make_settings())
    elsewhere = {"store": {"path": tmp_path / "elsewhere"}, "engine": {"workers": 1}}
    assert model_of(make_settings(**elsewhere)).fingerprint == model.fingerprint
    others = make_settings(seed=1), make_settings(advanced={"token_dims": 8})
    assert len({model.fingerprint, *(model_of(settings).fingerprint for settings in others)}) == 3

    monkeypatch.setattr(decoder, "make_decoder", lambda *_, **__: pytest.fail("made again"))
    assert model_of(make_settings(output={"sidecars": ("plot",)})) == model
    write_jsonl(corpus, topic_records(20))
    assert model_of(make_settings()) == model


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
    """Also where other bytes have the size and the time of those before."""
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
    times = weights.stat()
    for name, content in changes.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
        found.add(model_of(settings).fingerprint)
    assert len(found) == 1 + len(changes)
    weights.unlink()
    with pytest.raises(InputError, match=r"expected weights as model\.safetensors"):
        ran(settings, "deep_model")


def test_a_run_with_nothing_new_does_not_read_the_weights(
    corpus: Path, make_settings: Make, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files that were written a moment ago are trusted.
    monkeypatch.setattr(checkpoint, "SETTLED_NS", 0)
    read: list[str] = []
    for module, name in ((checkpoint, "table_fingerprint"), (deep_model, "checkpoint_fingerprint")):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, of=function: read.append(of.__name__) or of(*given))
    settings = make_settings(model={"base": str(models["llama"])})
    first = run(settings)
    assert read == ["table_fingerprint", "checkpoint_fingerprint"]
    assert run(settings).version == first.version
    assert len(read) == 2


@pytest.mark.parametrize("deep", [{}, {"model": "org/deep@v2"}])
def test_revisions_are_asked_for(
    corpus: Path,
    make_settings: Make,
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    deep: dict[str, str],
) -> None:
    asked: list[str] = []
    for module in (checkpoint, deep_model):
        monkeypatch.setattr(module, "locate", lambda base, **_: asked.append(base) or models["llama"])
    run(make_settings(model={"base": "org/base@v1"}, deep=deep))
    wanted = ["org/base@v1", deep.get("model", "org/base@v1")]
    # Once before the first stage, to see that they are there, and once by the stages.
    assert asked == [*wanted, *wanted]
