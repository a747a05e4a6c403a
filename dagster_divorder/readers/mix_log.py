"""The mix of each step of a training on an export, for whatever the trainer logs to.

    mix = MixLog("data/exports/parquet")
    mix(0)["mix/source/web"]                                    # share of step 0; any loop logs the dict
    trainer.add_callback(mix.callback(trainer))                 # transformers, TRL
    lightning.Trainer(callbacks=[mix.lightning_callback()])

Step i is global batch i of the stream, as a trainer reads that keeps the order (`divorder verify`). Shares are of the
tokens that the order counts. Cost: a pass over the table at opening, then some microseconds a step. Memory: 16 bytes a
step and logged value.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.readers.export import Export, open_export

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from transformers import Trainer

MOST_VALUES = 8
OTHERS = "(others)"


class MixLog:
    """The mix of each step, by trait.

    export: the folder of an export in any format, or an open one. batch: rows of a global batch, over all ranks;
    default: the plan's. Logged are all traits but `length`, and by name the MOST_VALUES values of each with the most
    tokens; the rest is `(others)`.

    `mix(step)`, for a step from 0, is a dict of plain numbers:

    - `mix/TRAIT/VALUE`: share of the step's tokens;
    - `distance/TRAIT`: total variation between the step's shares and those of the whole export, 0 to 1;
    - `read/TRAIT/VALUE`: how often the value's tokens were read up to the end of the step, in epochs of the export;
    - `read/tokens`: tokens read up to there.

    Raises:
        InputError: an export without a table of its rows; see also `open_export`. StoreError: see `open_export`.
    """

    def __init__(self, export: str | Path | Export, *, batch: int | None = None) -> None:
        from scipy.sparse import csr_matrix

        self.export = open_export(export, rows=False) if isinstance(export, str | Path) else export
        table, self.batch = self.export.table, batch or self.export.batch
        rows = self.export.in_file(np.arange(len(self.export)))
        begins = np.append(np.arange(0, len(rows), self.batch), len(rows))
        in_step = csr_matrix((np.ones(len(rows)), rows, begins), (len(begins) - 1, len(table.tokens)))
        tokens = in_step @ table.tokens
        counted = np.maximum(in_step @ table.counted, 1)
        columns = {"read/tokens": np.cumsum(tokens)}
        for name, trait in table.traits.items():
            if name == "length":
                continue
            of_rows = csr_matrix(
                (trait.tokens, trait.values, trait.offsets), (len(table.tokens), len(trait.names))
            )
            of_steps = in_step @ of_rows
            whole = np.asarray(of_steps.sum(0)).ravel()
            shown = np.argsort(-whole, kind="stable")[:MOST_VALUES]
            logged = {trait.names[value]: of_steps[:, [value]].toarray().ravel() for value in shown.tolist()}
            if len(whole) > MOST_VALUES:
                logged[OTHERS] = np.asarray(of_steps.sum(1)).ravel() - sum(logged.values())
            for value, read in logged.items():
                columns[f"mix/{name}/{value}"] = read / counted
                columns[f"read/{name}/{value}"] = np.cumsum(read) / max(
                    read.sum() / self.export.manifest["epochs"], 1
                )
            columns[f"distance/{name}"] = _distances(of_steps, counted, whole / max(whole.sum(), 1))
        self._names, self._columns = list(columns), np.stack(list(columns.values()), axis=1)

    def __len__(self) -> int:
        """Steps, an incomplete last one included."""
        return len(self._columns)

    def __call__(self, step: int) -> dict[str, float]:
        """
        Raises:
            IndexError: the export has no such step.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"{self.export.path} has steps 0 to {len(self) - 1}, not {step}")
        return dict(zip(self._names, self._columns[step].tolist(), strict=True))

    def callback(self, trainer: Trainer) -> Any:
        """A `TrainerCallback` that logs the mix of the last step whenever a Trainer of transformers or TRL logs, to
        wherever that reports. Runs on every rank; the Trainer reports from the first."""
        from transformers import TrainerCallback

        mix = self

        class MixCallback(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
                # After the loss: a log before it would count as this step's.
                if "loss" in others["logs"] and 0 < state.global_step <= len(mix):
                    trainer.log(mix(state.global_step - 1))

        return MixCallback()

    def lightning_callback(self) -> Any:
        """A Lightning `Callback` that logs the mix of each optimizer step."""
        from lightning.pytorch.callbacks import Callback

        mix = self

        class MixCallback(Callback):
            last = 0

            def on_train_batch_end(self, trainer: Any, module: Any, *others: Any) -> None:
                if self.last < trainer.global_step <= len(mix):
                    module.log_dict(mix(trainer.global_step - 1))
                self.last = trainer.global_step

        return MixCallback()


def _distances(of_steps: csr_matrix, counted: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Total variation between the shares of each step and of the whole, float64 (steps,). of_steps: tokens CSR (steps,
    J). counted: tokens of each step. whole: shares, (J,)."""
    step = np.repeat(np.arange(len(counted)), np.diff(of_steps.indptr))
    expected = whole[of_steps.indices]
    # A value that a step lacks is off by its whole share.
    excess = np.abs(of_steps.data / counted[step] - expected) - expected
    return (np.bincount(step, excess, len(counted)) + whole.sum()) / 2
