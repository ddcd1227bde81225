"""Mixtures of experts: each token goes to the experts that the router picks, on whatever rank they are.

The rows of all experts of a rank are multiplied by grouped products, of whose groups the host knows nothing (in bf16 on
GPUs of compute capability 9 and 10, as PyTorch 2.13 has them; elsewhere it multiplies expert by expert, and reads where
each begins). Beside that it waits for the device only where ranks share experts, and then once a layer: for how many
rows come from and go to each rank. PyTorch 2.13 traces its grouped product in bf16 alone (`_meta_grouped_mm_common`
refuses other types), though it computes others too. These go through an operator of our own, which torch.compile takes
as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.nn import functional

from shardwright.runtime.model.details import Details
from shardwright.runtime.model.gated import Activation, Gate, Weights, clamped_gate, gated, inner, inside
from shardwright.runtime.model.parallel import ExpertGroup, TensorGroup, enter, exchange, leave
from shardwright.runtime.model.products import WHOLE, Products
from shardwright.spec.layer import Moe
from shardwright.spec.model import Model

Apart = Callable[..., torch.Tensor]  # calls its first argument with the others


def called(function: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    return function(*arguments)


class Inside(NamedTuple):
    """What is inside the experts of a rank: matrices [experts, outputs, inputs] and biases [experts, outputs] by part,
    and how they gate, where that is not by the activation alone."""

    parts: Mapping[str, torch.Tensor]
    biases: Mapping[str, torch.Tensor]
    activation: Activation
    gate: Gate | None


def experts(
    x: torch.Tensor,
    weights: Weights,
    moe: Moe,
    activation: Activation,
    model: Model,
    details: Details,
    tensor: TensorGroup,
    group: ExpertGroup,
    products: Products,
    apart: Apart = called,
) -> torch.Tensor:
    """Return the mixture of experts of `x` [micro_batch, positions, hidden]: each token's `top_k` experts, weighted by
    the router, and those that every token visits. No token is dropped."""
    # of a sequence in parts each rank keeps its own for the backward pass, and small results are gathered
    entering, cut = (x, tensor) if tensor.sharded else (enter(x, tensor), WHOLE)
    seen = x if group.local else enter(entering, cut)
    if moe.latent:
        low = functional.linear(entering, weights["latent_down.weight"])
        tokens = (low if group.local else enter(low, cut)).flatten(0, 1)
    else:
        tokens = seen.flatten(0, 1)
    scores = functional.linear(entering, weights["router.weight"], weights.get("router.bias"))
    scores = scores if group.local else enter(scores, cut)
    chosen, expert = routed(scores.flatten(0, 1).float(), weights.get("balance.bias"), moe, model, details)
    order = expert.reshape(-1).argsort(stable=True)
    counts = _counted(expert.reshape(-1), moe.experts)
    token = order // moe.top_k
    parts = {part: _stacked(weights, part) for part in (("gate", "up", "down") if moe.gated else ("up", "down"))}
    biases = {part: _stacked_biases(weights, part) for part in parts} if model.computed.expert_bias else {}
    if biases:
        biases["down"] = _widened(biases["down"], x.shape[-1], tensor.rank)
    within = Inside(parts=parts, biases=biases, activation=activation, gate=clamped_gate(model.computed))
    rows = tokens[token]
    # where ranks share experts, the host reads how many rows go where
    found = apart(_everywhere, rows, counts, within, group) if group.size > 1 else _here(rows, counts, within)
    visits = found.index_select(0, order.argsort()).view(*chosen.shape, -1)  # of each token, in place of each expert
    out = (visits * chosen.to(x.dtype)[..., None]).sum(dim=1)
    out = (functional.linear(out, weights["latent_up.weight"]) if moe.latent else out).view_as(seen)
    if moe.shared_width:
        after = tensor if group.local else WHOLE  # the sum of routed experts that are cut is that of shared ones too
        shared = inner(entering, inside(weights, "shared"), activation, products, cut, after)
        if moe.shared_gate:
            gate = functional.linear(entering, weights["shared_weight.weight"])
            shared = shared * (gate if group.local else enter(gate, cut)).sigmoid()
        out = out + shared
    return out if group.local else leave(out, tensor)


def routed(
    scores: torch.Tensor, balance: torch.Tensor | None, moe: Moe, model: Model, details: Details
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and numbers of each token's experts, [tokens, top_k]: the best by score, those of the best
    groups where there are groups. A bias that balances counts for the choice alone."""
    shares = scores.sigmoid() if model.computed.router_scores == "sigmoid" else scores.softmax(dim=-1)
    ranked = shares if balance is None else shares + balance.float()
    if moe.router_groups is not None:
        grouped = ranked.view(len(ranked), moe.router_groups, -1)
        best = grouped.amax(dim=-1) if balance is None else grouped.topk(2, dim=-1).values.sum(dim=-1)
        lowest = best.topk(moe.router_top_groups or 1, dim=-1).values.amin(dim=-1, keepdim=True)
        ranked = grouped.masked_fill((best < lowest)[..., None], -torch.inf).flatten(1)
    expert = ranked.detach().topk(moe.top_k, dim=-1).indices
    chosen = shares.gather(1, expert)
    if details.renormalise:
        chosen = chosen / chosen.sum(dim=-1, keepdim=True)
    return chosen if moe.router_scaling is None else chosen * moe.router_scaling, expert


