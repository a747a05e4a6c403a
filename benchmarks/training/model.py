"""A decoder so small that two cores train it in about a minute: it tells one order of the same tokens from another.

Letters: V vocabulary, L tokens a sequence, S sequences, B sequences a batch.
The same sequences in the same order and the same seed give the same losses on one type of machine: one thread, and all
randomness is the initialisation.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WIDTH, LAYERS, HEADS = 96, 3, 3
LEARNING_RATE, WARM_UP, LAST_RATE = 3e-3, 0.05, 0.1


class Layer(nn.Module):
    """Attention, then a feed-forward of four times the width, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = self.mixed(self.first(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (query @ key.transpose(2, 3) * (WIDTH // HEADS) ** -0.5).masked_fill(later, -torch.inf)
        seen = scores.softmax(-1) @ value
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(torch.relu(self.up(self.second(x))))


class Decoder(nn.Module):
    """Next-token scores (B, L, V); the token table is also the head."""

    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(length, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                scale = 0.02 / (2 * LAYERS) ** 0.5 if name.endswith(("out.weight", "down.weight")) else 0.02
                nn.init.normal_(weight, std=scale)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.tokens.weight.T


def losses_of(model: Decoder, ids: Tensor) -> Tensor:
    """Nats a token that each of the sequences, int64 (B, L), takes, float32 (B,)."""
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(ids[:, :-1])
    each = cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return each.view(len(ids), -1).mean(1)


def train(stream: np.ndarray, vocabulary: int, batch: int, seed: int) -> tuple[Decoder, np.ndarray]:
    """A decoder trained once on sequences (S, L) in batches of `batch` consecutive ones, and the loss of each batch."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Decoder(vocabulary, stream.shape[1])
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    steps = len(stream) // batch
    losses = np.empty(steps)
    for step in range(steps):
        done = step / steps
        for group in optimiser.param_groups:
            rate = min((step + 1) / (WARM_UP * steps), 1.0 - (1.0 - LAST_RATE) * done)
            group["lr"] = LEARNING_RATE * rate
        ids = torch.from_numpy(stream[step * batch : (step + 1) * batch].astype(np.int64))
        loss = losses_of(model, ids).mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses[step] = loss.item()
    return model, losses


@torch.no_grad()
def evaluate(model: Decoder, sequences: np.ndarray, batch: int = 64) -> np.ndarray:
    """Nats a token that each of the sequences (S, L) takes, float64 (S,)."""
    torch.set_num_threads(1)
    parts = [
        losses_of(model, torch.from_numpy(sequences[at : at + batch].astype(np.int64))).double().numpy()
        for at in range(0, len(sequences), batch)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)
