"""olmo: token files for OLMo-core's `NumpyFSLDataset`.

    train-TAG-00000-of-00003.npy      ids, L a row, uint16 (uint32 if an id does not fit); no header despite the name
    train-TAG-00000-of-00003.csv.gz   a line per run of tokens: first token in the file, end, record, (empty), first
                                      token in the record. `record` is the position among the accepted records.
    train-TAG-00000-of-00003.mask     only with padding or a loss mask: a byte an id, 1 for a token that is trained on,
                                      0 for other tokens and padding (`label_mask_paths`)
    global_indices_dataset_size{R}_epoch{e}_seed0_v1.npy   uint32, no header: the R rows of the loader's epoch e
    train.TAG.doc_lengths.npy         for `dagster_divorder.torch`: int32, the tokens of each run
    train.TAG.doc_rows.npy, train.TAG.epochs.npy   for `dagster_divorder.torch`: see raw.py

TAG is 8 hex digits of the export's key. The loader drops an epoch's last batch if it is not full. So its epochs here
end after a whole batch: it reads the plan's epochs one after another, and each epoch begins with the sequences that the
last epoch dropped. A data loader with `shuffle=False` reads the first epoch every time. With `shuffle=True` it looks in
its `work_dir` for the file of global indices whose name has R, e and its `seed`. Copy the files there, with the
loader's seed in place of 0. The names do not identify the export, so never use a `work_dir` for two exports.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
import pyarrow as pa

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.file_rows import BLOCK_BYTES, FileRows, IdBlock, WriteRows, trained_rows
from dagster_divorder.write.exports.format import Format, Options
from dagster_divorder.write.exports.raw import stage_array, stage_index, stage_raw, stage_trained
from dagster_divorder.write.exports.rows import Rows

LINES = 1 << 16
"""Lines per write to a table of documents."""


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    beside: dict[str, WriteRows] = {".csv.gz": _documents}
    if rows.padded or rows.trained:
        beside[".mask"] = _mask
    dtype, files = stage_raw(rows, folder, options, ".npy", rows.stored.padding, beside)
    for epoch, order in enumerate(_loader_epochs(rows.epochs, options.batch), 1):
        name = f"global_indices_dataset_size{len(rows)}_epoch{epoch}_seed0_v1.npy"
        folder.stage(name, lambda file, order=order: file.write(order.astype("<u4").data))  # type: ignore[misc]
    stage_index(rows, folder, options)
    stage_trained(rows, folder, options)
    stage_array(folder, options, "doc_lengths", rows.run_tokens.astype(np.int32))
    return {"dtype": dtype.name, "rows_of_files": [end - first for first, end in files.values()]}


def _loader_epochs(epochs: np.ndarray, batch: int) -> Iterator[np.ndarray]:
    """The rows of each loader epoch, int64 (R,): whole batches from the concatenated plan epochs, int64 (E, R)."""
    stream, rows = epochs.reshape(-1), epochs.shape[1]
    if rows < batch:
        # No batch is full, so no loader reads the export.
        yield from epochs
        return
    for first in range(0, len(stream) // batch * batch, rows // batch * batch):
        # Rows after the plan's end are never read.
        yield np.resize(np.append(stream[first : first + rows], stream[:rows]), rows)


def _documents(file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes]) -> None:
    """Write the runs as lines of comma-separated text."""
    from pyarrow.csv import CSVWriter, WriteOptions

    schema = pa.schema([(name, pa.int64()) for name in ("start", "end", "id", "src", "loc")])
    headless = WriteOptions(include_header=False)
    row = np.arange(len(file_rows)).repeat(np.diff(file_rows.indptr))
    # Padding lies between the last run of a row and the first of the next.
    ends = np.concatenate([[0], np.cumsum(file_rows.run_tokens)])
    skipped = (np.concatenate([[0], np.cumsum(file_rows.length - file_rows.tokens)]))[row]
    # The gzip header has no name and no time, so the same rows give the same bytes.
    with (
        gzip.GzipFile("", "wb", 1, file, mtime=0) as packed,
        CSVWriter(packed, schema, write_options=headless) as writer,
    ):
        for first in range(0, len(row), LINES):
            runs = slice(first, first + LINES)
            starts = ends[:-1][runs] + skipped[runs]
            columns = [
                pa.array(starts),
                pa.array(starts + file_rows.run_tokens[runs]),
                pa.array(file_rows.record[runs]),
                pa.nulls(len(starts), pa.int64()),
                pa.array(file_rows.start[runs]),
            ]
            writer.write_batch(pa.record_batch(columns, schema))


def _mask(file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes]) -> None:
    """Write a byte an id: 1 for a token that is trained on, 0 for other tokens and padding."""
    step = max(1, BLOCK_BYTES // file_rows.length)
    for begin in range(0, len(file_rows), step):
        tokens = file_rows.tokens[begin : begin + step]
        trained = trained_rows(file_rows.trained, begin, begin + len(tokens), file_rows.length)
        mask = np.arange(file_rows.length) < tokens[:, None] if trained is None else trained
        file.write(mask.data)


OLMO = Format(
    name="olmo",
    write=_write,
    names=r"train.*|global_indices_.*\.npy",
    epochs="index",
    masks=True,
)