def _counted(expert: torch.Tensor, experts: int) -> torch.Tensor:
    """Return how often each expert occurs, [experts]. (`bincount` would make the host wait.)"""
    return torch.zeros(experts, dtype=torch.int64, device=expert.device).scatter_add_(
        0, expert, torch.ones_like(expert)
    )


def _stacked(weights: Weights, part: str) -> torch.Tensor:
    """Return one matrix of all experts of this rank, [experts, outputs, inputs]. It is held as it is, or in parts: of
    an expert each, or of several under the name of the first."""
    blocks = [matrix.view(-1, *matrix.shape[-2:]) for matrix in _held(weights, f"{part}.weight")]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _stacked_biases(weights: Weights, part: str) -> torch.Tensor:
    """Return a bias of all experts of this rank, [experts, outputs]."""
    return torch.cat([bias.view(-1, bias.shape[-1]) for bias in _held(weights, f"{part}.bias")])


def _held(weights: Weights, part: str) -> list[torch.Tensor]:
    """Return a part of all experts of this rank, by the number of the first expert that a tensor is of."""
    names = [name for name in weights if name.startswith("experts.") and name.endswith(f".{part}")]
    return [weights[name] for name in sorted(names, key=lambda name: int(name.split(".")[1]))]


def _widened(bias: torch.Tensor, hidden: int, rank: int) -> torch.Tensor:
    """Return the biases [experts, hidden] of which this rank has a part, zero elsewhere: the ranks sum."""
    width = bias.shape[1]
    return bias if width == hidden else functional.pad(bias, (rank * width, hidden - (rank + 1) * width))


def _here(rows: torch.Tensor, counts: torch.Tensor, experts: Inside) -> torch.Tensor:
    """Return the results of rows in the order of their experts, `counts` for each, all of which this rank has."""
    ends = counts.cumsum(0).to(torch.int32)
    numbers = torch.arange(len(rows), device=rows.device, dtype=torch.int32)
    expert = torch.searchsorted(ends, numbers, right=True) if experts.biases else None

    def product(x: torch.Tensor, part: str) -> torch.Tensor:
        output = grouped_product(x, experts.parts[part].transpose(1, 2), ends)
        return output if expert is None else output + experts.biases[part].index_select(0, expert)

    up = product(rows, "up")
    if "gate" not in experts.parts:
        return product(experts.activation(up), "down")
    gate = product(rows, "gate")
    return product(experts.gate(gate, up) if experts.gate else gated(gate, up, experts.activation), "down")


def _everywhere(rows: torch.Tensor, counts: torch.Tensor, experts: Inside, group: ExpertGroup) -> torch.Tensor:
    """Return the same where every rank of the group has a part of the experts: rows go there and back."""
    leaving = counts.view(group.size, -1)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving, group=group.group)
    sent, received = torch.stack([leaving.sum(dim=1), arriving.sum(dim=1)]).tolist()
    there = exchange(rows, sent, received, group)
    expert = torch.arange(leaving.shape[1], device=rows.device).repeat(group.size)
    order = torch.repeat_interleave(expert, arriving.view(-1), output_size=len(there)).argsort(stable=True)
    results = _here(there[order], arriving.sum(dim=0), experts)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return exchange(results[back], received, sent, group)


def grouped_product(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the products [rows, n] of rows [rows, k] with the matrices [groups, k, n] of their groups, which end at
    `ends` [groups], int32."""
    if rows.dtype == torch.bfloat16:
        return functional.grouped_mm(rows, matrices, offs=ends)
    return cast("torch.Tensor", _grouped(rows, matrices, ends))


@torch.library.custom_op("shardwright::grouped_product", mutates_args=())
def _grouped(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the products of the groups' rows of `left` with their matrices in `right` or, where this is a matrix, of
    the groups' columns of `left` with their rows of `right`, [groups, …]."""
    return functional.grouped_mm(left, right, offs=ends)


@_grouped.register_fake
def _(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    product = left.new_empty((left.shape[0], right.shape[-1]))
    return product if right.dim() == 3 else product.new_empty((ends.shape[0], *product.shape))


def _saved(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    rows, matrices, ends = inputs
    ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, matrices, ends)


def _gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
    rows, matrices, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    of_matrices = _grouped(rows.t(), gradient, ends) if ctx.needs_input_grad[1] else None
    return _grouped(gradient, matrices.transpose(1, 2), ends), of_matrices, None


_grouped.register_autograd(_gradients, setup_context=_saved)
