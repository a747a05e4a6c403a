"""What a trainer does to an order: a model of its sampler over row numbers.

Letters: B sequences of a global batch (one optimizer step), W ranks, b sequences that a rank reads at once.

Rows are numbered in the order of the files: row 0 is the first of the export's first file. A model returns the rows of
each global batch in the order of training, int64 (batches, B); -1 fills up an incomplete batch. The order inside a
batch has no meaning. Pure NumPy, linear in the rows read.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.units import batch_advice

Rows: TypeAlias = NDArray[np.int64]
Parts: TypeAlias = Literal["", "ranks", "workers"]
Shares: TypeAlias = Literal["", "micro-batches", "rows"]
Layout: TypeAlias = dict[str, int]
"""The `world_size`, `micro_batch` and `workers` that an export's rows are laid out for (`rows_for_contiguous_ranks`);
empty for the order of training."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How an export is read. For a curated output, records take the place of sequences.

    rows: of one epoch. The export holds every epoch, as copies or as an index: row e * rows + i is row i of epoch e.
    batch: sequences of a global batch, over all ranks and accumulated steps. world_size: of data parallelism.
    micro_batch: sequences that a rank reads at once. workers: loader processes of a rank; 0 reads in the training
    process. assumed: whether world_size is unknown, and this is a number to replay with.
    """

    rows: int
    batch: int
    epochs: int = 1
    world_size: int = 1
    micro_batch: int = 1
    workers: int = 0
    assumed: bool = False

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            least = 0 if name in ("workers", "assumed") else 1
            if number < least:
                raise InputError(f"{name} is {number}, expected {least} or more")
        # More is a mistake, and each process costs the model time and memory.
        if self.workers > 1024:
            raise InputError(f"workers is {self.workers:,}, expected at most 1,024 a rank")
        step = self.world_size * self.micro_batch
        if self.batch % step:
            raise InputError(
                f"A batch of {self.batch} sequences is not a whole number of steps of {self.world_size} ranks x "
                f"{self.micro_batch} sequences: choose a world size and a micro-batch with a product, now {step}, "
                f"that divides the batch"
            )

    @property
    def length(self) -> int:
        """Rows of all epochs."""
        return self.rows * self.epochs

    @property
    def steps(self) -> int:
        """Whole global batches over all epochs."""
        return self.length // self.batch


def consecutive(order: Rows, batch: int, *, drop_last: bool = True) -> Rows:
    """Rows in the order of reading over all ranks, (n,) -> (batches, B). drop_last: drop an incomplete last batch
    instead of filling it up with -1."""
    if not drop_last:
        order = np.append(order, np.full(-order.size % batch, -1))
    return order[: order.size // batch * batch].reshape(-1, batch)


def in_order(reading: Reading) -> Rows:
    """The rows in stored order: (batches, B)."""
    return consecutive(np.arange(reading.length), reading.batch)


def shuffled(reading: Reading) -> Rows:
    """Rows of no known order, all -1, of a trainer that shuffles by a seed of its own: no batch is the plan's."""
    return np.full((reading.steps, reading.batch), -1)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A trainer, and two ways in which it reads an export: with its defaults, and keeping the order."""

    name: str
    title: str
    formats: tuple[str, ...] = ()
    """Export formats that it reads, best first."""
    forms: tuple[str, ...] = ()
    """Forms of records (`input.format`) that it tokenises itself, from the curated output: a row is a record."""
    default: Callable[[Reading], Rows] = shuffled
    best: Callable[[Reading], Rows] = in_order
    """The batches with `lines` in its configuration, a format string (see `configuration`)."""
    lines: str
    resumes: str
    """Effect of a resume at another world size."""
    documented: str = ""
    """Where the setting that keeps the order is documented, for a trainer without a model of its sampler."""
    reads_labels: bool = True
    """Whether an export's loss mask reaches its loss."""
    joins_rows: bool = False
    """Whether it joins rows into one stream of tokens and cuts this again."""
    shares: Shares = ""
    """What of a step's consecutive rows goes to each rank in turn with `best`; "" if that is not modelled."""
    parts: Parts = ""
    """What reads a contiguous part of the export with `best`: each rank, each worker of each rank, or nothing. Rows
    must then be laid out by `rows_for_contiguous_ranks`, and are numbered in this layout."""

    def obstacle(self, *, labelled: bool, short_rows: bool) -> str:
        """Why it cannot read exports with a loss mask, or with short rows before the last of an epoch; "" if it can."""
        if labelled and not self.reads_labels:
            return (
                "it makes labels from the ids and trains on every token; train with TRL or dagster_divorder.torch, or "
                'set chats.train_on = "all"'
            )
        if short_rows and self.joins_rows:
            return (
                "it joins rows into one stream of tokens, so rows that hold fewer tokens than the others shift all "
                'rows after them; set packing.method = "concat", or train with dagster_divorder.torch'
            )
        return ""

    def configuration(self, reading: Reading, *, path: str, prefix: str, sequence_length: int) -> str:
        """The lines for `best`, or why it would take no step. prefix: of the names of the export's files.
        sequence_length: tokens of a row. Where the number of ranks is assumed, the lines call it `ranks`."""
        if not reading.steps:
            return (
                f"# {reading.length:,} rows are less than one batch of {reading.batch:,}, so no step is taken. "
                f"{batch_advice(reading.length)}\n"
            )

        def of_a_rank(rows: int) -> str:
            return f"{rows} / ranks" if reading.assumed else str(rows // reading.world_size)

        known = asdict(reading) | ({"world_size": "ranks"} if reading.assumed else {})
        return self.lines.format(
            **known,
            path=path,
            pattern=glob.escape(path),
            folder=path.rpartition("/")[0],
            reader="parquet" if path.endswith(".parquet") else "json",
            prefix=prefix,
            sequence_length=sequence_length,
            window=sequence_length - 1,
            steps=reading.steps,
            samples=reading.steps * reading.batch,
            rank_batch=of_a_rank(reading.batch),
            accumulation=of_a_rank(reading.batch // reading.micro_batch),
            tokens=reading.batch * sequence_length,
        )


def from_ranks(streams: Sequence[Rows], reading: Reading) -> Rows:
    """The rows of each of W ranks -> (batches, B). Ends when the first rank has no whole micro-batch left."""
    steps = min(len(stream) for stream in streams) // reading.micro_batch
    cut = [stream[: steps * reading.micro_batch].reshape(steps, reading.micro_batch) for stream in streams]
    return consecutive(np.stack(cut, axis=1).reshape(-1), reading.batch)


def from_workers(streams: Sequence[Rows], micro_batch: int) -> Rows:
    """The rows of each worker of a rank -> (n,) in the rank's order.

    A PyTorch DataLoader takes a micro-batch from each worker in turn, and skips finished workers. A worker's incomplete
    last micro-batch is dropped.
    """
    streams = [stream[: len(stream) // micro_batch * micro_batch] for stream in streams]
    turn = np.concatenate([np.arange(len(stream)) // micro_batch for stream in streams])
    return np.concatenate(streams)[np.argsort(turn, kind="stable")]


def layout_for(parts: Parts, world_size: int, micro_batch: int, workers: int) -> Layout:
    """The layout of rows for a trainer that reads such parts."""
    workers = workers if parts == "workers" else 1
    if not parts or world_size * workers == 1:
        return {}
    return {"world_size": world_size, "micro_batch": micro_batch, "workers": workers}


def rows_for_contiguous_ranks(rows: int, *, world_size: int, micro_batch: int, workers: int = 0) -> Rows:
    """The layout for ranks and workers that each read a contiguous slice of the export: position in the file -> row of
    the order, int64 (n,). With it step i of all ranks reads the rows [i W b, (i + 1) W b) of the order.

    The file is W slices of `workers` slices (0 counts as 1), and a rank takes a micro-batch from each of its workers
    in turn. n is the largest multiple of W * b * workers up to `rows`: the last `rows` - n rows are left out, because
    slices of unequal length would shift all others.
    """
    turn = max(workers, 1)
    whole = rows // (world_size * micro_batch * turn)
    order = np.arange(whole * turn * world_size * micro_batch).reshape(whole, turn, world_size, micro_batch)
    return order.transpose(2, 1, 0, 3).reshape(-1)
