"""ds: datatrove's token files, read by `datatrove.utils.dataset.DatatroveFolderDataset`.

    train-TAG-00000-of-00003.ds         ids, L a row, uint16 (uint32 if an id does not fit)
    train-TAG-00000-of-00003.ds.index   uint64, the end of each document in the file

TAG is 8 hex digits of the export's key. A reader takes windows of its sequence length plus one, so set it to L - 1. The
format cannot mark padding: end-of-text tokens fill the one short row of `concat`, and a trainer learns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dagster_divorder.errors import InputError
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.format import Format, Options
from dagster_divorder.write.exports.raw import stage_raw
from dagster_divorder.write.exports.rows import Rows


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    filler = rows.stored.special.get("eos", rows.stored.padding)
    dtype, files = stage_raw(rows, folder, options, ".ds", filler)
    lengths = rows.run_tokens.copy()
    lengths[rows.indptr[1:] - 1] += rows.length - rows.tokens
    for name, (first, end) in files.items():
        ends = np.cumsum(lengths[rows.indptr[first] : rows.indptr[end]]).astype("<u8")
        folder.stage(f"{name}.index", lambda file, ends=ends: file.write(ends.data))  # type: ignore[misc]
    return {
        "dtype": dtype.name,
        "rows_of_files": [end - first for first, end in files.values()],
        "model_sequence_length": rows.length - 1,
        "filled_up_with": filler if rows.padded else None,
    }


def _check(rows: Rows) -> None:
    short = np.unique(rows.sequence[rows.tokens < rows.length])
    if len(short) > 1:
        raise InputError(
            f"{len(short):,} sequences hold fewer than {rows.length:,} tokens, and exports.formats names 'ds', which "
            'cannot mark padding; set packing.method = "concat", or use a format that can: olmo, parquet, mds, litdata'
        )
    if rows.length < 2:
        raise InputError(
            f"sequence.length is {rows.length}; the readers of 'ds' take one token fewer: set it to 2 or more"
        )


DS = Format(
    name="ds",
    write=_write,
    check=_check,
)
