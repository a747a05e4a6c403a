"""Reads the table of an export's rows (`write.exports.row_table`).

Letters: R rows of the files, J values of a trait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import orjson


@dataclass(frozen=True, eq=False)
class TraitOfRows:
    """One trait: names of its J values; row r has the values values[offsets[r]:offsets[r + 1]], int32, and `tokens` of
    each, int32. offsets: int32 (R + 1,)."""

    names: tuple[str, ...]
    offsets: np.ndarray
    values: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True, eq=False)
class RowTable:
    """What each row of an export holds: tokens without padding; counted, those that shares count; documents, all int32
    (R,); attention, the squared lengths of its documents, float64 (R,); its traits by name."""

    tokens: np.ndarray
    counted: np.ndarray
    documents: np.ndarray
    attention: np.ndarray
    traits: dict[str, TraitOfRows]

    @classmethod
    def read(cls, data: np.ndarray) -> RowTable:
        """The table in the bytes of its file, uint8."""
        import pyarrow as pa

        # Arrow's threads do not survive the fork of a loader's worker.
        options = pa.ipc.IpcReadOptions(use_threads=False)
        table = pa.ipc.open_file(pa.py_buffer(data), options=options).read_all()
        names = orjson.loads(table.schema.metadata[b"traits"])
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        numbers = {name: columns[name].to_numpy() for name in ("tokens", "counted", "documents", "attention")}

        def trait(name: str) -> TraitOfRows:
            values, tokens = columns[f"{name}.values"], columns[f"{name}.tokens"]
            arrays = (values.offsets, values.values, tokens.values)
            return TraitOfRows(tuple(names[name]), *(array.to_numpy() for array in arrays))

        return cls(**numbers, traits={name: trait(name) for name in names})
