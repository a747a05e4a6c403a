"""The rows of an export in the plan's order, for every rank and worker, from any position.

The stream is all epochs, one after another. Global batch i is its rows [i B, (i + 1) B); a step of it is world size x
micro-batch rows, a micro-batch for each rank. So all ranks together have always read a prefix of the stream, and one
number, its samples, is enough to resume on any other ranks. An incomplete last batch is left out.

Letters: B rows of a global batch, T rows of all epochs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from dagster_divorder.core.ranks import deal_to_ranks
from dagster_divorder.errors import InputError
from dagster_divorder.readers.export import Export, open_export
from dagster_divorder.readers.forms import FORMS
from dagster_divorder.readers.sampling import check_state


class SequenceDataset(Dataset[Any]):
    """The rows of all epochs as a map-style dataset for any sampler: row i is row i of the stream.

    `__getitems__` reads a batch as one block, so give the loader `collate_fn=dataset.collate`. path: the folder of an
    export, or an open export. form: plain, flattened or torchtitan (readers/forms.py). trim: blocks of the
    plain form end at their longest row.

    Raises:
        InputError: an unknown form; see also `open_export`. StoreError: see `open_export`.
    """

    def __init__(self, path: str | Path | Export, *, form: str = "plain", trim: bool = False) -> None:
        if form not in FORMS:
            raise InputError(f"there is no form {form!r}; expected one of {', '.join(FORMS)}")
        self.export = open_export(path) if isinstance(path, str | Path) else path
        self.form, self.trim = form, trim

    @property
    def pads(self) -> bool:
        """Whether each block is padded to its longest row only."""
        return self.form == "plain" and self.trim and not self.export.packed

    def __len__(self) -> int:
        """T."""
        return len(self.export)

    def __getitem__(self, row: int) -> Any:
        """A block of one row."""
        return self.__getitems__([row])

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """These rows as one block."""
        block = self.export.block(rows)
        return FORMS[self.form](block.trimmed() if self.trim and self.form == "plain" else block)

    @staticmethod
    def collate(block: Any) -> Any:
        """The block itself. Raises InputError for a list of rows, of a loader without `__getitems__`."""
        if isinstance(block, list):
            raise InputError(
                "collate was given a list of rows, but this dataset reads a batch as one block, by __getitems__; use "
                "a loader that calls it, such as torch's, or SequenceStream"
            )
        return block


class GlobalBatchSampler(Sampler[Sequence[int]]):
    """This rank's part of every global batch, a micro-batch at a time: the `batch_sampler` of a DataLoader.

    dataset: of an export. batch: rows of a global batch over all ranks; default: the plan's. micro_batch: rows that a
    rank reads at once; default: its whole part. rank, world_size: default: torch.distributed's, or RANK and WORLD_SIZE,
    which torchrun sets; without any of them one rank reads all. An incomplete last batch is left out. An iteration
    begins at the start, or once at a loaded state, at the end of a step of world size x micro-batch rows. equal_ranks:
    deal the rows of each global batch so that at every micro-step all ranks have about the same attention cost
    (`core.ranks`).

    The iterator keeps the position, and torchdata's StatefulDataLoader saves it. The position counts rows given to the
    trainer, not rows that workers have read ahead. A plain DataLoader cannot count them: use SequenceStream.

    Raises:
        InputError: dataset is something else, the rank is outside the world or one of the two is not known, world size
            x micro-batch does not divide the batch, the batch is larger than the export, or the costs of rows are not
            known.
    """

    def __init__(
        self,
        dataset: SequenceDataset,
        batch: int | None = None,
        *,
        micro_batch: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        equal_ranks: bool = False,
    ) -> None:
        if not isinstance(dataset, SequenceDataset):
            raise InputError(
                f"dataset is a {type(dataset).__name__}; expected a SequenceDataset of an export (a BalancedSampler is "
                "the `sampler` of a loader)"
            )
        self.source, self._pads = dataset.export, dataset.pads
        self.batch = self.source.batch if batch is None else batch
        rank, world_size = _ranks(rank, world_size)
        self.micro_batch = max(self.batch // world_size, 1) if micro_batch is None else micro_batch
        self.rank, self.step = rank, world_size * self.micro_batch
        if self.micro_batch < 1 or self.batch < 1 or self.batch % self.step:
            raise InputError(
                f"a global batch of {self.batch} rows cannot be shared by {world_size} ranks that read "
                f"{self.micro_batch} at once; expected world_size x micro_batch to divide batch"
            )
        rows = len(self.source)
        self.end = rows // self.batch * self.batch
        if not self.end:
            raise InputError(
                f"{self.source.path} has {rows} rows, fewer than a batch of {self.batch}; give a smaller batch"
            )
        self.begin = 0
        """Rows before the next iteration: none, or once those of a loaded state."""
        self.equal_ranks = equal_ranks
        self._batch: tuple[int, NDArray[np.int64]] | None = None
        """The last batch that was dealt: its first row, and its rows."""
        if equal_ranks:
            self._deal(0)  # refuses an export without costs

    def __iter__(self) -> MicroBatches:
        batches, self.begin = MicroBatches(self, self.begin), 0
        return batches

    def __len__(self) -> int:
        """Micro-batches from the start to the end."""
        return self.end // self.step

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begins the next iteration at a state.

        Raises:
            InputError: it is no state ({"samples", "plan"}) of this export, or no step begins there.
        """
        check_state(state, samples=int, plan=str)
        export, samples = self.source, int(state["samples"])
        if state["plan"] != export.plan:
            raise InputError(
                f"the state belongs to the plan {state['plan']}, and {export.path} holds {export.plan}: other tokens "
                "or another order; resume with the export that the state was saved with"
            )
        if not 0 <= samples <= len(export):
            raise InputError(
                f"the state counts {samples} samples, and {export.path} has {len(export)}; resume with the export that "
                "the state was saved with"
            )
        if samples % self.step and samples < self.end:
            raise InputError(
                f"the state counts {samples} samples, {samples % self.batch} of them in a batch of {self.batch}, where "
                f"no step of {self.step} rows begins: resume with a world_size x micro_batch that divides {samples}, "
                "or with the state at the end of a batch"
            )
        if samples % self.batch and state.get("dealt", "") != self.dealt:
            raise InputError(
                f"the state is inside a batch whose rows were dealt to ranks as {state.get('dealt') or 'they come'!r}, "
                f"and they are dealt as {self.dealt or 'they come'!r}; resume with the same equal_ranks, world_size "
                "and micro_batch, or with the state at the end of a batch"
            )
        self.begin = samples

    def state(self, samples: int) -> dict[str, Any]:
        """The state after so many rows of all ranks, as plain numbers and text."""
        dealt = {"dealt": self.dealt} if self.dealt else {}
        return {"samples": samples, "plan": self.source.plan} | dealt

    @property
    def dealt(self) -> str:
        """How rows are dealt to ranks, in the export and here, as text; "" if they are not."""
        here = f"{self.step // self.micro_batch} x {self.micro_batch} at reading" if self.equal_ranks else ""
        return ", ".join(filter(None, (self.source.dealt, here)))

    def _deal(self, first: int) -> NDArray[np.int64]:
        """The rows of the batch that begins at row `first`, by micro-step and rank, int64 (B,)."""
        if self._batch is None or self._batch[0] != first:
            costs = self.source.costs(range(first, first + self.batch), padded=self._pads)
            ranks = self.step // self.micro_batch
            dealt = deal_to_ranks(costs, ranks, self.micro_batch, padded=self._pads)
            self._batch = first, first + dealt.ravel()
        return self._batch[1]

    def rows_at(self, begin: int, end: int) -> Sequence[int]:
        """Rows at positions [begin, end), within one batch."""
        if not self.equal_ranks:
            return range(begin, end)
        first = begin // self.batch * self.batch
        return self._deal(first)[begin - first : end - first].tolist()


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """The rank and the world size, those not given from torch.distributed or torchrun's variables."""
    started = torch.distributed.is_available() and torch.distributed.is_initialized()
    numbers = []
    for name, given, of_group in (("RANK", rank, "get_rank"), ("WORLD_SIZE", world_size, "get_world_size")):
        if given is None and started:
            given = getattr(torch.distributed, of_group)()
        elif given is None and (value := os.environ.get(name, "").strip()):
            try:
                given = int(value)
            except ValueError:
                raise InputError(
                    f"the environment variable {name} is {value!r}; expected a whole number, as torchrun sets it: "
                    "unset it, or give rank and world_size"
                ) from None
        numbers.append(given)
    rank, world_size = numbers
    if rank is None and world_size in (None, 1):
        return 0, 1
    if rank is None or world_size is None:
        raise InputError(
            f"rank is {rank} and world_size is {world_size}; expected both, or every process would read the same rows: "
            "set RANK and WORLD_SIZE as torchrun does (srun and mpirun give them other names), or give rank and "
            "world_size"
        )
    if not 0 <= rank < world_size:
        raise InputError(f"rank is {rank} in a world of {world_size}; expected 0 <= rank < world_size")
    return rank, world_size


