"""Every kind of vectors through the whole pipeline: a run does what its plan says, results name the space, a prune and
an append leave it as it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.prune import plan_prune, prune
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
KINDS: dict[str, dict[str, Any]] = {
    "deep": {
        "embedding": {"kind": "deep", "pca": {"deep": 3}},
        "advanced": {"stored": "float16"},
    },
    "auto": {"embedding": {"kind": "auto", "pca": {"shallow": 2}}, "clusters": {"k": "auto"}},
    "external": {"embedding": {"kind": "external", "pca": 2}},
}
MEASURES = ("ari_comparison", "k_calibration")


@pytest.fixture
def checkpoint(tmp_path: Path, make_settings: Make) -> Path:
    """A model that anybody could bring: the bootstrap's own, from elsewhere."""
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    elsewhere = make_settings(store={"path": tmp_path / "elsewhere"})
    run_all(elsewhere, Silent(), ["raw_docs", "base_model"])
    (made,) = (tmp_path / "elsewhere").glob("fits/base_model/*")
    (tmp_path / "checkpoint").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(made / name, tmp_path / "checkpoint" / name)
    return tmp_path / "checkpoint"


@pytest.mark.parametrize("sections", KINDS.values(), ids=KINDS)
def test_every_kind_of_vectors(
    tmp_path: Path,
    checkpoint: Path,
    make_settings: Make,
    sections: dict[str, dict[str, Any]],
) -> None:
    external = {"path": tmp_path / "vectors.npy"} if sections["embedding"]["kind"] == "external" else {}
    settings = make_settings(
        **{
            **sections,
            "embedding": {**sections["embedding"], **external},
            "deep": {"model": str(checkpoint), **sections.get("deep", {})},
        },
        refit={"clusters": "never"},
        k_calibration={"values": [2, 4]},
        packing={"method": "related"},
        output={"sidecars": True},
    )

    def write(records: list[dict[str, Any]]) -> None:
        write_jsonl(tmp_path / "docs.jsonl", records)
        rows = [np.random.default_rng([*record["text"].encode()]).normal(size=5) for record in records]
        np.save(tmp_path / "vectors.npy", np.array(rows))

    def planned_and_run() -> tuple[dict[str, str], dict[str, int]]:
        scopes = {stage.stage: stage.scope for stage in make_plan(settings).stages}
        new = {
            stage: receipt.figures["new_documents"] for stage, receipt in run_all(settings, Silent()).items()
        }
        assert list(scopes) == list(new)
        for stage, scope in scopes.items():
            assert (scope == "nothing") == (new[stage] == 0) or stage == "curated_output", stage
        return scopes, new

    write(topic_records(20))
    scopes, _ = planned_and_run()
    assert set(scopes.values()) == {"all"}
    clustered = orjson.loads((settings.output.path / "curated_meta.json").read_bytes())["space"]
    vectors = load_results(settings.store.path).embeddings
    assert np.array_equal(np.load(settings.output.path / "embeddings.npy"), vectors)
    assert vectors.dtype == (np.float16 if "advanced" in sections else np.float32)
    assert np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=1), 1, atol=2e-3)

    store = LocalStore(settings.store.path)
    prune(settings, store)
    assert plan_prune(store).bytes == {}
    scopes, new = planned_and_run()
    assert set(scopes.values()) == {"nothing"}
    assert set(new.values()) == {0}

    write([*topic_records(20), *topic_records(1, start=90)])
    _, new = planned_and_run()
    per_document = [stage for stage in new if stage.endswith("_embeddings") or stage == "clusters"]
    assert {new[stage] for stage in per_document} == {4}
    assert {new[stage] for stage in MEASURES if stage in new} <= {0}
    assert orjson.loads((settings.output.path / "curated_meta.json").read_bytes())["space"] == clustered
    assert clustered["vectors"] in per_document
