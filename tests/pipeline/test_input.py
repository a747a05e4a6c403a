"""The input as a person names it: never what DivOrder wrote, long records refused, what is left out said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import dagster as dg
import orjson
import pyarrow as pa
import pytest

from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all, run_stage
from dagster_divorder.stages.corpus import raw_docs
from dagster_divorder.stages.order.traits import trait_codes
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import load_receipt
from dagster_divorder.view.shown import Text
from tests.conftest import Notes, topic_records, write_jsonl
from tests.defs.conftest import Daemon

Make = Callable[..., Settings]


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file by name: when it was written, and its bytes."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


@pytest.mark.parametrize("setting", ["order.traits", "mixing.trait"])
def test_fields_whose_values_hardly_repeat_are_refused(setting: str, make_settings: Make) -> None:
    mixing = {"mixing": {"trait": "url", "weights": {"url 1": 1.0}}}
    settings = make_settings(**mixing if setting == "mixing.trait" else {"order": {"traits": {"url": 1.0}}})
    run: Any = SimpleNamespace(settings=settings, view=None)
    urls = pa.table({"url": [f"url {row}" for row in range(1500)]})
    with pytest.raises(InputError, match=f"{setting}: field 'url' has 1,500 distinct values in 1,500 rows"):
        trait_codes(run, "url", urls, {})


@pytest.mark.parametrize("pattern", ["**/*.json*", ""])
def test_three_runs_read_the_same_records_with_store_and_output_among_the_input(
    tmp_path: Path, make_settings: Make, pattern: str
) -> None:
    write_jsonl(tmp_path / "in/docs.jsonl", [*topic_records(15), {"no": "text"}])
    (tmp_path / "in/notes.txt").touch()
    settings = make_settings(input={"paths": [str(tmp_path / pattern)], "max_reject_share": 0.5})
    outputs = []
    for _ in range(3):
        run_all(settings)
        outputs.append(files_of(settings.output.path))
        assert orjson.loads(outputs[-1]["curated_meta.json"][1])["counts"]["records"] == 60
        assert make_plan(GRAPH, settings).new_records == 0
    assert outputs[0] == outputs[1] == outputs[2]
    assert set(facts(settings)["skipped_folders"]) == {str(settings.store.path), str(settings.output.path)}
    said = shown(settings)
    assert "Not read, as DivOrder wrote them: " in said
    assert ("neither JSONL nor Parquet by their names: 1 .txt." in said) == (not pattern)
    daemon = Daemon(dg.DagsterInstance.ephemeral(), settings)
    assert "no change in 1 input file" in str(daemon.tick())
    run_all(settings)
    assert daemon.tick() == "no change in 1 input file"


def facts(settings: Settings) -> dict[str, Any]:
    receipt = load_receipt(LocalStore(settings.store.path), "raw_docs")
    assert receipt is not None
    return receipt.facts


def shown(settings: Settings) -> str:
    run = open_run(settings)
    remarks = raw_docs.RAW_DOCS.show(run, run.receipt("raw_docs"))["remarks"]
    assert isinstance(remarks, Text)
    return remarks.markdown


def record(size: int) -> bytes:
    """A record of so many bytes."""
    return b'{"text":"%s"}' % (b"x" * (size - 11))


@pytest.mark.parametrize("end", [b"", b"\r"])
def test_cr_line_ends_are_named(tmp_path: Path, make_settings: Make, end: bytes) -> None:
    file, settings = tmp_path / "docs.jsonl", make_settings(input={"max_reject_share": 1})

    def read(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        file.write_bytes(data)
        with patch.object(raw_docs, "MAX_RECORD_BYTES", 100):
            receipt = run_stage("raw_docs", settings, Silent())
        rejects = LocalStore(settings.store.path).read_verified(receipt.files["rejects"])
        return receipt.figures, [orjson.loads(line) for line in rejects.splitlines()]

    for count in (2, 50):  # below the limit of a record, and beyond it
        with pytest.raises(
            InputError, match=r"docs\.jsonl:(1: | line 1 has more than).*CR line ends, expected LF or CRLF"
        ):
            read(b"\r".join([record(40)] * count) + end)
    found, (reject,) = read(record(50) + b"\n" + record(20) + b"\r" + record(20) + end)
    assert (found["records"], found["partial_lines"]) == (1, 0)
    assert reject["reason"].startswith("CR line ends")
    # CRLF of which the LF is not written yet is none.
    found, rejects = read(record(50) + b"\r\n" + record(20)[:-3] + b"\r")
    assert (found["partial_lines"], rejects) == (1, [])


def test_what_is_odd_is_told_until_it_is_mended(tmp_path: Path, make_settings: Make) -> None:
    lines = [orjson.dumps({"text": f"label {n % 5}", "n": n}) + b"\n" for n in range(100)]
    file, notes, settings = tmp_path / "docs.jsonl", Notes(), make_settings()
    file.write_bytes(b"".join(lines)[:-9])
    receipt = run_stage("raw_docs", settings, notes)
    begins = sum(map(len, lines[:-1]))
    assert receipt.figures["partial_lines"] == 1
    assert receipt.facts["unfinished"] == [[str(file), 100, begins]]
    cut_short, few = notes.said
    assert f"Not read: line 100 of {file}, from byte {begins:,} on" in cut_short
    assert few.startswith("99 records hold 5 distinct texts of 7 bytes on average, as short as labels")
    assert "set input.text_field" in few
    found = shown(settings)
    assert cut_short in found and few in found
    file.write_bytes(b"".join(b'{"text": "a boat of number %d on its way home"}\n' % n for n in range(100)))
    notes = Notes()
    assert run_stage("raw_docs", settings, notes).figures["records"] == 100
    assert notes.said == []
