"""The stage of gradients: what it stores and reuses, what its key hangs on, and documents without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import SettingsError
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all
from dagster_divorder.stages.topics import gradient_embeddings
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.space import map_vectors
from dagster_divorder.store.state import Receipt
from tests.conftest import topic_records, write_jsonl
from tests.tiny_models import CONTEXT, save_model, save_tokenizer

pytestmark = pytest.mark.usefixtures("no_matrix_units", "small_fragments")

STAGE = "gradient_embeddings"
SMALL: dict[str, Any] = {
    "selection": {"method": "random", "tokens": 9},
    "engine": {"workers": 1},
}
RECORDS = topic_records(10)

Make = Callable[..., Settings]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", RECORDS)


def run(settings: Settings, progress: Any = None) -> Receipt:
    return run_all(settings, progress or Silent(), GRAPH.needed(settings, STAGE))[STAGE]


def made(make_settings: Make, **sections: Any) -> Settings:
    return make_settings(
        **sections | {name: {**small, **sections.get(name, {})} for name, small in SMALL.items()}
    )


def test_gradients_are_stored_by_document(
    corpus: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = made(make_settings)
    write_jsonl(corpus, [*RECORDS, {"text": "a"}, RECORDS[3]])
    first = run(settings)
    last = open_run(settings)
    vectors = np.array(map_vectors(last.store, last.view, last.receipt(STAGE)))
    assert (vectors.shape, vectors.dtype) == ((42, 64), np.float32)
    # One token has no next one.
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.arange(42) != 40, atol=1e-6)
    np.testing.assert_array_equal(vectors[41], vectors[3])
    report = first.figures
    assert (report["model"], report["blocks"], report["dim"], report["max_tokens"]) == (
        "bootstrap",
        2,
        64,
        768,
    )
    assert report["flagged_documents"] == 0
    assert (report["documents"], report["new_documents"]) == (42, 41)
    with monkeypatch.context() as patch:
        patch.setattr(
            gradient_embeddings, "read_spec", lambda *_, **__: pytest.fail("the model was looked at")
        )
        assert run(settings).version == first.version
    # The file of all rows is of the last result, and prune leaves it.
    prune(GRAPH, LocalStore(settings.store.path).open())
    assert [path.name for path in (settings.store.path / "results").iterdir()] == [
        f"gradients-{first.version}.npy"
    ]


def test_nothing_of_it_runs_unless_it_is_asked_for(make_settings: Make) -> None:
    assert STAGE not in GRAPH.needed(make_settings())
    assert {STAGE, "deep_model"} <= {*GRAPH.needed(made(make_settings))}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tokenizer(save_model(folder, tie_word_embeddings=True), ("<|endoftext|>",), ("<eos>",))
    return folder


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"deep": {"max_tokens": 9}}, True),
        ({"seed": 1}, False),
    ],
    ids=str,
)
def test_the_key_is_what_settings_come_to(
    corpus: Path, make_settings: Make, llama: Path, change: dict[str, Any], same: bool
) -> None:
    keys = []
    for more in ({}, change):
        settings = made(make_settings, **{**more, "deep": {"model": str(llama), **more.get("deep", {})}})
        run_all(settings, Silent(), GRAPH.needed(settings, "deep_model", "token_counts"))
        here = open_run(settings)
        embed = gradient_embeddings.gradients_of(here)
        # The window begins as the model's own does, and does not end where a text is cut.
        assert (len(embed.spec.prefix), embed.spec.suffix) == (1, ())
        assert embed.spec.window <= CONTEXT
        keys.append(GRAPH[STAGE].key(here))
    assert (keys[0] == keys[1]) is same


def test_the_bootstrap_decoder_needs_the_bootstrap_model(
    corpus: Path, make_settings: Make, llama: Path
) -> None:
    with pytest.raises(SettingsError, match=r'deep.model is "bootstrap" and model.base is'):
        run(made(make_settings, deep={"model": "bootstrap"}, model={"base": str(llama)}))
