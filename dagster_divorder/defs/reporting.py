"""Reports a command-line run to Dagster: materialisations and check results, as if Dagster had run the assets.

An instance gets the same events as from a run of Dagster, with code versions and input versions, so Dagster knows which
assets are fresh. A webserver takes data versions, but no code versions and no input versions: it judges freshness by
time, so after a change of settings its assets look fresh until Dagster itself runs them.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import dagster as dg
import orjson
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    extract_data_provenance_from_entry,
    extract_data_version_from_entry,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)

from dagster_divorder.defs import HOME
from dagster_divorder.defs.checks import check_results
from dagster_divorder.defs.jobs import BEGUN
from dagster_divorder.defs.metadata import asset_metadata
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import without_secrets
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.state import Receipt

TOKEN = "DAGSTER_CLOUD_API_TOKEN"
"""Environment variable with a user's token for Dagster+; sent only there."""

TIMEOUT = 30.0
"""Seconds to wait for a webserver's answer."""

EXPECTED = "expected Dagster's webserver, such as http://localhost:3000, not one that is read-only"


@dataclass
class Report:
    """What was reported. to: folder or URL. assets: keys, "/" between parts. checks: number of check results. failed:
    the failed checks. error: why the report is incomplete; None if it is complete."""

    to: str
    assets: list[str] = field(default_factory=list)
    checks: int = 0
    failed: list[str] = field(default_factory=list)
    error: str | None = None


def report_run(
    graph: Graph,
    settings: Settings,
    stages: Iterable[str],
    *,
    begun: float,
    key_prefix: Sequence[str],
    url: str | None,
) -> Report:
    """Report the assets of stages that have just run, with their check results, to the webserver at `url`, by default
    to the instance of DAGSTER_HOME. Never raises: the store is complete without a report. begun: start of the run, in
    seconds since 1970."""
    report = Report(without_secrets(url) if url else os.environ[HOME])
    try:
        pipeline = Pipeline(graph, settings, key_prefix=tuple(key_prefix))
        with _Webserver(url) if url else _home_instance(begun) as receiver:
            _report(pipeline, set(stages), receiver, report)
    except Exception as error:  # Dagster, its storage and the network may raise any error.
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        report.error = without_secrets(said)
    return report


def _report(pipeline: Pipeline, stages: set[str], receiver: Receiver, report: Report) -> None:
    graph, settings = pipeline.graph, pipeline.settings
    run = Run(settings, store_of(settings.store).open(create=False), graph, Silent())
    for asset, reads in graph.asset_upstream(settings).items():
        if asset in stages:
            key = pipeline.key(asset)
            receiver.materialised(pipeline, run, run.receipt(asset), [*map(pipeline.key, reads)])
            report.assets.append(key.to_user_string())
            for result in check_results(pipeline, graph[asset], settings):
                receiver.checked(key, result)
                report.checks += 1
                if not result.passed:
                    report.failed.append(str(result.check_name))


class Receiver(Protocol):
    """Receives events of assets."""

    def materialised(
        self, pipeline: Pipeline, run: Run, receipt: Receipt, reads: Sequence[dg.AssetKey]
    ) -> None: ...

    def checked(self, key: dg.AssetKey, result: dg.AssetCheckResult) -> None: ...


@contextlib.contextmanager
def _home_instance(begun: float) -> Iterator[_Instance]:
    home = Path(os.environ[HOME]).expanduser()
    if not home.is_absolute() or not home.is_dir():
        raise FileNotFoundError(f"{HOME} is {os.environ[HOME]!r}; expected the absolute path of a folder")
    # Relative folders in dagster.yaml start at the working directory of Dagster, which is the home.
    with contextlib.chdir(home), dg.DagsterInstance.get() as instance:
        yield _Instance(instance, begun)


