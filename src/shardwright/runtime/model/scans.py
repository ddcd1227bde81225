"""Recurrences over the positions of a sequence, chunk by chunk: within a chunk by products of matrices or position by
position in stretches side by side, from chunk to chunk by their states. In the precision of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from shardwright.spec.mixers import DELTA_CHUNK

DELTA_PART = 16  # positions of a chunk whose decays of every channel are there at a time (fla: ops/kda/chunk_intra.py)
SELECTIVE_CHUNK = 64  # positions whose states are there at a time, each of channels times state
SELECTIVE_STRETCH = 8  # positions of a chunk that are gone through one by one: as many as there are stretches of them


def state_space_scan(
    value: torch.Tensor, decay: torch.Tensor, key: torch.Tensor, query: torch.Tensor, chunk: int
) -> torch.Tensor:
    """Return the outputs [batch, positions, heads, width] of a linear recurrence: with the state S = exp(decay) S' +
    key value^T of each head, query^T S. `decay` [batch, positions, heads] is at most 0; keys and queries [batch,
    positions, groups, state] are shared by the heads of a group."""
    batch, positions, heads, width = value.shape
    groups, chunk = key.shape[2], min(chunk, positions)
    padding = -positions % chunk
    value, decay, key, query = (
        _in_chunks(functional.pad(part, (0, 0) * (part.dim() - 2) + (0, padding)), 1, chunk)
        for part in (value, decay, key, query)
    )
    value = value.reshape(*value.shape[:3], groups, -1, width)
    passed = decay.cumsum(2).reshape(*decay.shape[:3], groups, -1)  # [batch, chunks, chunk, groups, heads of a group]
    between = passed[:, :, :, None] - passed[:, :, None]  # [batch, chunks, chunk of queries, chunk of keys, …]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=value.device).triu(1)
    weight = between.masked_fill(later[:, :, None, None], -torch.inf).exp()
    scores = torch.einsum("bcqgn,bckgn->bcqkg", query, key)[..., None] * weight
    out = torch.einsum("bcqkgh,bckghp->bcqghp", scores, value)
    left_over = (passed[:, :, -1:] - passed).exp()
    states = torch.einsum("bckgn,bckgh,bckghp->bcghnp", key, left_over, value)
    through = passed[:, :, -1].exp()[..., None, None]
    state, before = torch.zeros_like(states[:, 0]), []
    for number in range(states.shape[1]):
        before.append(state)
        state = through[:, number] * state + states[:, number]
    read = torch.einsum("bcqgn,bcghnp->bcqghp", query, torch.stack(before, dim=1))
    out = out + read * passed.exp()[..., None]
    return out.reshape(batch, -1, heads, width)[:, :positions]


def delta_scan(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, rate: torch.Tensor
) -> torch.Tensor:
    """Return the outputs [batch, positions, heads, value width] of the gated delta rule (arXiv 2412.06464 §3): the
    state S = exp(decay) S' of each head is corrected by rate key (value - S^T key)^T, and read by the query. `decay`
    [batch, positions, heads] may have one for each channel of a key, too (arXiv 2510.26692 §3).

    Within a chunk the corrections solve a triangular system (arXiv 2406.06484 §3); the state goes from chunk to chunk.
    """
    positions, chunk = query.shape[1], min(DELTA_CHUNK, query.shape[1])
    padding = -positions % chunk
    decay = decay if decay.dim() == key.dim() else decay[..., None]
    query, key, value, decay, rate = (  # [batch, heads, chunks, chunk, …]
        _in_chunks(functional.pad(part, (0, 0) * (part.dim() - 2) + (0, padding)).transpose(1, 2), 2, chunk)
        for part in (query, key, value, decay, rate)
    )
    passed = decay.cumsum(3)
    rated = key * rate[..., None]
    system, scores = _decayed((rated, query), key, passed)
    corrected, predicted = (
        torch.linalg.solve_triangular(system, side, upper=False, unitriangular=True)
        for side in (value * rate[..., None], rated * passed.exp())
    )
    reading, writing = query * passed.exp(), key * (passed[..., -1:, :] - passed).exp()
    through = passed[..., -1, :, None].exp()
    state, outputs = value.new_zeros((*query.shape[:2], query.shape[-1], value.shape[-1])), []
    for number in range(query.shape[2]):
        change = corrected[:, :, number] - predicted[:, :, number] @ state
        outputs.append(reading[:, :, number] @ state + scores[:, :, number] @ change)
        state = through[:, :, number] * state + writing[:, :, number].transpose(-1, -2) @ change
    return torch.cat(outputs, dim=2).transpose(1, 2)[:, :positions]


def _decayed(lefts: Sequence[torch.Tensor], right: torch.Tensor, passed: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return of each left side left_i · exp(passed_i - passed_j) right_j of the positions of a chunk, zero where j is
    after i. Decays of channels are there at once for `DELTA_PART` positions alone; before these, both sides decay up to
    the first of them, so that no power is above one."""
    chunk = passed.shape[-2]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=right.device).triu(1)
    if passed.shape[-1] == 1:
        between = (passed - passed.transpose(-1, -2)).masked_fill(later, -torch.inf).exp()
        return [(left @ right.transpose(-1, -2)) * between for left in lefts]
    rows: list[list[torch.Tensor]] = [[] for _ in lefts]
    for start in range(0, chunk, DELTA_PART):
        here = slice(start, start + DELTA_PART)
        decays, keys = passed[..., here, :], right[..., here, :]
        between = decays[..., :, None, :] - decays[..., None, :, :]
        between = between.masked_fill(later[here, here, None], -torch.inf).exp()
        before = right[..., :start, :] * (decays[..., :1, :] - passed[..., :start, :]).exp()
        since = (decays - decays[..., :1, :]).exp()
        for left, of_left in zip(lefts, rows, strict=True):
            part = left[..., here, :]
            within = torch.einsum("...id,...jd,...ijd->...ij", part, keys, between)
            row = torch.cat([(part * since) @ before.transpose(-1, -2), within], dim=-1)
            of_left.append(functional.pad(row, (0, chunk - row.shape[-1])))
    return [torch.cat(of_left, dim=-2) for of_left in rows]


