"""Labels that reach the loss: compares batches that collators make of an export's rows with the plan's loss mask.

A collator loses the mask without an error if it makes labels from the ids or reads another column. So this module runs
the real collators over some rows and compares every label.

Letters: n rows, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.mix.repeats import stream_view
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from dagster_divorder.store.manifests import neighbour
from dagster_divorder.trainers.replay import Shape
from dagster_divorder.view.answer import Part, TextTable
from dagster_divorder.view.words import clip

IGNORED = -100
"""The label of tokens without a loss."""
SAMPLED_TOKENS = 1 << 19
SAMPLED_ROWS = 256
GROUPS = 8
"""Number of places in an export to sample rows from."""
ROWS_OF_A_BATCH = 4

REMEDIES = {
    "labels": 'Set exports.columns = ["labels"], and use a collator that reads them.',
    "attention": "across documents: an attention mask makes tokens attend to earlier documents of their row; set "
    'padding_free=True in SFTConfig, use SequenceDataset(form="flattened"), or set packing.method = "none".',
}

Row = Mapping[str, Any]
"""A row of an export: column -> list of T values."""
Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Collated:
    """What a collator makes of a sample of rows.

    trainer: the collator's, "" for a reader of this package. tokens, equal: compared labels, and labels equal to the
    plan's. first: row of the files, token, expected and given label of the first difference. firsts: first tokens of
    documents whose label is IGNORED instead of the plan's; they count as equal. apart: whether documents of a row
    attend only to themselves, None if no row holds several. error: of a collator that refuses the rows.
    """

    name: str
    trainer: str
    tokens: int = 0
    equal: int = 0
    first: tuple[int, int, int, int] | None = None
    firsts: int = 0
    apart: bool | None = None
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether every label is the plan's."""
        return not self.error and self.equal == self.tokens


@dataclass(frozen=True)
class _Sample:
    """Rows of the files by number, their positions in the order of training, and their planned masks."""

    numbers: list[int]
    rows: list[Row]
    positions: list[int]
    masks: list[np.ndarray]

    def batches(self) -> Iterator[slice]:
        for first in range(0, len(self.rows), ROWS_OF_A_BATCH):
            yield slice(first, first + ROWS_OF_A_BATCH)


def planned_masks(run: Run, positions: Sequence[int]) -> Iterator[np.ndarray]:
    """Whether each token is trained on, bool (T,), for sequences at positions in the order of training."""
    mask, packed, view = load_loss_mask(run), load_packed(run), stream_view(run)
    assert mask is not None
    order = load_sequence_order(run).reshape(-1)
    for sequence in order[list(positions)]:
        parts = []
        for at in range(packed.indptr[sequence], packed.indptr[sequence + 1]):
            row = int(view.document_row[packed.document[at]])
            first, end = mask.begins[row : row + 2]
            document = mask.trained.marked(np.array([first]), np.array([end - first]))
            # An end-of-text token is trained on if the token before it is.
            document = np.append(document, document[-1:])
            parts.append(document[packed.start[at] : packed.start[at] + packed.length[at]])
        yield np.concatenate(parts)


def check_labels(
    run: Run, folder: Path, manifest: Mapping[str, Any], trainer: str | None = None
) -> list[Collated]:
    """What collators make of rows of a Parquet export with a loss mask. The store holds its plan. Runs the collators of
    a trainer, or of all that are installed, and this package's readers."""
    sample = _sample(run, folder, manifest)
    makers = [
        *(_of_trl(manifest) if trainer in ("trl", None) else ()),
        *(_of_transformers(folder) if trainer in ("hf-trainer", None) else ()),
        *_of_readers(folder),
    ]
    return [_collated(sample, *maker) for maker in makers]


def labels_shown(labels: Sequence[Collated]) -> list[Part]:
    """A table of collators, the differences, and the remedies."""
    if not labels:
        return []
    attention = {None: "one document a row", True: "documents apart", False: "across documents"}
    rows = [
        {
            "collator": collated.name,
            "labels": f"none: {clip(collated.error, 60)}"
            if collated.error
            else ("the plan's: " if collated.passed else "")
            + f"{collated.equal:,} of {collated.tokens:,} tokens",
            "attention": "" if collated.error else attention[collated.apart],
        }
        for collated in labels
    ]
    lines = []
    for collated in labels:
        if collated.first:
            row, token, expected, given = collated.first
            lines.append(
                f"{collated.name}: the first different label is {given} instead of {expected}, at token {token:,} of "
                f"row {row:,}. {REMEDIES['labels']}"
            )
        if collated.firsts:
            lines.append(
                f"{collated.name}: the first label of {collated.firsts:,} documents is -100, because no token of the "
                f"document precedes it."
            )
    if any(collated.apart is False for collated in labels):
        lines.append(REMEDIES["attention"])
    table = TextTable(rows, "labels that reach the loss, against the plan's loss mask")
    return ["", table, *(["", *lines] if lines else [])]


