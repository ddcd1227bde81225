"""Mixtures of experts: each token goes to the experts that the router picks, on whatever rank they are."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn import functional

from shardwright.runtime.model.details import Details
from shardwright.runtime.model.gated import Activation, Weights, inner, inside
from shardwright.runtime.model.parallel import ExpertGroup, TensorGroup, enter, exchange, leave
from shardwright.spec.model import Moe


def experts(
    x: torch.Tensor,
    weights: Weights,
    moe: Moe,
    activation: Activation,
    details: Details,
    tensor: TensorGroup,
    group: ExpertGroup,
) -> torch.Tensor:
    """Return the mixture of experts of `x` [micro_batch, positions, hidden]: each token's `top_k` experts, weighted by
    the router, and those that every token visits. No token is dropped."""
    whole = None if group.local and not moe.shared_width else enter(x, tensor)
    seen = x if group.local or whole is None else whole
    tokens = seen.reshape(-1, x.shape[-1])
    probabilities = functional.linear(tokens, weights["router.weight"]).float().softmax(dim=-1)
    chosen, expert = probabilities.topk(moe.top_k, dim=-1)
    if details.renormalise:
        chosen = chosen / chosen.sum(dim=-1, keepdim=True)
    order = expert.reshape(-1).argsort(stable=True)
    counts = torch.bincount(expert.reshape(-1), minlength=moe.experts)
    token = order // moe.top_k
    found = (_everywhere if group.size > 1 else _here)(tokens[token], counts, weights, activation, group)
    share = chosen.reshape(-1)[order].to(x.dtype)
    out = torch.zeros_like(tokens).index_add(0, token, found * share[:, None]).view_as(seen)
    if whole is not None and moe.shared_width:
        shared = inner(whole, inside(weights, "shared"), activation)
        if moe.shared_gate:
            shared = shared * functional.linear(whole, weights["shared_weight.weight"]).sigmoid()
        return out + leave(shared, tensor) if group.local else leave(out + shared, tensor)
    return out if group.local else leave(out, tensor)


def _here(
    rows: torch.Tensor, counts: torch.Tensor, weights: Weights, activation: Activation, group: ExpertGroup
) -> torch.Tensor:
    """Return the results of rows in the order of their experts, `counts` for each, all of which this rank has."""
    first = group.rank * len(counts)
    parts = torch.split(rows, counts.tolist())
    results = [
        inner(part, inside(weights, f"experts.{first + number}"), activation) for number, part in enumerate(parts)
    ]
    return torch.cat(results)


def _everywhere(
    rows: torch.Tensor, counts: torch.Tensor, weights: Weights, activation: Activation, group: ExpertGroup
) -> torch.Tensor:
    """Return the same where every rank of the group has a part of the experts: rows go there and back."""
    leaving = counts.view(group.size, -1)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving, group=group.group)
    sent, received = leaving.sum(dim=1).tolist(), arriving.sum(dim=1).tolist()
    there = exchange(rows, sent, received, group)
    expert = torch.arange(leaving.shape[1], device=rows.device).repeat(group.size)
    order = torch.repeat_interleave(expert, arriving.view(-1)).argsort(stable=True)
    results = _here(there[order], arriving.sum(dim=0), weights, activation, group)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return exchange(results[back], received, sent, group)
