"""The result of every stage on a fixed corpus, beside the code version it belongs to.

A test that fails here says: the stage's output has changed. Raise the stage's `version`, so that no store mixes old
results with new, then run `python -m tests.pipeline.test_golden` to renew golden.json. Floating-point results differ in
their last digits between processors: of those a signature is compared, within a tolerance.
"""

from __future__ import annotations

import gzip
import io
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xxhash

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.output.exports import TAG_DIGITS
from dagster_divorder.stages.topics import gradient_embeddings
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at
from dagster_divorder.write.exports import FORMATS
from tests.conftest import changed, small_settings, topic_records, write_jsonl
from tests.golden import digest, same, signature

EVIDENCE = ("deep_embeddings", "ari_comparison", "cluster_map", "strategy_comparison")
DRAWN = ("ordering_report", "ordering_animation")
"""Their output is pictures, whose bytes follow matplotlib and ffmpeg."""
PLACES = {"map_fit", "cluster_map"}
"""Stages whose floating-point numbers are UMAP's: on each processor another map."""
OF_THE_MOMENT = re.compile("seconds")
"""Columns and fields that are another in each run."""
HASH = re.compile("[0-9a-f]{32,}")
"""Of numbers with a fraction, it may be: their signature is compared."""

GOLDEN = Path(__file__).with_name("golden.json")


def of_array(array: np.ndarray, places: bool) -> Any:
    if array.dtype.kind != "f":
        return digest(array)
    return (
        list(array.shape)
        if places
        else signature(array.reshape(len(array), -1))
        if array.ndim
        else float(array)
    )


def of_table(table: pa.Table, places: bool) -> Any:
    return {
        name: of_array(column.to_numpy(), places)
        if pa.types.is_floating(column.type)
        else xxhash.xxh3_64_hexdigest(repr(column.to_pylist()).encode())
        for name, column in zip(table.column_names, table.columns, strict=True)
        if not OF_THE_MOMENT.match(name)
    }


def of_json(value: Any) -> Any:
    """Its numbers with a fraction as one signature, and a digest of the rest."""
    fractions: list[float] = []

    def rest(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rest(of) for name, of in sorted(value.items()) if not OF_THE_MOMENT.match(name)}
        if isinstance(value, list):
            return [rest(of) for of in value]
        if isinstance(value, float):
            fractions.append(value)
            return None
        return None if isinstance(value, str) and HASH.fullmatch(value) else value

    return [xxhash.xxh3_64_hexdigest(orjson.dumps(rest(value))), *signature(np.array(fractions))]


def of_file(name: str, data: bytes, places: bool = False) -> Any:
    """What is compared of a file: of numbers with a fraction a signature, of all else the bytes; None of a picture."""
    match name.rpartition(".")[2]:
        case "png" | "svg":
            return None
        case "safetensors":
            return {field: of_array(array, places) for field, array in unpack(data).items()}
        case "arrow":
            return of_table(pa.ipc.open_file(data).read_all(), places)
        case "parquet":
            return of_table(pq.read_table(io.BytesIO(data)), places)
        case "gz":
            return xxhash.xxh3_64_hexdigest(gzip.decompress(data))
        case "json":
            return of_json(orjson.loads(data))
        case _:
            return xxhash.xxh3_64_hexdigest(data)