@dataclass
class _Instance:
    """Reports events to an instance, with the tags that Dagster sets itself."""

    instance: dg.DagsterInstance
    begun: float

    def materialised(
        self, pipeline: Pipeline, run: Run, receipt: Receipt, reads: Sequence[dg.AssetKey]
    ) -> None:
        key = pipeline.key(receipt.stage)
        last = self.instance.get_latest_data_version_record(key)
        version, known = _version_and_inputs(last)
        tags = {
            CODE_VERSION_TAG: pipeline.code_version(receipt.stage),
            DATA_VERSION_TAG: receipt.version,
            DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
            BEGUN: f"{self.begun:.3f}",
        }
        # Only the definitions name upstream assets of others; Dagster's last run has recorded them.
        others = known - set(map(pipeline.key, pipeline.graph))
        for read in [*reads, *others]:
            record = self.instance.get_latest_data_version_record(read)
            read_version = _version_and_inputs(record)[0]
            tags[get_input_data_version_tag(read)] = read_version or DEFAULT_DATA_VERSION.value
            tags[get_input_event_pointer_tag(read)] = str(record.storage_id) if record else NULL_EVENT_POINTER
        metadata = asset_metadata(run, receipt, receipt.version != version)
        self.instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=metadata, tags=tags))

    def checked(self, key: dg.AssetKey, result: dg.AssetCheckResult) -> None:
        assert result.check_name
        self.instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=key,
                check_name=result.check_name,
                passed=bool(result.passed),
                metadata=result.metadata,
                severity=result.severity,
                description=result.description,
            )
        )


def _version_and_inputs(record: dg.EventLogRecord | None) -> tuple[str | None, set[dg.AssetKey]]:
    """The data version of a materialisation, and the assets that it read."""
    if record is None:
        return None, set()
    version = extract_data_version_from_entry(record.event_log_entry)
    provenance = extract_data_provenance_from_entry(record.event_log_entry)
    return version and version.value, set(provenance.input_data_versions) if provenance else set()


@dataclass
class _Webserver:
    """Reports events to a webserver through its API for external assets, which takes plain values."""

    url: str

    def __enter__(self) -> _Webserver:
        return self

    def __exit__(self, *_: object) -> None: ...

    def materialised(
        self, pipeline: Pipeline, run: Run, receipt: Receipt, reads: Sequence[dg.AssetKey]
    ) -> None:
        key = pipeline.key(receipt.stage)
        metadata = _plain(asset_metadata(run, receipt, None))
        self._post("report_asset_materialization", key, data_version=receipt.version, metadata=metadata)

    def checked(self, key: dg.AssetKey, result: dg.AssetCheckResult) -> None:
        self._post(
            "report_asset_check",
            key,
            check_name=result.check_name,
            passed=result.passed,
            severity=result.severity.value,
            metadata={"result": result.description, **_plain(result.metadata)},
        )

    def _post(self, event: str, key: dg.AssetKey, **body: Any) -> None:
        parts = urlsplit(self.url)
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        headers = {"Content-Type": "application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        if TOKEN in os.environ and (parts.hostname or "").endswith((".dagster.plus", ".dagster.cloud")):
            headers["Dagster-Cloud-Api-Token"] = os.environ[TOKEN]
        data = orjson.dumps({"asset_key": key.path, **body})
        request = urllib.request.Request(f"{address.rstrip('/')}/{event}/", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                answer = response.read()
        except urllib.error.HTTPError as error:
            raise ConnectionError(
                f"it answered {error.code} {error.reason}{_explained(error.read())}; {EXPECTED}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(
                f"no answer ({getattr(error, 'reason', error) or type(error).__name__}); {EXPECTED}"
            ) from None
        if answer.strip() != b"{}":
            raise ConnectionError(f"its answer is not one of Dagster's; {EXPECTED}")


def _explained(body: bytes) -> str:
    """The error in a webserver's answer, in brackets; "" if the answer is not Dagster's."""
    try:
        return f" ({orjson.loads(body)['error']})"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as JSON values. Narrow tables become lists, wide tables text; pictures are left out."""
    values: dict[str, Any] = {}
    for name, value in metadata.items():
        if isinstance(value, dg.TableMetadataValue):
            values[name] = [dict(record.data) for record in value.records]
        elif isinstance(value, dg.MarkdownMetadataValue):
            if "](data:image/" not in str(value.value):
                values[name] = str(value.value).strip()
        else:
            values[name] = value.value if isinstance(value, dg.MetadataValue) else value
    return values
