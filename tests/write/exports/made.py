"""Rows of small made-up corpora, a folder that takes their files, and what any format of them has to hold."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from dagster_divorder.core.packing import Pieces, pack
from dagster_divorder.core.spans import Spans
from dagster_divorder.store.local import LocalFolder
from dagster_divorder.store.manifests import file_at
from dagster_divorder.store.view import Fragment, View
from dagster_divorder.write import permute as permute_module
from dagster_divorder.write.exports import rows as rows_module
from dagster_divorder.write.exports.rows import IdBlock, Rows, Tokens

TAG = "0a1b2c3d"
"""Of the names of files."""
Runs = list[tuple[int, int, list[int]]]
"""Of a row: record, first token in it, ids."""


@dataclass(frozen=True)
class Stored:
    """What `StageFiles` gives of token_counts, of documents in memory. masks: whether each token is trained on."""

    documents: list[np.ndarray]
    masks: list[np.ndarray] | None = None
    folder: str = "stages/token_counts/key"

    def listed(self) -> Stored:
        return self

    def column(self, fragments: Sequence[Fragment], name: str) -> np.ndarray:
        return np.array([len(ids) for ids in self.documents], np.int64)

    def mapped(self, fragments: Sequence[Fragment], name: str) -> Iterator[np.ndarray]:
        for fragment in fragments:
            first = int(fragment.name)
            yield np.concatenate(self.documents[first : first + fragment.rows])


@dataclass
class Folder:
    """What `OutputFolder` is to a format."""

    path: Path
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    extends: bool = False

    @property
    def here(self) -> LocalFolder:
        return LocalFolder(self.path)

    def stage(self, name: str, write: Callable[[io.BytesIO], object]) -> None:
        assert name not in self.entries, name
        file = io.BytesIO()
        write(file)
        data = file.getvalue()
        file_at(self.path, name).parent.mkdir(exist_ok=True)
        file_at(self.path, name).write_bytes(data)
        digests = {"sha256": sha256(data).hexdigest(), "head": sha256(data[:4096]).hexdigest()}
        self.entries[name] = {"bytes": len(data), **digests}

    def stage_each(
        self, engine: Sent, write: Callable[[Any, Any], object], items: Mapping[str, Any], **needs: Any
    ) -> None:
        for name, writing in zip(items, engine.each(partial(partial, write), items.values()), strict=True):
            self.stage(name, writing)


class Unwritten(Folder):
    """A folder whose files are not written."""

    def stage(self, name: str, write: Callable[[Any], object]) -> None:
        write(None)


class Sent:
    """An engine of two workers: what goes to them and comes back is pickled."""

    workers = 2

    def each(self, function: Callable[[Any], Any], items: Iterable[Any], **needs: Any) -> Iterator[Any]:
        for item in items:
            function, item = pickle.loads(pickle.dumps((function, item)))
            yield pickle.loads(pickle.dumps(function(item)))


def rows_of(
    lengths: Sequence[int],
    *,
    fragments: int = 1,
    records: Sequence[int] | None = None,
    length: int = 8,
    method: str = "concat",
    end_of_text: bool = True,
    epochs: int = 1,
    index: bool = True,
    vocabulary: int = 1000,
    seed: int = 0,
    masked: bool = False,
) -> Rows:
    """Rows of documents of these lengths in so many fragments. records: the document of each, by default one each.
    masked: some of their tokens are not trained on."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)
    documents = [random.integers(0, vocabulary, n).astype(dtype) for n in lengths]
    # Of their own numbers, so that the rest is that of a corpus without a mask.
    chance = np.random.default_rng([seed, 1])
    masks = [chance.random(n) < chance.choice([0.1, 0.5, 0.9]) for n in lengths] if masked else None
    cuts = np.linspace(0, len(documents), fragments + 1).astype(int)
    parts = tuple(Fragment(str(first), int(end - first)) for first, end in pairwise(cuts))
    row = np.arange(len(documents)) if records is None else np.array(records, np.int64)
    tokens = Tokens(
        files=Stored(documents, masks),  # type: ignore[arg-type]
        view=View("jsonl", parts),
        corpus=None,  # type: ignore[arg-type]
        records=row,
        dtype=dtype,
        special={"eos": 1, "pad": vocabulary - 1},
        end_of_text=1,
        padding=vocabulary - 1,
        vocabulary=vocabulary,
        engine=Sent,  # type: ignore[arg-type]
        trained=spans_of(masks) if masks else None,
    )
    whole = np.array([lengths[document] for document in row], np.int64) + end_of_text
    pieces = Pieces(np.arange(len(row)), np.zeros(len(row), np.int64), whole)
    plan = pack(pieces, method=method, sequence_length=length, seed=seed)
    order = np.array([random.permutation(len(plan)) for _ in range(epochs)])
    if index:
        place = np.argsort(order[0])
        return Rows(plan, order[0], place[order], tokens)
    return Rows(plan, order.reshape(-1), np.arange(order.size)[None], tokens)