def _sample(run: Run, folder: Path, manifest: Mapping[str, Any]) -> _Sample:
    """The first rows of row groups spread over the files."""
    import pyarrow.parquet as pq

    wanted = max(GROUPS, min(SAMPLED_ROWS, SAMPLED_TOKENS // manifest["sequence_length"]))
    groups, begin = [], 0
    for name in sorted(name for name in manifest["files"] if name.endswith(".parquet")):
        file = pq.ParquetFile(folder / name)
        for group in range(file.num_row_groups):
            groups.append((begin, file, group))
            begin += file.metadata.row_group(group).num_rows
    # Small row groups are numerous.
    count = max(GROUPS, -(-wanted * len(groups) // begin))
    chosen = np.unique(np.linspace(0, len(groups) - 1, count).astype(int))
    numbers: list[int] = []
    rows: list[Row] = []
    for first, file, group in [groups[number] for number in chosen]:
        read = file.read_row_group(group)[: -(-wanted // len(chosen))].to_pylist()
        numbers += range(first, first + len(read))
        rows += read
    positions = Shape.of(manifest, str(folder)).positions()[numbers].tolist()
    return _Sample(numbers, rows, positions, list(planned_masks(run, positions)))


Maker = tuple[str, str, Callable[[list[Row], list[int]], Batch]]
"""A collator's name, its trainer, and a function from rows and their positions to a batch."""


def _of_trl(manifest: Mapping[str, Any]) -> Iterator[Maker]:
    try:
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
    except ImportError:
        return
    for padding_free in (True, False):
        collator = DataCollatorForLanguageModeling(
            pad_token_id=manifest["tokenizer"]["padding"], padding_free=padding_free
        )
        yield f"SFTTrainer, padding_free={padding_free}", "trl", _preparing(collator)


def _preparing(collator: Any) -> Callable[[list[Row], list[int]], Batch]:
    """SFTTrainer takes `labels` unchanged, else assistant_masks. It takes completion_mask only with
    completion_only_loss=True, which it sets by itself only for records of prompts."""

    def prepared(row: Row) -> Row:
        if "labels" in row or "assistant_masks" not in row:
            return row
        bits = zip(row["input_ids"], row["assistant_masks"], strict=True)
        return {**row, "labels": [token if bit else IGNORED for token, bit in bits]}

    return lambda rows, positions: collator([prepared(row) for row in rows])


def _of_transformers(folder: Path) -> Iterator[Maker]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(neighbour(folder))
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    collators = {
        "DataCollatorForSeq2Seq": transformers.DataCollatorForSeq2Seq(tokenizer),
        "DataCollatorWithFlattening": transformers.DataCollatorWithFlattening(),
        "default_data_collator": transformers.default_data_collator,
        "DataCollatorForLanguageModeling(mlm=False)": transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm=False
        ),
    }
    # Trainer drops other columns, because no model has arguments of these names.
    arguments = ("input_ids", "labels", "position_ids", "attention_mask")
    for name, collator in collators.items():

        def collate(rows: list[Row], positions: list[int], collator: Any = collator) -> Batch:
            kept: Batch = collator(
                [{column: row[column] for column in arguments if column in row} for row in rows]
            )
            return kept

        yield name, "hf-trainer", collate


def _of_readers(folder: Path) -> Iterator[Maker]:
    from dagster_divorder.torch import SequenceDataset

    for form in ("plain", "flattened"):
        dataset = SequenceDataset(folder, form=form)

        def read(rows: list[Row], positions: list[int], dataset: SequenceDataset = dataset) -> Batch:
            batch: Batch = dataset.__getitems__(positions)
            return batch

        yield f'SequenceDataset(form="{form}")', "", read


def _collated(
    sample: _Sample,
    name: str,
    trainer: str,
    make: Callable[[list[Row], list[int]], Batch],
) -> Collated:
    tokens = equal = firsts = 0
    first, apart = None, []
    for part in sample.batches():
        rows = sample.rows[part]
        try:
            batch = make(rows, sample.positions[part])
            labels = _by_row(np.asarray(batch["labels"]), [len(row["input_ids"]) for row in rows])
        except (ValueError, TypeError, KeyError) as error:
            return Collated(name, trainer, error=str(error).split("\n")[0].split(". ")[0])
        apart += [_apart(batch, rows)] if any(len(row["seq_lengths"]) > 1 for row in rows) else []
        for number, row, mask, given in zip(
            sample.numbers[part], rows, sample.masks[part], labels, strict=True
        ):
            # Labels in the padding are not in the plan.
            expected = np.full(len(given), IGNORED)
            expected[: len(mask)] = np.where(mask, row["input_ids"], IGNORED)
            same = given == expected
            begins = np.cumsum([0, *row["seq_lengths"][:-1]])
            left_out = begins[(given[begins] == IGNORED) & ~same[begins]]
            same[left_out] = True
            firsts += len(left_out)
            equal += int(same[: len(mask)].sum())
            tokens += len(mask) + int((~same[len(mask) :]).sum())
            if first is None and not same.all():
                at = int(np.argmin(same))
                first = (number, at, int(expected[at]), int(given[at]))
    return Collated(name, trainer, tokens, equal, first, firsts, all(apart) if apart else None)


def _by_row(values: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Values of each row: (T,) of a flattened batch; of a batch padded on the right, with the padding.

    Raises:
        ValueError: the batch has other rows.
    """
    if values.shape == (1, sum(lengths)):
        return np.split(values[0], np.cumsum(lengths)[:-1])
    if len(values) != len(lengths) or values.shape[1] < max(lengths):
        raise ValueError("the collator gives other rows")
    return list(values)


def _apart(batch: Batch, rows: Sequence[Row]) -> bool:
    """Whether transformers keeps documents of a row apart: by restarting positions, which it reads only without an
    attention mask."""
    if "attention_mask" in batch or "position_ids" not in batch:
        return False
    positions = _by_row(np.asarray(batch["position_ids"]), [len(row["input_ids"]) for row in rows])
    return all(
        np.array_equal(
            given[: len(row["input_ids"])],
            np.concatenate([np.arange(length) for length in row["seq_lengths"]]),
        )
        for given, row in zip(positions, rows, strict=True)
    )
