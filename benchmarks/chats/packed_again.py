"""What TRL and transformers make of conversations that lie in their order: packed again, shuffled, grouped by length.

python data/build_sample.py --chat --documents 3000 --output chats.jsonl
divorder run; python benchmarks/chats/packed_again.py divorder.toml --field source

For settings whose run is done, of messages with a field of some values. Each way is the rows of a training by the
records that they hold tokens of:

plan                    sequences of the export, as SFTTrainer reads them with the lines of `divorder verify`
plan, random            the same by its default sampler
plan, group_by_length   the same by that train_sampling_strategy
bfd, bfd_split, wrapped records of curated.jsonl, packed by TRL, rows one after another
..., random             the same by its default sampler

Columns: mean total variation between a batch and all rows in per cent of trained tokens, by the field, by turns and by
tenths of length; the same of the worst tenth of training by length; and tokens that are left out. Packing and samplers
are those of the packages.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

from dagster_divorder.corpus.peek import recognised
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings.loading import load_settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.mix.repeats import item_records
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order, output_order
from dagster_divorder.stages.text.loss_mask import load_loss_mask

Rows = list[np.ndarray]
"""For each row, the record of each of its tokens."""


def planned(run: Run) -> Rows:
    packed = load_packed(run)
    return [
        np.repeat(packed.document[span], packed.length[span])
        for sequence in load_sequence_order(run)[0]
        for span in [slice(packed.indptr[sequence], packed.indptr[sequence + 1])]
    ]


def packed_by_trl(records: np.ndarray, lengths: np.ndarray, length: int, strategy: str) -> Rows:
    from datasets import Dataset
    from trl import pack_dataset

    data = Dataset.from_dict(
        {"input_ids": [[record] * size for record, size in zip(records, lengths, strict=True)]}
    )
    return [np.array(row) for row in pack_dataset(data, length, strategy)["input_ids"]]


def sampled(rows: Rows, strategy: str, batch: int) -> Rows:
    """Rows in the order of transformers' sampler, one process, batches in one piece."""
    import torch
    from torch.utils.data import RandomSampler
    from transformers.trainer_pt_utils import LengthGroupedSampler

    torch.manual_seed(0)
    sizes = [len(row) for row in rows]
    sampler = RandomSampler(rows) if strategy == "random" else LengthGroupedSampler(batch, lengths=sizes)
    return [rows[number] for number in sampler]


def batches(rows: Rows, size: int) -> Iterator[np.ndarray]:
    for first in range(0, len(rows) // size * size, size):
        yield np.concatenate(rows[first : first + size])


def mix(tokens: np.ndarray, codes: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """The share of each value among trained tokens."""
    counts = np.bincount(codes[tokens], weights=trained[tokens], minlength=codes.max() + 1)
    return counts / counts.sum()


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    return 50 * float(np.abs(one - other).sum())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", type=Path)
    parser.add_argument("--field", default="source")
    options = parser.parse_args()
    run = open_run(recognised(load_settings(str(options.settings))))
    sequence, records, order = run.settings.sequence, item_records(run), output_order(run)
    lengths = run.column("token_counts", "lengths")[records]
    # A record's tokens each count as its share of trained ones, wherever it is cut.
    mask = load_loss_mask(run)
    trained = np.ones(len(lengths)) if mask is None else mask.tokens(records) / lengths
    lines = [orjson.loads(line) for line in (run.settings.output.path / "curated.jsonl").open("rb")]
    names: list[dict[str, object]] = [{} for _ in lengths]
    for record, line in zip(order, lines, strict=True):
        names[record] = {options.field: line[options.field], "turns": len(line["messages"])}
    traits = {
        name: np.unique([str(each.get(name)) for each in names], return_inverse=True)[1]
        for name in (options.field, "turns")
    }
    traits["length"] = np.searchsorted(np.quantile(lengths, np.arange(0.1, 1, 0.1)), lengths)
    plan = planned(run)
    ways = {"plan": plan}
    ways |= {f"plan, {way}": sampled(plan, way, sequence.batch) for way in ("random", "group_by_length")}
    for strategy in ("bfd", "bfd_split", "wrapped"):
        rows = packed_by_trl(order, lengths[order], sequence.length, strategy)
        ways |= {
            strategy: rows,
            f"{strategy}, random": sampled(rows, "random", sequence.batch),
        }
    print(
        f"| rows | batches | {' | '.join(traits)} | worst tenth, length | left out |\n"
        f"|---|--:{'|--:' * (len(traits) + 2)}|"
    )
    for name, rows in ways.items():
        read = np.concatenate(rows)
        whole = {trait: mix(read, codes, trained) for trait, codes in traits.items()}
        each = list(batches(rows, sequence.batch))
        figures = [
            np.mean([total_variation(mix(tokens, codes, trained), whole[trait]) for tokens in each])
            for trait, codes in traits.items()
        ]
        tenths = [np.concatenate(part) for part in np.array_split(np.array(each, object), 10) if len(part)]
        worst = max(
            total_variation(mix(tokens, traits["length"], trained), whole["length"]) for tokens in tenths
        )
        left_out = lengths[order].sum() - len(read)
        print(
            f"| {name} | {len(each)} | {' | '.join(f'{figure:.2f}' for figure in figures)} "
            f"| {worst:.2f} | {left_out:,} |"
        )


if __name__ == "__main__":
    main()
