"""Input, output and exports on a real object store: what the same files here give, kills, changes and strangers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.run import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.output import curated_output, exports
from tests.conftest import topic_records
from tests.store.remote import objects, put

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LINES = [orjson.dumps(record) + b"\n" for record in topic_records(40)]


@pytest.fixture
def s3(new_place: Callable[[], str]) -> str:
    """A URL of nothing yet."""
    return new_place()


def settings_of(folder: Path, **sections: Any) -> Settings:
    base: dict[str, Any] = {
        "store": sections.pop("store", {"path": folder / "store"}),
        "advanced": {"vocab_size": 512, "token_dims": 16},
        "clusters": {"k": 4},
        "order": {"frozen_tokens": 0},
        "sequence": {"length": 128, "batch": 4},
    }
    output = {"sidecars": (), **sections.pop("output", {"path": folder / "curated"})}
    return Settings(**base, output=output, **sections)


def told(files: dict[str, bytes]) -> dict[str, bytes]:
    """Files by name; of manifests what they say of the content."""
    manifests = [name for name in files if name.endswith(("manifest.json", "curated_meta.json"))]
    entries = {name: orjson.dumps(orjson.loads(files[name])["files"]) for name in manifests}
    return files | entries


FORMATS = ["parquet", "megatron", "mds", "litdata", "olmo", "ds"]


def test_output_and_exports_are_the_same_bytes_wherever_they_lie(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"".join(LINES))

    def settings_at(at: str | Path, **sections: Any) -> Settings:
        # Several files of each, and of the Parquet ones more than one row group.
        return settings_of(
            tmp_path / "there",
            input={"paths": [str(tmp_path / "in.jsonl")]},
            output={"path": f"{at}/out"},
            exports={"path": f"{at}/exports", "formats": FORMATS},
            **sections,
        )

    monkeypatch.setattr(curated_output, "OUTPUT_SHARD_BYTES", 9000)
    monkeypatch.setattr(exports, "EXPORT_SHARD_BYTES", 9000)
    here = settings_at(tmp_path / "here", store={"path": tmp_path / "store"})
    there = settings_at(s3, store={"path": f"{s3}/store"}, engine={"workers": 2})
    run_all(here, Silent())
    monkeypatch.setattr(curated_output, "WORKERS_FROM_BYTES", 1)
    run_all(there, Silent())

    def written(at: str | Path) -> dict[str, bytes]:
        found = objects(at).items()
        return told({name: data for name, data in found if name.startswith(("out/", "exports/"))})

    before = written(s3)
    assert before == written(tmp_path / "here")
    assert not run_all(there, Silent())["curated_output"].figures["written"]
    assert written(s3) == before
    findings = run_checks(GRAPH, there)
    for check in ("every_record_in_output", "exports_are_whole", "trainers_keep_the_order"):
        assert findings[check].passed
    # What has another size is written anew.
    put(f"{s3}/out/curated-00000.jsonl", b"altered")
    run_all(there, Silent())
    assert written(s3) == before
