"""Output and exports in worker processes: the bytes of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import run_all
from dagster_divorder.stages.output import curated_output
from dagster_divorder.write import permute
from dagster_divorder.write.exports import rows


def test_files_of_workers_have_the_bytes_of_one_process(
    tmp_path: Path, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (orjson.dumps({"text": f"document {n} " + f"word{n % 7} " * (n % 90)}) for n in range(3000))
    (tmp_path / "docs.jsonl").write_bytes(b"\n".join(lines))
    for module, name, value in (
        (curated_output, "WORKERS_FROM_BYTES", 0),
        (permute, "MEMORY_BYTES", 200_000),
        (permute, "BUCKET_BYTES", 100_000),
        (rows, "MAPPED_BYTES", 200_000),
        (rows, "WORKERS_FROM_BYTES", 0),
    ):
        monkeypatch.setattr(module, name, value)
    hashes = []
    for workers in (1, 3):
        places = {"store": {"path": tmp_path / f"store{workers}"}}
        output = {"path": tmp_path / f"out{workers}", "shard_bytes": 200_000}
        exports = {
            "formats": ["parquet", "olmo", "mds"],
            "path": tmp_path / f"exports{workers}",
            "shard_bytes": 100_000,
        }
        settings = make_settings(**places, output=output, exports=exports, engine={"workers": workers})
        made = run_all(settings, Silent())
        files = made["curated_output"].figures["files"]
        hashes.append(
            (
                made["raw_docs"].version,
                {name: of["sha256"] for name, of in files.items()},
                {
                    str(file.relative_to(exports["path"])): file.read_bytes()
                    for file in sorted(Path(exports["path"]).rglob("*"))
                    if file.is_file() and file.name != "manifest.json"
                },
            )
        )
    assert sum(name.startswith("curated-") for name in hashes[0][1]) > 2
    assert len(hashes[0][2]) > 12
    assert hashes[0] == hashes[1]
