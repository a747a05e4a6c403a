"""Models of trainers' samplers over row numbers; tests compare them with the real packages (docs/trainers.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dagster_divorder.trainers.trainer import (
    Reading,
    Rows,
    Trainer,
    consecutive,
    from_ranks,
    from_workers,
    in_order,
    shuffled,
)

MEGATRON = Trainer(
    name="megatron",
    title="Megatron-LM (GPTDataset)",
    formats=("megatron",),
    shares="micro-batches",
    lines="""\
# pretrain_gpt.py, before the datasets are built: write_cache of {path}/megatron_cache.py
--train-data-path {path}/{prefix}
--data-cache-path {path}.cache
--train-samples {samples}
--seq-length {sequence_length}
--global-batch-size {batch}
--micro-batch-size {micro_batch}
--dataloader-type single
--seed 0
""",
    resumes="resumes exactly: consumed_samples counts sequences of all ranks",
)


def _olmo_core_by_index(reading: Reading) -> Rows:
    """The index files list the plan's batches one after another. An epoch without a whole batch is empty."""
    return in_order(reading) if reading.rows >= reading.batch else np.empty((0, reading.batch), np.int64)


OLMO_CORE = Trainer(
    name="olmo-core",
    title="OLMo-core (NumpyFSLDataLoader)",
    formats=("olmo",),
    best=_olmo_core_by_index,
    shares="rows",
    lines="""\
dataset = NumpyFSLDatasetConfig(
    paths=["{pattern}/{prefix}-*.npy"],
    # label_mask_paths=["{pattern}/{prefix}-*.mask"],  # where the export has them: padding, and what is not trained on
    expand_glob=True,
    sequence_length={sequence_length},
    dtype=NumpyDatasetDType.uint16,  # as in the export's manifest.json
    work_dir="{path}",
)
data_loader = NumpyDataLoaderConfig(
    global_batch_size={tokens},
    seed=0,  # of the index files
    work_dir="{path}",  # where they are
)
""",
    resumes="resumes exactly: tokens_processed counts tokens of all ranks",
)


def sequential(reading: Reading) -> Rows:
    """The rows in stored order, dealt by accelerate's BatchSamplerShard: micro-batch k goes to rank k mod W, with any
    number of workers. With several ranks the last step is filled up with the epoch's first rows. A last global batch of
    fewer accumulated steps is an optimizer step too."""
    step, order = reading.world_size * reading.micro_batch, np.arange(reading.length)
    missing = -len(order) % step if reading.world_size > 1 else 0
    return consecutive(np.append(order, np.resize(order, missing)), reading.batch, drop_last=False)


HF_TRAINER = Trainer(
    name="hf-trainer",
    title="Hugging Face Trainer",
    formats=("parquet",),
    best=sequential,
    shares="micro-batches",
    lines="""\
TrainingArguments(
    train_sampling_strategy="sequential",
    per_device_train_batch_size={micro_batch},
    gradient_accumulation_steps={accumulation},
    max_steps={steps},
)
""",
    resumes="resumes exactly if the global batch is unchanged: it counts steps and skips as many batches",
)
# Packing would make other rows, and max_length cut them.
TRL = replace(
    HF_TRAINER,
    name="trl",
    title="TRL SFTTrainer",
    lines="""\
SFTConfig(
    train_sampling_strategy="sequential",
    packing=False,
    max_length=None,
    padding_free=True,
    per_device_train_batch_size={micro_batch},
    gradient_accumulation_steps={accumulation},
    max_steps={steps},
)
""",
)


def _torchtitan(reading: Reading) -> Rows:
    """Each rank reads a contiguous slice of the rows, and each of its n workers the whole slice, so every row is read n
    times."""
    parts = np.array_split(np.arange(reading.length), reading.world_size)
    ranks = [from_workers([part] * max(reading.workers, 1), reading.micro_batch) for part in parts]
    return from_ranks(ranks, reading)[: reading.steps]


def _torchtitan_without_workers(reading: Reading) -> Rows:
    return _torchtitan(replace(reading, workers=0))


TORCHTITAN = Trainer(
    name="torchtitan",
    title="torchtitan 0.3 (HuggingFaceTextDataLoader, map-style)",
    formats=("parquet",),
    default=_torchtitan,
    best=_torchtitan_without_workers,
    shares="micro-batches",
    lines="""\
DATASETS["plan"] = DatasetConfig(
    path="{pattern}",
    loader=lambda path: load_dataset("parquet", data_dir=path, split="train"),
    sample_processor=lambda row: row["input_ids"],  # with a tokenizer whose encode returns what it is given
)
dataloader = HuggingFaceTextDataLoader.Config(dataset="plan", num_workers=0)
training = TrainingConfig(seq_len={window}, local_batch_size={micro_batch}, global_batch_size={batch}, steps={steps})
""",
    reads_labels=False,
    joins_rows=True,
    resumes="refuses: it asserts the same data-parallel degree",
    parts="ranks",
)
TORCHTITAN_GRAIN = Trainer(
    name="torchtitan-grain",
    title="torchtitan, main since August 2026 (GrainDataLoader)",
    formats=("parquet",),
    best=_torchtitan_without_workers,
    shares="micro-batches",
    lines="""\
rows = SingleDatasetConfig(
    source=HuggingFaceRandomAccessSource.Config(
        path="parquet", split="train", load_dataset_kwargs={{"data_dir": "{pattern}"}}
    ),
    processor=PlanRow.Config(),  # see docs/trainers/torchtitan_grain.md
)
dataloader = GrainDataLoader.Config(dataset=ConcatThenSplitPackingConfig(dataset=rows), shuffle=False)
training = TrainingConfig(
    max_context_length={window},
    num_tokens_per_microbatch_per_dp_rank={micro_batch} * {window},
    num_tokens_per_train_step={batch} * {window},
    steps={steps},
)
""",
    resumes="refuses: it asserts the same data-parallel degree",
    parts="ranks",
)


