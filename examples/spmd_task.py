"""A network of one's own, to shard over unequal GPUs: `shardwright spmd plan spmd_task:task --cluster …`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shardwright.spmd.task import Task


class Pictures(nn.Module):
    """Convolutions with BatchNorm and dropout, a head; nothing that lists of known models have."""

    def __init__(self, channels: int = 64, layers: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(layers))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + self.dropout(nn.functional.relu(norm(layer(x))))
        return self.head(x.mean((2, 3)))


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(module(batch["images"]), batch["labels"])


def batch(step: int) -> dict[str, Tensor]:
    """Return noise whose brightest channel is the class, the same for the same step."""
    random = torch.Generator().manual_seed(step)
    labels = torch.randint(3, (48,), generator=random)
    tint = nn.functional.one_hot(labels, 3).float()[:, :, None, None]
    return {"images": torch.randn(48, 3, 32, 32, generator=random) + 0.2 * tint, "labels": labels}


def task() -> Task:
    return Task(
        build=Pictures,
        batch=batch(0),
        loss=loss,
        batches=batch,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    )
