"""mds: MosaicML's shards, read by `streaming.StreamingDataset` and llm-foundry.

Columns have a fixed size: `tokens`, `ndarray:uint16:L` (`uint32` if an id does not fit); `attention_mask`,
`ndarray:uint8:L`, if any row is padded; `loss_mask`, `ndarray:uint8:L`, if any token is not trained on. The files equal
those from `streaming.MDSWriter` byte for byte. In the names `shard.TAG.00000.mds`, TAG is 8 hex digits of the key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.format import Format, Options, fits_uint16
from dagster_divorder.write.exports.rows import Rows
from dagster_divorder.write.exports.samples import mask_columns, stage_samples


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    dtype = np.dtype("<u2" if fits_uint16(rows) else "<u4")
    # Readers sort the columns by name.
    columns = {**mask_columns(rows), "tokens": dtype}
    config = {
        "column_encodings": [f"ndarray:{column.name}:{rows.length}" for column in columns.values()],
        "column_names": list(columns),
        "column_sizes": [column.itemsize * rows.length for column in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": options.shard_bytes,
        "version": 2,
    }
    head = json.dumps(config).encode()
    shard = f"shard.{options.tag}.{{:05d}}.mds"
    files = stage_samples(rows, folder, options, shard.format, columns, head=head)
    shards = [
        {
            **config,
            "raw_data": {"basename": shard.format(number), "bytes": size, "hashes": {}},
            "samples": samples,
            "zip_data": None,
        }
        for number, (samples, size) in enumerate(files)
    ]
    index = json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()
    folder.stage("index.json", lambda file: file.write(index))
    return {"dtype": dtype.name, "rows_of_files": [samples for samples, _ in files]}


MDS = Format(
    name="mds",
    write=_write,
    names=r"shard\..*\.mds|index\.json",
    masks=True,
)
