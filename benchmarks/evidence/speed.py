"""What do the data path and all that is noted cost a training, beside the bare loop over random tensors of its shape?

    python benchmarks/evidence/speed.py            the tiny preset on this machine's processor, one thread
    python benchmarks/evidence/speed.py --model 50M --device cuda

Both loops in turn, three times; the share is of processor seconds, of wall time on a GPU.
"""

from __future__ import annotations

import argparse
import time

from dagster_divorder.models.training import (
    PRESETS,
    Task,
    _dtype,
    in_memory_export,
    make_model,
    train,
)


def main() -> None:
    import numpy as np
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=PRESETS, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=500, help="of two epochs each")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()
    clock = time.process_time if given.device == "cpu" else time.perf_counter
    classes, rows = PRESETS[given.model].vocabulary, given.steps // 2 * given.batch
    draw = np.random.default_rng(0)
    arrays = {
        "ids": draw.integers(0, classes, (rows, given.length)).astype(np.uint16),
        "lengths": np.full(4 * rows, given.length // 4),
        "counts": np.full(rows, 4),
        "epochs": np.tile(np.arange(rows), (2, 1)),
        "padded": np.array([False]),
    }
    task = Task(
        model=given.model,
        classes=np.arange(classes, dtype=np.int32),
        class_count=classes,
        seed=0,
        learning_rate=1e-3,
        schedule="cosine",
        batch=given.batch,
        epochs=2,
        attend_within_documents=False,
        device=given.device,
        heldout={},
    )

    def bare() -> None:
        model = make_model(given.model, classes, given.length, 0).to(given.device)
        optimiser, dtype = torch.optim.AdamW(model.parameters(), lr=1e-3), _dtype(given.device)
        ids = torch.randint(0, classes, (given.batch, given.length), device=given.device)
        for _ in range(given.steps):
            with torch.autocast(given.device, dtype, enabled=dtype != torch.float32):
                scores = model(input_ids=ids[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()

    torch.set_num_threads(1)
    shares = []
    for _ in range(3):
        seconds = []
        for loop in (bare, lambda: train(task, in_memory_export(arrays, given.batch))):
            begin = clock()
            loop()
            seconds.append(clock() - begin)
        shares.append(seconds[0] / seconds[1])
        rates = [given.steps / of for of in seconds]
        print(f"bare {rates[0]:.1f} steps/s, training {rates[1]:.1f}: {shares[-1]:.0%}", flush=True)
    print(
        f"{given.model}, {given.batch} x {given.length}: {np.median(shares):.0%} of the bare loop's steps a second"
    )


if __name__ == "__main__":
    main()