def spans_of(masks: Sequence[np.ndarray]) -> Spans:
    """The stretches of the masks of documents that are laid end to end."""
    # A place more behind each document, so that no stretch goes on in the next.
    places = np.concatenate([np.append(mask, False) for mask in masks]).astype(np.int8)
    steps = np.diff(places, prepend=0, append=0)
    document = np.arange(len(masks)).repeat([len(mask) + 1 for mask in masks])
    first, last = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return Spans(first - document[first], last - document[first])


def masks_of(rows: Rows) -> list[list[bool]]:
    """Of every row, whether each of its tokens is trained on, found one by one."""
    stored, masks = rows.stored, []
    for runs in runs_of(rows):
        mask: list[bool] = []
        for record, start, ids in runs:
            document: list[bool] = stored.files.masks[int(stored.records[record])].tolist()  # type: ignore[attr-defined]
            # An end-of-text token is trained on where the last token of its document is.
            mask += [*document, bool(document) and document[-1]][start : start + len(ids)]
        masks.append(mask)
    return masks


def blocks_of(rows: Rows) -> list[IdBlock]:
    """All rows, as a format is given them."""
    read: list[IdBlock] = []
    rows.stage(
        Unwritten(Path("/tmp")),  # type: ignore[arg-type]
        {"": (0, len(rows))},
        lambda file_rows, blocks, file: read.extend(blocks),
    )
    return read


def runs_of(rows: Rows) -> list[Runs]:
    """The runs of every row, found one by one."""
    stored, plan, row_runs = rows.stored, rows.plan, []
    for sequence in rows.sequence.tolist():
        runs: Runs = []
        for run in range(plan.indptr[sequence], plan.indptr[sequence + 1]):
            record, start, length = (int(column[run]) for column in (plan.document, plan.start, plan.length))
            document = stored.files.documents[int(stored.records[record])].tolist()  # type: ignore[attr-defined]
            runs.append((record, start, [*document, stored.end_of_text][start : start + length]))
        row_runs.append(runs)
    return row_runs


@contextmanager
def drawn_memory(data: st.DataObject) -> Iterator[None]:
    """Rows are mapped, or pass through files and workers, in blocks of any size."""
    memory, block = data.draw(st.sampled_from([1, 64, 1 << 20])), data.draw(st.sampled_from([1, 64, 1 << 20]))
    with (
        mock.patch.multiple(rows_module, MAPPED_BYTES=memory, WORKERS_FROM_BYTES=0),
        mock.patch.multiple(permute_module, BUCKET_BYTES=memory, PIECE_BYTES=0),
        mock.patch.object(rows_module, "BLOCK_BYTES", block),
    ):
        yield


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    """Of `rows_of`, but for `index`."""
    lengths = draw(st.lists(st.integers(0, 20), min_size=1, max_size=12))
    documents = st.integers(0, len(lengths) - 1)
    return {
        "lengths": lengths,
        "fragments": draw(st.integers(1, 3)),
        "records": draw(st.none() | st.lists(documents, min_size=1, max_size=12)),
        "length": draw(st.integers(2, 9)),
        "method": draw(st.sampled_from(["concat", "best_fit"])),
        "end_of_text": draw(st.booleans()),
        "epochs": draw(st.integers(1, 3)),
        "vocabulary": draw(st.sampled_from([50, 1 << 16, (1 << 16) + 1])),
        "seed": draw(st.integers(0, 5)),
    }
