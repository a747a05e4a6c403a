"""Train on an export, stop, and go on with another number of processes on the same stream of tokens.

    torchrun --nproc-per-node 2 docs/train.py data/exports/parquet --stop-after 5
    torchrun --nproc-per-node 1 docs/train.py data/exports/parquet --stop-after 10

Each global batch is printed with the sha256 of its tokens, which is the same for any number of processes.
"""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from dagster_divorder.torch import SequenceStream

parser = argparse.ArgumentParser()
parser.add_argument("export")
parser.add_argument("--checkpoint", type=Path, default="checkpoint.pt")
parser.add_argument("--stop-after", type=int, help="global batches, counted from the first of the training")
arguments = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
stream = SequenceStream(arguments.export, micro_batch=1)
batch, tokens = stream.sampler.batch, hashlib.sha256()
vocabulary = stream.dataset.export.manifest["tokenizer"]["vocabulary"]
model = torch.nn.Sequential(torch.nn.Embedding(vocabulary, 32), torch.nn.Linear(32, vocabulary))
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
if arguments.checkpoint.exists():
    saved = torch.load(arguments.checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    stream.load_state_dict(saved["loader"])

for rows in stream:
    logits = parallel(rows["input_ids"])
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), rows["labels"][:, 1:].flatten())
    (loss * stream.sampler.step / batch).backward()
    of_ranks = [torch.empty_like(rows["input_ids"]) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, rows["input_ids"])
    tokens.update(torch.cat(of_ranks).numpy())
    number, inside = divmod(stream.state_dict()["samples"], batch)
    if inside == 0:
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"batch {number} loss {loss.item():.4f} tokens {tokens.hexdigest()}", flush=True)
        tokens = hashlib.sha256()
        if number == arguments.stop_after:
            break

if dist.get_rank() == 0:
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": stream.state_dict()}
    torch.save(states, arguments.checkpoint)
dist.destroy_process_group()
