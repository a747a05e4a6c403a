"""The rows of a table in a balanced order, a new order each epoch, for any loader that takes a sampler.

Letters: N rows, B rows of a global batch.

The first epoch has the order of `divorder.order`, later epochs the orders of `core.order.epochs`: a row comes again
after nearly a whole epoch. With new seeds each epoch some rows would come again at once, and the training loss would
dip and then jump.

Cost: one order an epoch, computed at its first row. Memory: two orders of N int64, and the items (some 70
bytes a row for three columns of categories). Known weakness: a sampler knows the rows drawn from it, not the rows given
to the trainer; see `BalancedSampler`.
"""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from dagster_divorder.core.checks import whole_number
from dagster_divorder.errors import InputError


def check_state(state: Any, **types: type) -> None:
    """Checks that a state to resume from has values of these types, as a `state_dict` of this package does.

    Raises:
        InputError: a value is missing or of another type.
    """
    # NumPy's whole numbers are accepted, True is not.
    kinds = {name: Integral if kind is int else kind for name, kind in types.items()}
    if not isinstance(state, Mapping) or not all(
        isinstance(state.get(name), kind) and not isinstance(state[name], bool)
        for name, kind in kinds.items()
    ):
        expected = ", ".join(f"{name!r}: {kind.__name__}" for name, kind in types.items())
        raise InputError(
            f"the state to resume from is {reprlib.repr(state)}; expected {{{expected}}}, as state_dict() returns "
            f"it: load the saved state of this stream, not the checkpoint around it"
        )


class BalancedSampler(Sampler[int]):
    """Row numbers of a table, ordered so that every window carries the table's own mix: the `sampler` of a loader.

    table, by, arguments: as in `divorder.order` (tokens, strategy, seed, targets, ...). The table is the data set
        itself, or any table with a row for each of its items: `{"source": sources}`. The sampler reads it once and does
        not keep it.
    batch_size: B. Orders of later epochs consist of whole batches.

    An iteration is an epoch; after a completed one the next follows. `set_epoch` sets any epoch; its order does not
    depend on earlier reads.

    A state is {"epoch", "samples", "plan"}, plain numbers and text. `sampler.state_dict()` counts rows
    drawn. In a DataLoader without workers these are the rows given to the trainer; workers draw ahead of it.
    StatefulDataLoader keeps a state for each batch and is exact with any number of workers. A trainer that counts its
    own steps can put its position into a state: `{**sampler.state_dict(), "epoch": epoch, "samples": step * B}`.

    The sampler yields the rows of all ranks; accelerate and the trainers of Hugging Face and TRL give each rank its
    part.

    Raises:
        InputError: the table has no rows, or an argument is invalid.
    """

    def __init__(self, table: Any, by: Any, *, batch_size: int = 256, **arguments: Any) -> None:
        self.batch = whole_number("batch_size", batch_size, 1)
        if "batch" in arguments:
            raise InputError("batch is called batch_size here; give only batch_size")
        if "epochs" in arguments:
            raise InputError("epochs is given, and an iteration is one epoch; iterate again for the next")
        from dagster_divorder.tables.ordering import table_epochs

        _, self._planned = table_epochs(table, by, batch=self.batch, **arguments)
        self._order, self._epoch_kept = self._planned.first, 0
        self.rows = len(self._order)
        if not self.rows:
            raise InputError("the table has no rows; expected one or more to sample")
        # The 1 stands for the passes that earlier versions put into a plan: their states stay valid.
        decided = repr((self.batch, 1)).encode() + self._order.tobytes()
        self.plan = hashlib.blake2b(decided, digest_size=8).hexdigest()
        self.epoch, self._begin = 0, 0
        self._reading: RowNumbers | None = None

    def __len__(self) -> int:
        """N."""
        return self.rows

    def __iter__(self) -> RowNumbers:
        self._reading, self._begin = RowNumbers(self, self.epoch, self._begin), 0
        return self._reading

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next iteration, from 0. Drops a position inside another iteration."""
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self.epoch:
            self.epoch, self._begin, self._reading = epoch, 0, None

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The order of an epoch of the table, from 0: position -> row, (N,). Keeps the last one used."""
        if epoch != self._epoch_kept:
            self._order, self._epoch_kept = self._planned.order(epoch), epoch
        return self._order

    def state_dict(self) -> dict[str, Any]:
        """The position of the iteration; before it or at its end, the position where the next one begins."""
        return self.state(self.epoch, self._reading.samples if self._reading else self._begin)

    def state(self, epoch: int, samples: int) -> dict[str, Any]:
        """A position as plain numbers and text."""
        return {"epoch": epoch, "samples": samples, "plan": self.plan}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begins the next iteration at a state. Raises InputError for one of another table or other arguments, or past
        the end."""
        check_state(state, epoch=int, samples=int, plan=str)
        if state["plan"] != self.plan:
            raise InputError(
                f"the state belongs to the order {state['plan']}, and this is {self.plan}: another table or other "
                "arguments; resume with the table and the arguments that the state was saved with"
            )
        epoch, samples = int(state["epoch"]), int(state["samples"])
        if epoch < 0 or not 0 <= samples <= self.rows:
            raise InputError(
                f"the state counts {samples} samples of epoch {epoch}; expected 0 to {self.rows} samples of an epoch "
                "from 0"
            )
        self.epoch, self._begin, self._reading = epoch, samples, None


class RowNumbers(Iterator[int]):
    """One iteration of a BalancedSampler, with a state of its own: a loader has drawn the last row of an epoch, and its
    trainer has not read it. epoch: its number; samples: its rows that were drawn."""

    def __init__(self, sampler: BalancedSampler, epoch: int, samples: int) -> None:
        self._sampler, self.epoch, self.samples = sampler, epoch, samples

    def state_dict(self) -> dict[str, Any]:
        return self._sampler.state(self.epoch, self.samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self.epoch, self.samples = int(state["epoch"]), int(state["samples"])
        self._sampler._reading, self._sampler._begin = self, 0

    def __next__(self) -> int:
        sampler = self._sampler
        if self.samples == len(sampler):
            if self.epoch == sampler.epoch:
                sampler.set_epoch(self.epoch + 1)
            raise StopIteration
        self.samples += 1
        return int(sampler.order(self.epoch)[self.samples - 1])