class MicroBatches(Iterator[Sequence[int]]):
    """One iteration of a GlobalBatchSampler. samples: rows given to all ranks together."""

    def __init__(self, sampler: GlobalBatchSampler, samples: int) -> None:
        self._sampler, self.samples = sampler, samples

    def __next__(self) -> Sequence[int]:
        sampler = self._sampler
        if self.samples + sampler.step > sampler.end:
            raise StopIteration
        first = self.samples + sampler.rank * sampler.micro_batch
        self.samples += sampler.step
        return sampler.rows_at(first, first + sampler.micro_batch)

    def state_dict(self) -> dict[str, Any]:
        return self._sampler.state(self.samples)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self.samples, self._sampler.begin = self._sampler.begin, 0


class SequenceStream(IterableDataset[Any]):
    """This rank's micro-batches, one after another. Iterate it directly, without a DataLoader.

    Parameters: see SequenceDataset and GlobalBatchSampler. `state_dict` is {"samples", "plan"}: rows given to the
    trainer. A state can be loaded with another world size, micro-batch or batch if one of their steps begins there.
    With equal_ranks rows of the plain form are padded to the longest of the micro-batch only. For processes that read
    ahead give a StatefulDataLoader the stream's `dataset` and `sampler`.

    Raises:
        InputError, StoreError: see SequenceDataset and GlobalBatchSampler; an iteration refuses workers of a loader.
    """

    def __init__(
        self,
        path: str | Path | Export,
        *,
        batch: int | None = None,
        micro_batch: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        form: str = "plain",
        equal_ranks: bool = False,
    ) -> None:
        self.dataset = SequenceDataset(path, form=form, trim=equal_ranks)
        ranks = {"micro_batch": micro_batch, "rank": rank, "world_size": world_size}
        self.sampler = GlobalBatchSampler(self.dataset, batch, equal_ranks=equal_ranks, **ranks)
        self._batches: MicroBatches | None = None

    def __len__(self) -> int:
        """Micro-batches from the start to the end."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info():
            raise InputError(
                "a SequenceStream is read in the worker of a DataLoader, where every worker would read all of it; "
                "iterate it without a loader, or give a StatefulDataLoader its `dataset`, and its `sampler` as "
                "batch_sampler"
            )
        self._batches = iter(self.sampler)
        return map(self.dataset.__getitems__, self._batches)

    def state_dict(self) -> dict[str, Any]:
        """The position of the iteration that was begun last; before it, where it will begin."""
        return self.sampler.state(self._batches.samples if self._batches else self.sampler.begin)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begins the next iteration at a state. Raises InputError: see `GlobalBatchSampler`."""
        self.sampler.load_state_dict(state)
        self._batches = None
