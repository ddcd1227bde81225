"""Single-process training with nothing of the runtime but the forward pass of a whole model: the oracle of the plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from tests.runtime.samples import tokens_of

from shardwright.plans.plan import Plan, Recompute
from shardwright.runtime.model.attention import documents_of
from shardwright.runtime.model.chunk import Chunk, forward, table_of
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import as_kept, beside, seeded
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.parameters import trained_parameters, unit_parameters
from shardwright.runtime.state.recipe import Recipe
from shardwright.spec.adapter import Adapter
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
    job = plan.job
    return _run(plan.model, job.adapter, job.global_batch, job.seq_len, recipe, steps, seed, details, end)


def merged(
    frozen: dict[str, torch.Tensor], trained: dict[str, torch.nn.Parameter], scale: float
) -> dict[str, torch.Tensor]:
    """Return the weights of a model with its adapters in them: W + scale B A, under DoRA in rows of other lengths."""
    weights = dict(frozen)
    for name in (name.removesuffix(".lora_a") for name in trained if name.endswith(".lora_a")):
        weight = frozen[f"{name}.weight"] + scale * trained[f"{name}.lora_b"] @ trained[f"{name}.lora_a"]
        if f"{name}.lengths" in trained:
            weight = weight / weight.detach().norm(dim=1, keepdim=True) * trained[f"{name}.lengths"][:, None]
        weights[f"{name}.weight"] = weight
    return weights


@cache
def _run(
    model: Model, adapter: Adapter | None, batch: int, seq_len: int, recipe: Recipe, steps: int, seed: int,
    details: Details, end: int | None,
) -> Reference:  # fmt: skip
    units = range(len(model.layers) + 2)
    initial = seeded(model, seed)
    if adapter is not None:
        initial = beside(as_kept(initial, adapter), seed)
    parameters = [p for unit in units for p in trained_parameters(model, adapter, unit, model.vocab)]
    weights = {p.name: torch.nn.Parameter(initial(p)) for p in parameters}
    frozen = (
        {p.name: initial(p) for unit in units for p in unit_parameters(model, unit, model.vocab)} if adapter else {}
    )
    chunk = Chunk(
        units=tuple(range(len(model.layers) + 2)), weights=weights, model=model, details=details, tensor=TensorGroup(),
        recompute=Recompute(), positions=torch.arange(seq_len),
        table=table_of(model, details, torch.arange(seq_len)),
    )  # fmt: skip
    hidden = [weights[p.name] for p in parameters if recipe.method == "muon" and p.hidden]
    momenta = [torch.zeros_like(w) for w in hidden]
    matrices = [weights[p.name] for p in parameters if p.decayed and not (recipe.method == "muon" and p.hidden)]
    others = [weights[p.name] for p in parameters if not p.decayed]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer: torch.optim.Optimizer
    if recipe.method != "sgd":
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
        whole = replace(chunk, weights=merged(frozen, weights, adapter.scale)) if adapter else chunk
        return forward(whole, tokens, targets, documents=documents_of(tokens, end)) / (batch * seq_len)

    for step in range(steps):
        loss = loss_of(step)
        for weight in weights.values():
            weight.grad = None
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(weights.values()), recipe.clip or torch.inf)))
        if recipe.method == "sgd":
            for weight in matrices:
                weight.data.mul_(1 - recipe.learning_rate * recipe.weight_decay)
        optimizer.step()
        if recipe.method == "adamw8bit":
            for state in (optimizer.state[matrix] for matrix in matrices):
                for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
                    state[name].copy_(in_8_bits(state[name], signed=signed))
        for weight, momentum in zip(hidden, momenta, strict=True):
            muon_step(weight, momentum, recipe)
        losses.append(float(loss.detach()))
    held_out = float(loss_of(steps).detach())
    return Reference(losses, norms, held_out, {name: weight.detach() for name, weight in weights.items()})


def in_8_bits(values: torch.Tensor, *, signed: bool) -> torch.Tensor:
    """Return what is left of values in blocks of 256: the nearest of the numbers of the dynamic code, whose decades
    0.1 to 1, 0.01 to 0.1, … have half as many each (arXiv 2110.02861), times the largest value of the block."""
    decades = [torch.linspace(0.1, 1.0, 2**i * (1 if signed else 2) + 1) for i in range(7)]
    positive = torch.cat([(d[1:] + d[:-1]) / 2 * 10.0 ** (i - 6) for i, d in enumerate(decades)])
    code = torch.cat([positive, torch.tensor([0.0, 1.0]), -positive if signed else positive[:0]])
    blocks = values.reshape(-1, 256)
    largest = torch.stack([block[block.abs().argmax()] for block in blocks])[:, None]
    ordered = code.sort().values
    upper = torch.searchsorted(ordered, blocks / largest.where(largest != 0.0, 1.0)).clamp(1, 255)
    low, high = ordered[upper - 1], ordered[upper]
    scaled = blocks / largest.where(largest != 0.0, 1.0)
    return (torch.where(scaled - low <= high - scaled, low, high) * largest).reshape(values.shape)


def muon_step(weight: torch.nn.Parameter, momentum: torch.Tensor, recipe: Recipe) -> None:
    """Muon as torch.optim has it (adjust_lr_fn "match_rms_adamw"), but for its bf16, whose rounding would hide what is
    compared."""
    gradient = weight.grad
    assert gradient is not None
    momentum.lerp_(gradient, 1 - recipe.muon_momentum)
    x = gradient.lerp(momentum, recipe.muon_momentum)
    x = x.T if weight.shape[0] > weight.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x.T if weight.shape[0] > weight.shape[1] else x
    weight.data.mul_(1 - recipe.learning_rate * recipe.weight_decay)
    weight.data.sub_(x, alpha=recipe.learning_rate * 0.2 * max(weight.shape) ** 0.5)
