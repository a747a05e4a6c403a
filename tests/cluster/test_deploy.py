"""The deployment of deploy/: its services come up, and a run on Ray and object storage writes one process's output."""

from __future__ import annotations

from pathlib import Path

import obstore
from obstore.store import S3Store

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import load_settings
from tests.cluster.deployment import Deployment
from tests.conftest import topic_records, write_jsonl

SMALL = {
    "DIVORDER_ADVANCED__VOCAB_SIZE": "512",
    "DIVORDER_ADVANCED__TOKEN_DIMS": "16",
    "DIVORDER_CLUSTERS__K": "4",
    "DIVORDER_SEQUENCE__LENGTH": "128",
    "DIVORDER_SEQUENCE__BATCH": "4",
    "DIVORDER_OUTPUT__SIDECARS": "[]",
}


def test_it_comes_up_and_a_run_writes_the_output_of_one_process(tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", topic_records())
    (tmp_path / "deployment").mkdir()
    with Deployment(tmp_path / "deployment", **SMALL) as running:
        access = running.environment_of("code")
        bucket = S3Store(
            "divorder",
            endpoint=access["AWS_ENDPOINT_URL"],
            access_key_id=access["AWS_ACCESS_KEY_ID"],
            secret_access_key=access["AWS_SECRET_ACCESS_KEY"],
            region=access["AWS_REGION"],
            client_options={"allow_http": True},
        )
        obstore.put(bucket, "corpus/docs.jsonl", corpus)
        run = running.launch("curate")
        assert running.end_of(run) == "SUCCESS", (running.folder / "code.log").read_text()[-4000:]
        written = {
            name: obstore.get(bucket, f"curated/{name}").bytes() for name in ("curated.jsonl", "order.npy")
        }
    (tmp_path / "here.toml").write_text(
        f'input.paths = ["{corpus}"]\nstore.path = "s"\noutput.path = "out"\n'
    )
    run_all(load_settings(tmp_path / "here.toml", environ=SMALL), Silent())
    for name, data in written.items():
        assert data == (tmp_path / "out" / name).read_bytes()
