"""litdata: Lightning's chunks, read by `litdata.StreamingDataset`.

A sample is a dict of tensors (L,): "input_ids", uint16 (int32 if an id does not fit, since litdata has no uint32);
"attention_mask", uint8, if any row is padded; "loss_mask", uint8, if any token is not trained on. litdata's writer
gives the same bytes. In `chunk-TAG-0.bin`, TAG is 8 hex digits of the export's key as a decimal number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.format import Format, Options, fits_uint16
from dagster_divorder.write.exports.rows import Rows
from dagster_divorder.write.exports.samples import mask_columns, stage_samples

CODES = {"uint8": 11, "int32": 16, "uint16": 20}
"""litdata's numbers for torch dtypes."""


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    dtype = np.dtype("<u2" if fits_uint16(rows) else "<i4")
    columns = {"input_ids": dtype, **mask_columns(rows)}
    sizes = [column.itemsize * rows.length for column in columns.values()]
    lead = np.array(sizes, "<u4").tobytes()
    # litdata's own names have the writer's rank in place of the tag.
    chunk = f"chunk-{int(options.tag, 16)}-{{}}.bin"
    files = stage_samples(rows, folder, options, chunk.format, columns, lead=lead)
    chunks = [
        {"chunk_bytes": size, "chunk_size": samples, "dim": None, "filename": chunk.format(number)}
        for number, (samples, size) in enumerate(files)
    ]
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    tree = {
        "type": "builtins.dict",
        "context": json.dumps(list(columns)),
        "children_spec": [leaf] * len(columns),
    }
    config = {
        "chunk_bytes": None,
        "chunk_size": files[0][0],
        "compression": None,
        "compression_batch_size": None,
        "compression_level": None,
        "data_format": [f"no_header_tensor:{CODES[column.name]}" for column in columns.values()],
        "data_spec": json.dumps([1, tree]),
        "encryption": None,
        "ipc_compression": None,
        "item_loader": "PyTreeLoader",
        "types": dict.fromkeys(columns, "tensor"),
    }
    # litdata stores a time in `updated_at`. When the value changes, it downloads an export from a bucket again.
    hashes = [folder.entries[chunk.format(number)]["sha256"] for number in range(len(files))]
    content = hashlib.sha256("".join(hashes).encode()).hexdigest()
    index = {"chunks": chunks, "config": config, "updated_at": content}
    data = json.dumps(index, sort_keys=True).encode()
    folder.stage("index.json", lambda file: file.write(data))
    return {"dtype": dtype.name, "rows_of_files": [samples for samples, _ in files]}


LITDATA = Format(
    name="litdata",
    write=_write,
    names=r"chunk-.*\.bin|index\.json",
    contiguous_ranks=True,
    masks=True,
)
