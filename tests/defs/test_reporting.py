"""What a run of the command line reports to Dagster: its assets are fresh there, with figures and checks."""

from __future__ import annotations

import base64
import http.server
import io
import json
import os
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_divorder import build_definitions
from dagster_divorder.cli import main
from dagster_divorder.defs.automation import watch_input
from dagster_divorder.defs.metadata import table
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.defs.reporting import _plain
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.connect import store_of
from tests.defs.conftest import BINARIES, execute, make_corpus, metadata_of, unsynced
from tests.ui.dagster_dev import READY_SECONDS, until

pytestmark = pytest.mark.slow

Run = Callable[..., Mapping[str, Any]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings file of a corpus that has run once, with nothing to report to."""
    config = make_corpus(tmp_path_factory.mktemp("corpus"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAGSTER_HOME", raising=False)
        assert main(["run", "--config", str(config)]) == 0
    return config


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return tmp_path


@pytest.fixture
def run(corpus: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the corpus; what it reported, and what it said of that as `said`."""

    def reported(*arguments: str) -> Mapping[str, Any]:
        capsys.readouterr()
        assert main([*arguments, "--json", "--config", str(corpus)]) == 0
        out, said = capsys.readouterr()
        return {**(json.loads(out)["reported"] or {}), "said": said}

    return reported


def needed(config: Path, prefix: str = "") -> set[str]:
    settings = load_settings(config)
    return {prefix + asset for asset in GRAPH.asset_upstream(settings) if asset in GRAPH.needed(settings)}


def test_assets_of_a_run_are_fresh_and_show_what_a_run_of_dagster_shows(
    home: Path, corpus: Path, run: Run
) -> None:
    reported = run("run")
    assert set(reported["assets"]) == needed(corpus) and reported["error"] is None
    assert "reported to Dagster at" in reported["said"]
    defs = build_definitions(corpus)
    with dg.DagsterInstance.get() as instance:
        assert unsynced(defs, instance).isdisjoint(needed(corpus))
        events = {
            asset: instance.get_latest_materialization_event(dg.AssetKey(asset)) for asset in needed(corpus)
        }
        checked = instance.event_log_storage.get_latest_asset_check_execution_by_key(
            [
                key
                for key in defs.resolve_asset_graph().asset_check_keys
                if key.asset_key.path[-1] in needed(corpus)
            ]
        )
        assert len(checked) == reported["checks"] > 8
        assert all(record.status.value == "SUCCEEDED" for record in checked.values())
        described = {
            record.event.dagster_event.event_specific_data.description for record in checked.values()
        }
        assert any("records" in text for text in described)
        in_dagster = metadata_of(execute(defs, instance, *needed(corpus)))
    for asset, event in events.items():
        metadata = event.asset_materialization.metadata
        timed = {"seconds", "documents_per_second", "new_documents_per_second", "changed"}
        assert list(metadata) == list(in_dagster[asset]), asset
        same = {name for name in metadata if metadata[name] == in_dagster[asset][name]}
        assert set(metadata) - same <= timed, asset


def test_changed_settings_are_stale_until_the_command_line_has_run(
    home: Path, corpus: Path, run: Run
) -> None:
    run("run")
    text = corpus.read_text()
    corpus.write_text(text.replace("k = 4", "k = 3"))
    try:
        with dg.DagsterInstance.get() as instance:
            assert "clusters" in unsynced(build_definitions(corpus), instance)
            run("run", "diversity_metrics")
            stale = unsynced(build_definitions(corpus), instance) & needed(corpus)
            assert stale == {"curated_output"}
            run("run")
            assert unsynced(build_definitions(corpus), instance).isdisjoint(needed(corpus))
    finally:
        corpus.write_text(text)


def test_assets_of_others_that_dagster_knew_before_stay_inputs(home: Path, corpus: Path, run: Run) -> None:
    """A prefix, and an asset upstream that only definitions know."""

    @dg.asset(code_version="1")
    def crawl() -> None: ...

    defs = dg.Definitions.merge(
        build_definitions(corpus, key_prefix=["news", "daily"], upstream={"raw_docs": [crawl.key]}),
        dg.Definitions(assets=[crawl]),
    )
    assets = needed(corpus, "news/daily/")
    with dg.DagsterInstance.get() as instance:
        raw_docs = dg.AssetKey(["news", "daily", "raw_docs"])
        evaluated = dg.evaluate_automation_conditions(defs, instance)
        job = defs.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=instance, asset_selection=[crawl.key, raw_docs]).success
        reported = run("run", "--key-prefix", "news", "--key-prefix", "daily")
        assert set(reported["assets"]) == assets
        assert unsynced(defs, instance).isdisjoint({"crawl", *assets})
        evaluated = dg.evaluate_automation_conditions(defs, instance, cursor=evaluated.cursor)
        assert evaluated.total_requested == 0, "the command line has read what was crawled"
        assert job.execute_in_process(instance=instance, asset_selection=[crawl.key]).success
        evaluated = dg.evaluate_automation_conditions(defs, instance, cursor=evaluated.cursor)
        assert evaluated.total_requested == len(assets)
        known = set(instance.all_asset_keys())
        assert run("run", "--key-prefix", "news/daily")["assets"] == reported["assets"]
        assert set(instance.all_asset_keys()) == known
        changed = instance.get_latest_materialization_event(dg.AssetKey(["news", "daily", "clusters"]))
        assert changed.asset_materialization.metadata["changed"].value is False


