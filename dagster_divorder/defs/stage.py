"""What every asset shares: run its stage with progress in the run's log, and report the receipt as metadata."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.defs.jobs import STORE, store_names
from dagster_divorder.engine.progress import Log
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline import run_stage
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_receipt

PICTURE_BYTES = 300_000
"""A picture shown inside the page is made smaller until it takes no more: Dagster keeps it with every run's events."""

PICTURE_WIDTH = 1080
"""Pixels that Dagster shows side by side on a common screen; it cuts off what is beyond."""

# Shown by each asset in its own form, or of no use to a reader.
_NOT_SHOWN = {
    "cluster_sizes",
    "summary",
    "columns_folder",
    "checkpoint",
    "fields",
    "corpus",
    "files",
    "folder",
    "source",
    "tokenized_as",
    "seconds_per_new_document",
}


def materialize(context: dg.AssetExecutionContext, settings: Settings) -> Receipt:
    """Run the asset's stage; say whether its result has changed, and where it lies."""
    stage = context.asset_key.path[-1]
    store = LocalStore(settings.store.path)
    before = _version(store, stage)
    tag(context, store)
    receipt = run_stage(stage, settings, Log(context.log.info))
    report = receipt.report
    changed = receipt.version != before
    context.log.info(
        f"{stage}: {report['documents']:,} documents, {report['new_documents']:,} new, "
        f"{report['reused_documents']:,} reused, {report['seconds']:.2f} s"
        f"{'' if changed else '; the same result as before'}"
    )
    more: dict[str, Any] = {"changed": changed, "stored_files": table(_stored(store, receipt))}
    if report["new_documents"] and report["seconds"]:
        more["new_documents_per_second"] = _readable(report["new_documents"] / report["seconds"])
    context.add_asset_metadata(more)
    return receipt


def tag(context: dg.AssetExecutionContext, store: LocalStore) -> None:
    """Say of a run, whoever started it, which store it writes to: by that the sensor tells its own."""
    context.instance.add_run_tags(context.run.run_id, {STORE: store_names(store)[0]})


def result(receipt: Receipt, extra: Mapping[str, Any] | None = None) -> dg.MaterializeResult[Any]:
    """The receipt as Dagster shows it: figures as metadata, the content's hash as data version."""
    shown = {
        name: _figure(value)
        for name, value in receipt.report.items()
        if name not in _NOT_SHOWN and value not in (None, "")
    }
    return dg.MaterializeResult(
        metadata={**shown, **(extra or {})}, data_version=dg.DataVersion(receipt.version)
    )


def table(rows: list[dict[str, Any]]) -> dg.MetadataValue[Any]:
    """Rows as a Dagster table; numbers are rounded to what a person reads. Without rows, a word."""
    if not rows:
        return dg.MetadataValue.text("none")
    records = [{name: _readable(value) for name, value in row.items()} for row in rows]
    return dg.MetadataValue.table([dg.TableRecord(record) for record in records])


def picture(file: Path, what: str) -> dg.MarkdownMetadataValue:
    """A PNG file inside the page, with `what` it shows as its text; smaller than the file where that is too large."""
    data = base64.b64encode(_within_bounds(file.read_bytes())).decode()
    return dg.MetadataValue.md(f"![{what}](data:image/png;base64,{data})")


def _within_bounds(png: bytes) -> bytes:
    """A PNG of at most PICTURE_BYTES and PICTURE_WIDTH: of less width and height, and with fewer colours."""
    import io

    from PIL import Image

    original = Image.open(io.BytesIO(png))
    share = min(1.0, PICTURE_WIDTH / original.width)
    if share == 1.0 and len(png) <= PICTURE_BYTES:
        return png
    while True:
        size = (max(1, round(original.width * share)), max(1, round(original.height * share)))
        file = io.BytesIO()
        smaller = original.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        smaller.quantize(128).save(file, "PNG", optimize=True)
        if len(file.getvalue()) <= PICTURE_BYTES:
            return file.getvalue()
        share *= 0.8


def _version(store: LocalStore, stage: str) -> str | None:
    try:
        receipt = load_receipt(store, stage)
    except DivOrderError:
        return None
    return receipt.version if receipt else None


def _stored(store: LocalStore, receipt: Receipt) -> list[dict[str, Any]]:
    """Where the result lies: its named files, or the folder of its files, one a fragment."""
    named = receipt.files or {"a file a fragment": f"stages/{receipt.stage}/{receipt.key}"}
    return [{"what": name, "path": str(store.path(file))} for name, file in named.items()]


def _figure(value: Any) -> Any:
    """A figure as people read it; several by name as one line."""
    if isinstance(value, dict) and value and not any(isinstance(v, (dict, list)) for v in value.values()):
        return ", ".join(f"{name} {_said(_readable(v))}" for name, v in value.items() if v is not None)
    return _readable(value)


def _said(value: Any) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _readable(value: Any) -> Any:
    if value is None:
        return "-"
    return float(f"{value:.4g}") if isinstance(value, float) else value
