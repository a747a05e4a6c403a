"""olmo and ds, formats of raw ids, little-endian, L a row, uint16 (uint32 if an id does not fit).

olmo: token files for OLMo-core's `NumpyFSLDataset`.

    train-TAG-00000-of-00003.npy      ids; no header despite the name
    train-TAG-00000-of-00003.mask     only with padding or a loss mask: a byte an id, 1 for a token that is trained on,
                                      0 for other tokens and padding (`label_mask_paths`)
    global_indices_dataset_size{R}_epoch{e}_seed0_v1.npy   uint32, no header: the R rows of the loader's epoch e
    train.TAG.epochs.npy   see `stage_epochs`

TAG is 8 hex digits of the export's key. The loader drops an epoch's last batch if it is not full. So its epochs here
end after a whole batch: it reads the plan's epochs one after another, and each epoch begins with the sequences that the
last epoch dropped. A data loader with `shuffle=False` reads the first epoch every time. With `shuffle=True` it looks in
its `work_dir` for the file of global indices whose name has R, e and its `seed`. Copy the files there, with the
loader's seed in place of 0. The names do not identify the export, so never use a `work_dir` for two exports.

ds: datatrove's token files, read by `datatrove.utils.dataset.DatatroveFolderDataset`.

    train-TAG-00000-of-00003.ds         ids
    train-TAG-00000-of-00003.ds.index   uint64, the end of each document in the file

A reader takes windows of its sequence length plus one, so set it to L - 1. The format cannot mark padding: end-of-text
tokens fill the one short row of `concat`, and a trainer learns them.

Letters: R rows, Q runs of tokens in them, E epochs, L tokens a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, Any

import numpy as np

from dagster_divorder.errors import InputError
from dagster_divorder.store.manifests import NEIGHBOUR, TRAINED
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.rows import (
    BLOCK_BYTES,
    FileRows,
    Format,
    IdBlock,
    Options,
    Rows,
    fits_uint16,
    trained_rows,
)


def row_files(rows: Rows, options: Options, dtype: np.dtype, suffix: str) -> dict[str, tuple[int, int]]:
    """The rows (first, end) of each file of ids, by file name.

    All names have the same length, so they sort as text in row order.
    """
    shards = rows.shards(dtype.itemsize * rows.length, options.shard_bytes)
    width = max(5, len(str(len(shards))))
    return {
        f"train-{options.tag}-{number:0{width}d}-of-{len(shards):0{width}d}{suffix}": span
        for number, span in enumerate(shards)
    }


def stage_raw(
    rows: Rows, folder: OutputFolder, options: Options, suffix: str, padding: int
) -> tuple[np.dtype, dict[str, tuple[int, int]]]:
    """Stage files of ids, uint16 (uint32 if an id does not fit); returns their dtype and `row_files`. padding: the id
    that fills up short rows."""
    dtype = np.dtype("<u2" if fits_uint16(rows) else "<u4")
    files, write = row_files(rows, options, dtype, suffix), partial(write_rows, dtype=dtype, padding=padding)
    rows.stage(folder, files, write)
    return dtype, files


def write_rows(
    file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes], *, dtype: np.dtype, padding: int
) -> None:
    """Write the ids, L a row."""
    for block in blocks:
        file.write(block.padded(file_rows.length, padding, dtype).data)


def stage_epochs(rows: Rows, folder: OutputFolder, options: Options) -> None:
    """With several epochs stage `train.TAG.epochs.npy`, int64 (E, R): the rows of each epoch."""
    if len(rows.epochs) > 1:
        stage_array(folder, options, "epochs", rows.epochs)


def stage_trained(rows: Rows, folder: OutputFolder, options: Options) -> None:
    """Stage `_/train.TAG.trained.npy` (store/manifests.py) if any token is not trained on."""
    if rows.trained:
        stretches = np.stack([rows.trained.first, rows.trained.last])
        folder.stage(f"{NEIGHBOUR}train.{options.tag}.{TRAINED}", lambda file: np.save(file, stretches))


def stage_array(folder: OutputFolder, options: Options, name: str, array: np.ndarray) -> None:
    """Stage an array as NumPy saves it."""
    folder.stage(f"train.{options.tag}.{name}.npy", lambda file: np.save(file, array))


def _write_olmo(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    dtype, files = stage_raw(rows, folder, options, ".npy", rows.stored.padding)
    for name, span in files.items():
        if rows.padded or rows.trained:
            folder.stage(f"{name.removesuffix('.npy')}.mask", partial(_write_mask, rows.of_file(*span)))
    for epoch, order in enumerate(_loader_epochs(rows.epochs, options.batch), 1):
        name = f"global_indices_dataset_size{len(rows)}_epoch{epoch}_seed0_v1.npy"
        folder.stage(name, lambda file, order=order: file.write(order.astype("<u4").data))  # type: ignore[misc]
    stage_epochs(rows, folder, options)
    stage_trained(rows, folder, options)
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


def _write_mask(file_rows: FileRows, file: IO[bytes]) -> None:
    """Write a byte an id: 1 for a token that is trained on, 0 for other tokens and padding."""
    step = max(1, BLOCK_BYTES // file_rows.length)
    for begin in range(0, len(file_rows), step):
        tokens = file_rows.tokens[begin : begin + step]
        trained = trained_rows(file_rows.trained, begin, begin + len(tokens), file_rows.length)
        mask = np.arange(file_rows.length) < tokens[:, None] if trained is None else trained
        file.write(mask.data)


OLMO = Format(
    name="olmo",
    write=_write_olmo,
    names=r"train.*|global_indices_.*\.npy",
    epochs="index",
    masks=True,
)


def _write_ds(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    filler = rows.stored.special.get("eos", rows.stored.padding)
    dtype, files = stage_raw(rows, folder, options, ".ds", filler)
    lengths, indptr = rows.runs.length.copy(), rows.runs.indptr
    lengths[indptr[1:] - 1] += rows.length - rows.tokens
    for name, (first, end) in files.items():
        ends = np.cumsum(lengths[indptr[first] : indptr[end]]).astype("<u8")
        folder.stage(f"{name}.index", lambda file, ends=ends: file.write(ends.data))  # type: ignore[misc]
    return {
        "dtype": dtype.name,
        "rows_of_files": [end - first for first, end in files.values()],
        "model_sequence_length": rows.length - 1,
        "filled_up_with": filler if rows.padded else None,
    }


def _check_ds(rows: Rows) -> None:
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
    write=_write_ds,
    check=_check_ds,
)
