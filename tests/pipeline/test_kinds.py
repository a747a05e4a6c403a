"""Every kind of vectors through the whole pipeline: output and results have the vectors that were clustered."""

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
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
KINDS: dict[str, dict[str, Any]] = {
    "deep": {
        "embedding": {"kind": "deep", "pca": {"deep": 3}},
        "advanced": {"stored": "float16"},
    },
    "auto": {"embedding": {"kind": "auto", "pca": {"shallow": 2}}, "clusters": {"k": (2, 4)}},
    "external": {"embedding": {"kind": "external", "pca": 2}},
}


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
        packing={"method": "related"},
        output={"sidecars": ("arrays",)},
    )

    rows = [np.random.default_rng([*record["text"].encode()]).normal(size=5) for record in topic_records(20)]
    np.save(tmp_path / "vectors.npy", np.array(rows))
    run_all(settings, Silent())
    assert {stage.scope for stage in make_plan(GRAPH, settings).stages} == {"nothing"}
    clustered = orjson.loads((settings.output.path / "curated_meta.json").read_bytes())["space"]
    vectors = load_results(settings.store.path).embeddings
    assert np.array_equal(np.load(settings.output.path / "embeddings.npy"), vectors)
    assert vectors.dtype == (np.float16 if "advanced" in sections else np.float32)
    assert np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=1), 1, atol=2e-3)

    chosen = sections["embedding"]["kind"]
    named = {f"{kind}_embeddings" for kind in (("shallow", "deep") if chosen == "auto" else (chosen,))}
    assert clustered["vectors"] in named
