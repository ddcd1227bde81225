"""Single-process training with nothing of the runtime but the forward pass of a whole model: the oracle of the plans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from tests.runtime.samples import tokens_of

from shardwright.plans.plan import Plan, Recompute
from shardwright.runtime.model.chunk import Chunk, forward, table_of
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import initial_values
from shardwright.runtime.model.masks import documents_of
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.parameters import unit_parameters
from shardwright.runtime.state.recipe import Recipe
from shardwright.spec.model import Model

DETAILS = Details()


@dataclass
class Reference:
    losses: list[float]
    norms: list[float]
    held_out: float
    weights: dict[str, torch.Tensor]


def reference_run(
    plan: Plan, recipe: Recipe, steps: int, seed: int, details: Details = DETAILS, end: int | None = None
) -> Reference:
    """Train on whole global batches with torch.optim and torch's own clipping."""
    return _run(plan.model, plan.job.global_batch, plan.job.seq_len, recipe, steps, seed, details, end)


@cache
def _run(
    model: Model, batch: int, seq_len: int, recipe: Recipe, steps: int, seed: int, details: Details, end: int | None
) -> Reference:
    weights = {
        p.name: torch.nn.Parameter(initial_values(p, seed))
        for unit in range(len(model.layers) + 2)
        for p in unit_parameters(model, unit, model.vocab)
    }
    chunk = Chunk(
        units=tuple(range(len(model.layers) + 2)), weights=weights, model=model, details=details, tensor=TensorGroup(),
        recompute=Recompute(), positions=torch.arange(seq_len),
        table=table_of(model, details, torch.arange(seq_len)),
    )  # fmt: skip
    matrices = [w for w in weights.values() if w.dim() > 1]
    others = [w for w in weights.values() if w.dim() == 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer: torch.optim.Optimizer
    if recipe.method == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.epsilon)
    else:
        optimizer = torch.optim.SGD(
            [{**g, "weight_decay": 0.0} for g in groups], lr=recipe.learning_rate, momentum=recipe.momentum
        )
    losses, norms = [], []

    def loss_of(step: int) -> torch.Tensor:
        samples = torch.stack(
            [torch.from_numpy(tokens_of(step * batch + i, model.vocab, seq_len)) for i in range(batch)]
        )
        tokens, targets = samples[:, :-1], samples[:, 1:]
        return forward(chunk, tokens, targets, documents=documents_of(tokens, end)) / (batch * seq_len)

    for step in range(steps):
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(weights.values()), recipe.clip or torch.inf)))
        if recipe.method == "sgd":
            for weight in matrices:
                weight.data.mul_(1 - recipe.learning_rate * recipe.weight_decay)
        optimizer.step()
        losses.append(float(loss.detach()))
    held_out = float(loss_of(steps).detach())
    return Reference(losses, norms, held_out, {name: weight.detach() for name, weight in weights.items()})
