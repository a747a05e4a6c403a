"""What Megatron's GPTDataset reads without cache files, against the model (with them: tests/write/exports).

Its sampler is not in the megatron-core wheel for Python 3.11: the models state it, consecutive micro-batches of all
ranks.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading
from tests.readers.made import write_export
from tests.write.exports.made import TAG

ROWS, LENGTH = 101, 4


@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "batch"), [(1, 16), (2, 16), (1, 101), (3, 50)])
def test_gpt_dataset_shuffles_as_the_model_does(epochs: int, batch: int, tmp_path: Path) -> None:
    """With a last epoch of many samples, and of so few that it is shuffled apart."""
    pytest.importorskip("megatron.core")
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    corpus = {"lengths": [LENGTH] * ROWS, "length": LENGTH, "end_of_text": False, "vocabulary": 60_000}
    rows = [ids for (ids,) in write_export(tmp_path / "export", "megatron", corpus)]
    prefix = str(tmp_path / f"export/train-{TAG}")
    reading = Reading(rows=ROWS, batch=batch, epochs=epochs, seed=7)
    config = GPTDatasetConfig(
        random_seed=7,
        sequence_length=LENGTH,
        blend_per_split=[([prefix], None), None, None],
        path_to_cache=str(tmp_path / "cache"),
        tokenizer=SimpleNamespace(
            vocab_size=60_002, eod=60_001, pad=60_000, unique_identifiers=OrderedDict()
        ),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low = GPTDataset.build_low_level_dataset(prefix, config)
    samples = reading.steps * batch
    data = GPTDataset(low, prefix, np.arange(ROWS, dtype=np.int32), samples, Split.train, config)
    read = [rows.index(data[at]["tokens"].tolist()) for at in range(samples)]
    np.testing.assert_array_equal(np.reshape(read, (-1, batch)), TRAINERS["megatron"].default(reading))
