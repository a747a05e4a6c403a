"""What every asset shares: run its stage with progress in the run's log, and report the receipt as metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_divorder.engine.progress import Log
from dagster_divorder.pipeline import run_stage
from dagster_divorder.settings import Settings
from dagster_divorder.store.receipts import Receipt

# Shown by each asset in its own form, or of no use to a reader.
_NOT_SHOWN = {"cluster_sizes", "summary", "columns_folder", "fields", "corpus", "files", "tokenized_as"}


def materialize(context: dg.AssetExecutionContext, settings: Settings) -> Receipt:
    """Run the asset's stage."""
    stage = context.asset_key.path[-1]
    receipt = run_stage(stage, settings, Log(context.log.info))
    report = receipt.report
    context.log.info(
        f"{stage}: {report['documents']:,} documents, {report['new_documents']:,} new, "
        f"{report['reused_documents']:,} reused, {report['seconds']:.2f} s"
    )
    return receipt


def result(receipt: Receipt, extra: Mapping[str, Any] | None = None) -> dg.MaterializeResult[Any]:
    """The receipt as Dagster shows it: figures as metadata, the content's hash as data version."""
    shown = {
        name: value for name, value in receipt.report.items() if name not in _NOT_SHOWN and value is not None
    }
    return dg.MaterializeResult(
        metadata={**shown, **(extra or {})}, data_version=dg.DataVersion(receipt.version)
    )


def table(rows: list[dict[str, Any]]) -> dg.TableMetadataValue:
    """Rows as a Dagster table; numbers are rounded to what a person reads."""
    records = [{name: _readable(value) for name, value in row.items()} for row in rows]
    return dg.MetadataValue.table([dg.TableRecord(record) for record in records])


def _readable(value: Any) -> Any:
    if value is None:
        return "-"
    return float(f"{value:.4g}") if isinstance(value, float) else value