def _in_chunks(x: torch.Tensor, dim: int, chunk: int) -> torch.Tensor:
    """Return `x` with a dimension of positions as one of chunks and one within them."""
    return x.reshape(*x.shape[:dim], -1, chunk, *x.shape[dim + 1 :])


def selective_scan(
    value: torch.Tensor, step: torch.Tensor, decay: torch.Tensor, key: torch.Tensor, query: torch.Tensor
) -> torch.Tensor:
    """Return the outputs [batch, positions, channels] of a selective state space (arXiv 2312.00752 §3): with the state
    s = exp(step decay) s' + step value key of each channel, query^T s. Values and steps are [batch, positions,
    channels], `decay` [channels, state], or with that of each sample [batch, 1, channels, state], is below 0, keys and
    queries are [batch, positions, state].

    The backward pass computes the states of a chunk again of the one before it: those of all positions at once would be
    as many numbers as the inputs, times their size.
    """
    state, outputs = value.new_zeros((*value[:, 0].shape, decay.shape[-1])), []
    for start in range(0, value.shape[1], SELECTIVE_CHUNK):
        parts = [part[:, start : start + SELECTIVE_CHUNK] for part in (value, step, key, query)]
        result: Any = checkpoint(_selected, state, decay, *parts, use_reentrant=False, preserve_rng_state=False)
        out, state = cast("tuple[torch.Tensor, torch.Tensor]", result)
        outputs.append(out)
    return torch.cat(outputs, dim=1)


def _selected(
    state: torch.Tensor,
    decay: torch.Tensor,
    value: torch.Tensor,
    step: torch.Tensor,
    key: torch.Tensor,
    query: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of a chunk, and its last state: stretches of positions side by side, each from zero on, then
    by their last states one after another. Positions that fill the last stretch take no time, and leave the state."""
    positions = value.shape[1]
    value, step, key, query = (  # [batch, stretches, positions of one, …]
        _in_chunks(functional.pad(part, (0, 0, 0, -positions % SELECTIVE_STRETCH)), 1, SELECTIVE_STRETCH)
        for part in (value, step, key, query)
    )
    decay = decay.unsqueeze(-3)
    through = (step[..., None] * decay).exp().unbind(2)
    added = ((step * value)[..., None] * key[..., None, :]).unbind(2)
    within = [added[0]]
    for number in range(1, SELECTIVE_STRETCH):
        within.append(torch.addcmul(added[number], through[number], within[-1]))
    since = (step.cumsum(2)[..., None] * decay).exp()  # the stretch began
    before = []
    for passed, last in zip(since[:, :, -1].unbind(1), within[-1].unbind(1), strict=True):
        before.append(state)
        state = torch.addcmul(last, passed, state)
    states = torch.addcmul(torch.stack(within, dim=2), since, torch.stack(before, dim=1)[:, :, None])
    return torch.einsum("bmpcn,bmpn->bmpc", states, query).flatten(1, 2)[:, :positions], state