def test_the_sensor_starts_nothing_for_what_the_command_line_reads(
    home: Path, corpus: Path, run: Run
) -> None:
    settings = load_settings(corpus)
    settings = settings.model_copy(
        update={"advanced": settings.advanced.model_copy(update={"settle_seconds": 0.0})}
    )
    sensor, cursor, documents = watch_input(Pipeline(GRAPH, settings)), None, corpus.parent / "docs.jsonl"
    before = documents.read_bytes()

    def tick() -> str:
        nonlocal cursor
        with dg.DagsterInstance.get() as instance:
            result = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, cursor=cursor))
        cursor = result.cursor
        return "starts a run" if result.run_requests else str(result.skip_message)

    try:
        run("run")
        assert tick() == "no change in 1 input file since the last run"
        documents.write_bytes(before + b'{"text": "one more"}\n')
        with store_of(settings.store).lease():
            assert "the store is in use" in tick()
        assert "raw_docs" in run("run")["assets"]
        assert tick() == "only times differ: 1 input file, all bytes as in the last run"
        documents.write_bytes(before)
        assert tick() == "starts a run"
    finally:
        documents.write_bytes(before)
        run("run")


def ask(url: str, query: str) -> Any:
    request = urllib.request.Request(
        f"{url}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["data"]


@pytest.fixture
def webserver(corpus: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a webserver that shows the corpus, with an empty history."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name: value for name, value in os.environ.items() if not name.startswith("DIVORDER_")}
    process = subprocess.Popen(
        [
            BINARIES / "dagster-webserver",
            "-m",
            "dagster_divorder.definitions",
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
        ],
        env={
            **own,
            "DAGSTER_HOME": str(tmp_path),
            "DIVORDER_CONFIG": str(corpus),
            "DAGSTER_DISABLE_TELEMETRY": "1",
        },
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None
        try:
            return bool(ask(url, "{ assetNodes { assetKey { path } } }")["assetNodes"])
        except (urllib.error.URLError, ConnectionError):
            return False

    try:
        until(answers, READY_SECONDS, "answer from dagster-webserver")
        yield url
    finally:
        process.terminate()
        process.wait()


NODES = """{ assetNodes { assetKey { path } staleStatus
    assetMaterializations(limit: 1) { tags { key value } metadataEntries { label __typename
        ... on IntMetadataEntry { intValue } ... on TextMetadataEntry { text } } }
    assetChecksOrError { ... on AssetChecks { checks { name
        executionForLatestMaterialization { status evaluation { metadataEntries { label } } } } } } } }"""


def test_a_webserver_shows_what_was_reported_to_it(
    webserver: str, corpus: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It wins over an instance.
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere")
    reported = run("run", "--report-to", f"{webserver}/")
    assert reported["error"] is None and set(reported["assets"]) == needed(corpus)
    nodes = {"/".join(node["assetKey"]["path"]): node for node in ask(webserver, NODES)["assetNodes"]}
    assert {name for name in needed(corpus) if nodes[name]["staleStatus"] != "FRESH"} == set()
    checks = [check for name in needed(corpus) for check in nodes[name]["assetChecksOrError"]["checks"]]
    assert len(checks) == reported["checks"]
    for check in checks:
        execution = check["executionForLatestMaterialization"]
        assert execution["status"] == "SUCCEEDED", check["name"]
        assert "result" in {entry["label"] for entry in execution["evaluation"]["metadataEntries"]}
    (event,) = nodes["raw_docs"]["assetMaterializations"]
    by_name = {entry["label"]: entry for entry in event["metadataEntries"]}
    assert by_name["documents"]["intValue"] == 120
    assert by_name["stored_files"]["text"].startswith("| what | path |")
    tags = {tag["key"]: tag["value"] for tag in event["tags"]}
    assert len(tags["dagster/data_version"]) == 32
    # A second report changes nothing.
    run("run", "--report-to", webserver)
    assert all(
        node["staleStatus"] == "FRESH"
        for node in ask(webserver, NODES)["assetNodes"]
        if node["assetKey"]["path"][-1] in needed(corpus)
    )


def test_a_webserver_gets_plain_values() -> None:
    metadata = {
        "tokens": 5,
        "folder": dg.MetadataValue.path("/data"),
        "narrow": table([{"a": 1}]),
        "wide": table([{"a": "x" * 50}]),
        "picture": dg.MetadataValue.md("![map](data:image/png;base64,AAAA)"),
    }
    wide = f"| a |\n| --- |\n| {'x' * 50} |"
    assert _plain(metadata) == {"tokens": 5, "folder": "/data", "narrow": [{"a": 1}], "wide": wide}


class Answers(http.server.BaseHTTPRequestHandler):
    """A server that is not Dagster's, by the first part of the path; it keeps the headers of the last request."""

    headers_seen: Mapping[str, str] = {}

    def do_POST(self) -> None:
        Answers.headers_seen = dict(self.headers)
        self.rfile.read(int(self.headers["Content-Length"]))
        status, body = {
            "page": (200, b"<html>"),
            "refuses": (401, b'{"error": "Not authorized to report runless asset events."}'),
            "none": (404, b"nothing here"),
            "dagster": (200, b"{}"),
        }[self.path.split("/")[1]]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def other_server() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("http://{server}/page", "its answer is not one of"),
        (
            "http://{server}/refuses",
            "it answered 401 Unauthorized (Not authorized to report runless asset events.)",
        ),
        ("http://{server}/none", "it answered 404 Not Found; expected Dagster's webserver"),
        ("http://127.0.0.1:1", "no answer ("),
        ("http://127.0.0.1:port", ""),
    ],
)
def test_a_webserver_that_takes_no_report_stops_no_run(
    to: str, why: str, other_server: str, run: Run
) -> None:
    url = to.format(server=other_server)
    reported = run("run", "--report-to", url)
    assert why in reported["error"] and reported["assets"] == []
    assert f"the report to Dagster at {url} is incomplete: {reported['error']}" in reported["said"]
    assert "Traceback" not in reported["said"]


def test_a_password_is_sent_and_not_shown(other_server: str, run: Run) -> None:
    reported = run("run", "--report-to", f"http://me:s%40cret@{other_server}/dagster")
    assert reported["error"] is None and len(reported["assets"]) == 10
    sent = Answers.headers_seen["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent) == b"me:s@cret"
    assert "cret" not in str(reported)


@pytest.mark.parametrize(
    ("host", "sent"),
    [("my-org.dagster.plus", True), ("dagster.plus.example.com", False), ("localhost", False)],
)
def test_a_token_goes_to_dagster_plus_alone(
    host: str, sent: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[urllib.request.Request] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> Any:
        requests.append(request)
        return io.BytesIO(b"{}")

    monkeypatch.setenv("DAGSTER_CLOUD_API_TOKEN", "secret")
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert run("run", "--report-to", f"https://{host}/prod")["error"] is None
    assert {request.full_url for request in requests} == {
        f"https://{host}/prod/report_asset_{event}/" for event in ("materialization", "check")
    }
    assert {request.get_header("Dagster-cloud-api-token") for request in requests} == {
        "secret" if sent else None
    }


@pytest.mark.parametrize("kind", ["missing", "relative", "a file", "settings that are none", "other storage"])
def test_a_home_that_takes_no_report_stops_no_run(
    kind: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dagster.yaml"
    file.write_text(
        "storage: [" if kind == "settings that are none" else "storage: {sqlite: {base_dir: /dev/null/x}}"
    )
    home = {"missing": tmp_path / "none", "relative": "here", "a file": file}.get(kind, tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    reported = run("run")
    assert reported["error"] and reported["assets"] == [] and reported["to"] == str(home)
    if kind in ("missing", "relative", "a file"):
        assert f"DAGSTER_HOME is '{home}'; expected the absolute path of a folder" in reported["said"]
    assert "Traceback" not in reported["said"] and reported["said"].count("is incomplete: ") == 1


def test_options_that_lead_nowhere_are_refused_before_the_run(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("DIVORDER_CONFIG", str(corpus))
    assert main(["run", "--key-prefix", "news"]) == 1
    assert "nothing is reported to Dagster: set DAGSTER_HOME or give --report-to" in capsys.readouterr().err
    assert main(["run", "--key-prefix", "new s", "--report-to", "http://localhost"]) == 1
    assert "key_prefix has the part 'new s'" in capsys.readouterr().err
    for url in ("localhost:3000", "/home/dagster", "http://", "http://["):
        with pytest.raises(SystemExit):
            main(["run", "--report-to", url])
        assert "is not a webserver's address" in capsys.readouterr().err


def test_a_check_that_fails_is_named_and_fails_nothing(
    home: Path, corpus: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIVORDER_ORDER__STRATEGY", "random")
    monkeypatch.setenv("DIVORDER_SEQUENCE__STRATEGY", "random")
    reported = run("run", "diversity_metrics")
    assert reported["failed"] == ["order_beats_shuffling"] and reported["error"] is None
    assert "failed: order_beats_shuffling" in reported["said"]
    key = dg.AssetCheckKey(dg.AssetKey("diversity_metrics"), "order_beats_shuffling")
    with dg.DagsterInstance.get() as instance:
        record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    evaluation = record.event.dagster_event.event_specific_data
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "What to do:" in evaluation.description
