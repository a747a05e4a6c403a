"""Has Megatron's GPTDataset read the sequences of this export as they are, in their order.

Megatron shuffles what it reads. The order that it has drawn it keeps in files, whose name is a hash of its
configuration; this script writes them, with the export's order. In `train_valid_test_datasets_provider` of
pretrain_gpt.py, before the datasets are built, with the folder of the export on PYTHONPATH:

    from megatron_cache import write_cache
    write_cache(config, train_val_test_num_samples[0])

and start it with what `divorder verify EXPORT --trainer megatron` shows:

    --train-data-path EXPORT/train-TAG --seq-length L --train-samples N

where L is `sequence_length` in the export's manifest.json, and N at most `sequences` times `epochs`. Tried with
megatron-core 0.16.1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

FOLDER = Path(__file__).resolve().parent


def write_cache(config: Any, num_samples: int) -> None:
    """Write the files that a GPTDataset of this GPTDatasetConfig and this number of training samples will find.

    In a distributed run the first rank does, as it builds the datasets before the others. A sample is a sequence of
    the export; of several epochs they are the sequences of the first, then those of the second, and so on.

    Raises:
        ValueError: the configuration does not fit the export, or would spoil its order or its masks.
    """
    import torch
    from megatron.core.datasets.gpt_dataset import GPTDataset
    from megatron.core.datasets.utils import Split

    begins = _array("doc_rows")
    rows, epochs = len(begins) - 1, _array("epochs")
    order = np.arange(rows) if epochs is None else epochs.reshape(-1)
    prefix = _prefix(config)
    _check(config, num_samples, len(order))
    low = GPTDataset.build_low_level_dataset(prefix, config)
    _check_masks(config, np.add.reduceat(low.sequence_lengths, begins[:-1])[order[: num_samples - 1]])
    if torch.distributed.is_initialized() and torch.distributed.get_rank():
        return

    class Named(GPTDataset):
        """A GPTDataset that knows the name of its files and reads none."""

        def _build_document_sample_shuffle_indices(self) -> tuple[None, None, None]:
            return None, None, None

    Named.__name__ = GPTDataset.__name__
    named = Named(low, prefix, np.arange(len(low), dtype=np.int32), num_samples, Split.train, config)
    folder = config.path_to_cache or os.path.join(low.path_prefix, "cache", "GPTDataset_indices")
    os.makedirs(folder, exist_ok=True)

    last = begins[1:] - 1
    # Sample i is from entry i of the sample index to entry i + 1, both in it: every second one is a sequence. There is
    # one entry more than samples, or Megatron calls the dataset too short.
    samples = np.zeros((max(2 * rows, num_samples + 1), 2), np.int32)
    samples[0 : 2 * rows : 2, 0] = begins[:-1]
    samples[1 : 2 * rows : 2, 0] = last
    samples[1 : 2 * rows : 2, 1] = low.sequence_lengths[last] - config.add_extra_token_to_sequence
    shuffle = 2 * order[:num_samples]
    beginning = f"{named.unique_description_hash}-GPTDataset-train-"
    for name, write in {
        "document_index.npy": lambda file: np.save(file, np.arange(len(low), dtype=np.int32)),
        "sample_index.npy": lambda file: np.save(file, samples),
        "shuffle_index.npy": lambda file: np.save(
            file, shuffle.astype(np.uint32 if len(samples) < 1 << 32 else np.int64)
        ),
        "description.txt": lambda file: file.write(named.unique_description.encode()),
    }.items():
        _write(os.path.join(folder, beginning + name), write)


def _manifest() -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(
        (FOLDER.with_name(f"_{FOLDER.name}") / "manifest.json").read_bytes()
    )
    return manifest


def _array(name: str) -> Any:
    """An array of the export; None if it has none of this name."""
    files = [file for file in _manifest()["files"] if file.endswith(f"{name}.npy")]
    return np.load(FOLDER / files[0], mmap_mode="r") if files else None


def _prefix(config: Any) -> str:
    """The name by which Megatron calls the export, which is part of the hash."""
    here = FOLDER / _manifest()["prefix"]
    if config.split is not None:
        raise ValueError(
            f"split is {config.split!r}, by which Megatron would cut the export up; expected none: name it by "
            "--train-data-path (blend_per_split) in the place of --data-path and --split"
        )
    blend = (config.blend_per_split or [None])[0]
    prefixes = blend[0] if blend else []
    if len(prefixes) != 1:
        raise ValueError(
            f"the training data are {prefixes}; expected this export alone, since Megatron mixes several: "
            f"--train-data-path {here}"
        )
    prefix: str = prefixes[0]
    if not (os.path.exists(f"{prefix}.idx") and os.path.samefile(f"{prefix}.idx", f"{here}.idx")):
        raise ValueError(f"the training data are {prefix}; expected the export beside this script: {here}")
    return prefix


def _check(config: Any, num_samples: int, there: int) -> None:
    length = _manifest()["sequence_length"]
    if config.sequence_length != length:
        raise ValueError(
            f"sequence_length is {config.sequence_length}; expected {length}, that of the export: --seq-length {length}"
        )
    if num_samples is None or not 0 < num_samples <= there:
        raise ValueError(
            f"num_samples is {num_samples}; expected 1 to {there}, the sequences of the export's epochs: set "
            "--train-samples, or --train-iters times --global-batch-size, to it or below, or export more epochs"
        )


def _check_masks(config: Any, tokens: np.ndarray) -> None:
    """See that no sample but the last one, of so many tokens each, int (n,), is padded where that spoils masks: the
    padding of the first sample that a process reads, wherever a resume begins, goes into the mask of all after it."""
    padded = int((tokens < config.sequence_length).sum())
    resets = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
    if padded and not any(getattr(config, name) for name in resets):
        raise ValueError(
            f"{padded} samples before the last one are padded; where a process begins with one, Megatron masks the "
            "loss of its padding in all samples: set --reset-attention-mask, --reset-position-ids or --eod-mask-loss, "
            'or export with packing.method = "concat", where only the last sequence of an epoch is padded, and train '
            "on no more samples than one epoch has"
        )


def _write(path: str, write: Callable[[IO[bytes]], Any]) -> None:
    """Whole or not at all, whatever is there."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        write(file)
    os.replace(temporary, path)
