"""Rows of an export with given ids, without a store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.exports.format import Format, Options
from dagster_divorder.exports.rows import Rows, Tokens
from dagster_divorder.store.curated import EXPORT_MANIFEST, OutputFolder
from dagster_divorder.store.local import LocalStore


def made_rows(ids: np.ndarray, tokens: np.ndarray | None = None, *, vocabulary: int = 1 << 16) -> Rows:
    """ids: (R, L), of uint16 or uint32; tokens: of each row, all L unless given, the rest of which is padding."""
    count, length = ids.shape
    held = np.full(count, length) if tokens is None else tokens
    document = np.arange(count)
    plan = PackedSequences(document, np.zeros(count, np.int64), held, np.arange(count + 1), length)
    stored = Tokens(
        files=cast(Any, None),
        view=cast(Any, SimpleNamespace(document_row=document)),
        dtype=ids.dtype,
        special={},
        end_of_text=0,
        padding=0,
        vocabulary=vocabulary,
        scratch=Path(),
    )
    vars(stored).update(lengths=held, all_ids=ids[np.arange(length) < held[:, None]])
    return Rows(plan, document, document[None], stored)


def write(kind: Format, path: Path, rows: Rows, shard_bytes: int = 1 << 20) -> dict[str, Any]:
    """Write an export to a folder; what its manifest says."""
    with OutputFolder(LocalStore(path.parent / "store").open(), path, manifest=EXPORT_MANIFEST) as folder:
        about = kind.write(rows, folder, Options(shard_bytes=shard_bytes))
        return folder.commit({**about, "key": "00"})