def of_stage(run: Run, name: str) -> Any:
    stage, receipt = GRAPH[name], run.receipt(name)
    places = name in PLACES
    if name == "raw_docs":
        return receipt.version
    if isinstance(stage, PerDocument):
        (file,) = stage.files(run, receipt.key).present().values()
        return of_file(file, run.store.read_verified(file))
    if isinstance(stage, PinnedFit):
        files = run.fit(name)
    elif name == "exports":
        files = {}
        for folder in run.settings.exports.path.glob("[!_]*"):
            # Names of files carry a part of the key, which names folders of this run; litdata's as a number.
            tag = orjson.loads(file_at(folder, EXPORT_MANIFEST).read_bytes())["key"][:TAG_DIGITS]
            number = str(int(tag, 16))
            for path in [*folder.iterdir(), *file_at(folder, EXPORT_MANIFEST).parent.iterdir()]:
                if path.name != "manifest.json":
                    data = path.read_bytes()
                    if path.name == "index.json":
                        data = data.replace(tag.encode(), b"TAG").replace(number.encode(), b"TAG")
                    files[f"{path.parent.name}/{path.name.replace(tag, 'TAG').replace(number, 'TAG')}"] = data
    elif name == "curated_output":
        files = {
            path.name: path.read_bytes()
            for path in sorted(run.settings.output.path.iterdir())
            if path.name != "curated_meta.json"
        }
    else:
        files = {f"{label}.{file.rpartition('.')[2]}": run.store.read_verified(file)
                 for label, file in receipt.files.items()}  # fmt: skip
    return {file: of_file(file, data, places) for file, data in sorted(files.items())}


@patch.object(torch.cpu, "get_capabilities", dict)  # models run in float32
def results(folder: Path) -> dict[str, dict[str, Any]]:
    write_jsonl(folder / "docs.jsonl", topic_records(40))
    vectors = np.random.default_rng(0).normal(size=(160, 3)).astype(np.float32)
    np.save(folder / "vectors.npy", vectors)
    settings = small_settings(
        folder,
        # Field of ids, on which no other result depends.
        input={"id_field": "source"},
        advanced={"token_dims": 8},
        order={"traits": {"cluster": 1.0, "length": 1.0, "source": 1.0, "score": 1.0}, "frozen_tokens": None},
        exports={"formats": tuple(FORMATS), "path": folder / "exports"},
    )
    found: dict[str, Any] = {}

    def make(settings: Settings, stages: tuple[str, ...]) -> None:
        run_all(settings, Silent(), stages)
        run = open_run(settings)
        found.update({name: of_stage(run, name) for name in stages if name not in found})

    evidence = [stage for name in EVIDENCE for stage in GRAPH.step(settings, name)]
    make(settings, tuple(dict.fromkeys([*GRAPH.needed(settings), *evidence])))
    tried = changed(settings, clusters={"k": (2, 4, 8)})
    make(tried, GRAPH.step(tried, "k_calibration"))
    external = {"kind": "external", "path": folder / "vectors.npy"}
    make(changed(settings, embedding=external), ("external_embeddings",))
    mixed = changed(settings, mixing={"weights": 0.3, "total_tokens": 9_000}, heldout={"documents": 0.1})
    make(mixed, GRAPH.needed(mixed, "repeats"))
    chosen = changed(settings, selection={"method": "spokes", "tokens": 4_000})
    # Sums of gradients grow with the square of their dims.
    with patch.object(gradient_embeddings, "DIMS", 8):
        make(chosen, GRAPH.needed(chosen, "subset_selection"))
    followed = changed(settings, curriculum={"score": "score"})
    make(followed, GRAPH.needed(followed, "scores"))
    return {
        name: {"code_version": GRAPH[name].version, "result": found[name]} for name in GRAPH if name in found
    }


def test_no_stage_changes_its_output_under_the_same_code_version(tmp_path: Path) -> None:
    golden = orjson.loads(GOLDEN.read_bytes())
    found = orjson.loads(orjson.dumps(results(tmp_path)))
    assert set(found) == set(golden)
    changed = [stage for stage in GRAPH if stage in golden and not same(found[stage], golden[stage])]
    assert not changed, (
        f"{changed[0]} is the first stage whose output or code version differs: see this file's top"
    )


def test_every_stage_is_held() -> None:
    unheld = set(GRAPH) - set(orjson.loads(GOLDEN.read_bytes()))
    held_by_their_own_tests = {
        "frozen",  # the beginning of an output of before
        "training_evidence",  # the sums of a training are the processor's
    }
    assert unheld == {*DRAWN, *held_by_their_own_tests}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        GOLDEN.write_bytes(
            orjson.dumps(results(Path(made)), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"
        )