def _mds(reading: Reading) -> Rows:
    """StreamingDataset without shuffling, on one machine or with one canonical node. Rows are repeated until all ranks
    have the same number. An incomplete last batch is read."""
    rows, missing = np.arange(reading.length), -reading.length % reading.world_size
    end = reading.length - reading.world_size + 1
    return consecutive(np.append(rows, rows[end - missing : end]), reading.batch, drop_last=False)


MDS = Trainer(
    name="mds",
    title="MosaicML Streaming (MDS); on several machines only with its lines",
    formats=("mds",),
    default=_mds,
    best=_mds,
    lines="""\
StreamingDataset(
    local="{path}",
    shuffle=False,
    num_canonical_nodes=1,
    batch_size={rank_batch},
)
""",
    resumes="resumes exactly if num_canonical_nodes and the global batch are unchanged",
)


def _litdata(reading: Reading, *, drop_last: bool) -> Rows:
    """Without shuffling every worker of every rank reads a contiguous slice of whole micro-batches, rank by rank and
    within it worker by worker. If micro-batches cannot be shared equally, the first workers of a rank read one more. A
    single rank keeps the other rows by default, in the slice of one worker."""
    share, workers = reading.length // reading.micro_batch // reading.world_size, max(reading.workers, 1)
    counts = reading.micro_batch * (share // workers + (np.arange(workers) < share % workers))
    if not drop_last:
        counts[share % workers] += reading.length % reading.micro_batch
    slices = np.split(np.arange(counts.sum()), counts.cumsum()[:-1])
    rows = from_workers(slices, reading.micro_batch)
    return from_ranks([rows + rank * counts.sum() for rank in range(reading.world_size)], reading)


LITDATA = Trainer(
    name="litdata",
    title="litdata",
    formats=("litdata",),
    default=lambda reading: _litdata(reading, drop_last=reading.world_size > 1),
    best=lambda reading: _litdata(reading, drop_last=True),
    shares="micro-batches",
    lines="""\
dataset = StreamingDataset("{path}", shuffle=False, drop_last=True)
loader = StreamingDataLoader(dataset, batch_size={micro_batch}, num_workers={workers})
""",
    resumes="redistributes the remaining rows, not in the order of the plan",
    parts="workers",
)


_DISTRIBUTED = """\
sampler = DistributedSampler(dataset, num_replicas={world_size}, rank=rank, shuffle=False, drop_last=True)
loader = StatefulDataLoader(dataset, batch_size={micro_batch}, sampler=sampler, drop_last=True)
"""
DATALOADER = Trainer(
    name="dataloader",
    title="PyTorch DataLoader or torchdata StatefulDataLoader",
    formats=("parquet",),
    shares="rows",
    lines=_DISTRIBUTED,
    resumes="its state counts a rank's own rows, so twice as many ranks resume at twice the position; with "
    "SequenceDataset and GlobalBatchSampler of dagster_divorder.torch it counts the rows of all ranks and resumes "
    "exactly",
)
DATATROVE = replace(
    DATALOADER,
    name="datatrove",
    title="datatrove's DatatroveFolderDataset in a PyTorch DataLoader",
    formats=("ds",),
    lines="""\
dataset = DatatroveFolderDataset(
    "{path}",
    seq_len={window},
    filename_pattern="*.ds",
    token_size=2,  # 4 if the dtype in the export's manifest.json is uint32
    return_positions=True,
)
"""
    + _DISTRIBUTED,
    reads_labels=False,
    resumes="its state counts a rank's own rows, so twice as many ranks resume at twice the position",
)


def _lightning(reading: Reading) -> Rows:
    """With several ranks Lightning replaces the sampler with a shuffling one, even for a DataLoader with shuffle=False.
    An incomplete last batch is an optimizer step too."""
    if reading.world_size > 1:
        return shuffled(reading)
    return consecutive(np.arange(reading.length), reading.batch, drop_last=False)


def _lightning_in_order(reading: Reading) -> Rows:
    """Rows that do not fill a step of all ranks are dropped."""
    step = reading.world_size * reading.micro_batch
    return consecutive(np.arange(reading.length // step * step), reading.batch, drop_last=False)


LIGHTNING = Trainer(
    name="lightning",
    title="Lightning Trainer",
    formats=("parquet",),
    default=_lightning,
    best=_lightning_in_order,
    shares="rows",
    lines=_DISTRIBUTED
    + "trainer = Trainer(use_distributed_sampler=False, accumulate_grad_batches={accumulation}, max_steps={steps})\n",
    resumes="a DataLoader restarts its epoch; a StatefulDataLoader's state counts a rank's own rows",
)
