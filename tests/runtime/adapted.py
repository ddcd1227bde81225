"""Adapters trained by PEFT in one process: the oracle of plans that train them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.runtime.samples import tokens_of

from shardwright import Model, Plan
from shardwright.runtime.model.initial import as_kept, beside, seeded
from shardwright.runtime.model.parameters import ModelParameter, trained_parameters
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.storage.weights import open_adapters, save_adapters, save_weights, write_config, write_index


@dataclass
class Trained:
    """Losses, gradient norms, the loss on the samples that would be next, the last step's gradients and the adapters."""

    losses: list[float]
    norms: list[float]
    held_out: float
    gradients: dict[str, torch.Tensor]
    adapters: dict[str, torch.Tensor]


def adapter_parts(plan: Plan) -> Iterator[ModelParameter]:
    model = plan.model
    for unit in range(len(model.layers) + 2):
        yield from trained_parameters(model, plan.job.adapter, unit, model.vocab)


def write_base(folder: Path, model: Model, seed: int) -> None:
    """Write seeded weights as transformers keeps them."""
    save_weights(folder, model, range(len(model.layers) + 2), seeded(model, seed), torch.float32)
    write_index(folder, model, torch.float32)
    write_config(folder, model, None, torch.float32)


def peft_model(base: Path, adapters: Path, *, nf4: bool = False) -> Any:
    """Return a model of transformers with the adapters of a folder, which are trained, beside weights that bitsandbytes
    keeps in `nf4`."""
    import peft
    import transformers

    transformers.logging.set_verbosity_error()
    settings = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}
    quantised = {"quantization_config": transformers.BitsAndBytesConfig(**settings)} if nf4 else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", **quantised)
    with warnings.catch_warnings():  # PEFT 0.21 asks for what transformers 5 deprecates
        warnings.simplefilter("ignore", FutureWarning)
        return peft.PeftModel.from_pretrained(model, adapters, is_trainable=True)


def trained_by_peft(plan: Plan, recipe: Recipe, steps: int, seed: int, folder: Path) -> Trained:
    """Train on whole global batches with transformers, PEFT and torch.optim, from weights and adapters of a seed."""
    adapter, job = plan.job.adapter, plan.job
    assert adapter is not None
    write_base(folder / "base", plan.model, seed)
    initial = beside(as_kept(seeded(plan.model, seed), adapter), seed)
    values = {part.name: initial(part) for part in adapter_parts(plan)}
    save_adapters(folder / "adapters", plan.model, adapter, values.__getitem__, str(folder / "base"))
    model = peft_model(folder / "base", folder / "adapters", nf4=adapter.frozen == "nf4")
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    assert sum(weight.numel() for weight in weights) == sum(value.numel() for value in values.values())
    optimizer = optimizer_of(weights, recipe)
    losses, norms = [], []

    def loss_of(step: int) -> torch.Tensor:
        first = step * job.global_batch
        samples = torch.stack(
            [torch.from_numpy(tokens_of(first + i, plan.model.vocab, job.seq_len)) for i in range(job.global_batch)]
        )
        logits = model(input_ids=samples[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())

    for step in range(steps):
        loss = loss_of(step)
        model.zero_grad()
        loss.backward()
        gradients = {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, recipe.clip or torch.inf)))
        if recipe.method == "sgd":
            for weight in weights:
                weight.data.mul_(1 - recipe.learning_rate * recipe.weight_decay * (weight.dim() > 1))
        optimizer.step()
        losses.append(float(loss.detach()))
    held_out = float(loss_of(steps).detach())
    save_peft(model, folder / "trained")
    return Trained(losses, norms, held_out, own_names(plan, gradients), adapters_in(plan, folder / "trained"))


def optimizer_of(weights: list[torch.nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.method == "sgd":
        return torch.optim.SGD(weights, lr=recipe.learning_rate, momentum=recipe.momentum)
    groups = [
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.epsilon)


def save_peft(model: Any, folder: Path) -> None:
    """Have PEFT write adapters; its config says nothing that ours does not."""
    model.save_pretrained(folder)
    assert json.loads((folder / "adapter_config.json").read_text())["peft_type"] == "LORA"


def adapters_in(plan: Plan, folder: Path) -> dict[str, torch.Tensor]:
    """Return the adapters that PEFT wrote, by our names."""
    assert plan.job.adapter is not None
    files = open_adapters(folder, plan.job.adapter)
    return {part.name: files.whole(plan.model, part) for part in adapter_parts(plan)}


def own_names(plan: Plan, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return PEFT's gradients by our names."""
    from shardwright.runtime.storage.weights import peft_name

    found = {
        name.replace(".default", "").replace("magnitude_vector.weight", "magnitude_vector"): value
        for name, value in gradients.items()
    }
    return {part.name: found[peft_name(plan.model, part)] for part in adapter_parts(plan)}
