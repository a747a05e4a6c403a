"""Train on an export, stop after a batch, and go on with another number of ranks on the same stream of tokens."""

import hashlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from dagster_divorder.torch import SequenceStream

folder, stop, checkpoint = sys.argv[1], int(sys.argv[2]), Path("checkpoint.pt")
dist.init_process_group("gloo")
torch.manual_seed(0)
stream = SequenceStream(folder, micro_batch=1)  # of this rank; torchrun says which, and of how many
vocabulary = stream.dataset.export.manifest["tokenizer"]["vocabulary"]
model = torch.nn.Sequential(torch.nn.Embedding(vocabulary, 32), torch.nn.Linear(32, vocabulary))
parallel, tokens = torch.nn.parallel.DistributedDataParallel(model), hashlib.sha256()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    stream.load_state_dict(saved["stream"])
for rows in stream:
    logits = parallel(rows["input_ids"])
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), rows["labels"][:, 1:].flatten())
    (loss * stream.sampler.step / stream.sampler.batch).backward()
    of_ranks = [torch.empty_like(rows["input_ids"]) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, rows["input_ids"])
    tokens.update(torch.cat(of_ranks).numpy())
    batch, inside = divmod(stream.state_dict()["samples"], stream.sampler.batch)
    if not inside:
        optimizer.step(), optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"batch {batch} loss {loss.item():.4f} tokens {tokens.hexdigest()[:16]}", flush=True)
            states = {"model": model, "optimizer": optimizer, "stream": stream}
            torch.save({name: of.state_dict() for name, of in states.items()}, checkpoint)
        tokens = hashlib.sha256()
        if batch == stop:
            break
dist.destroy_process_group()
