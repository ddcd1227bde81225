"""Steps of the runtime beside the same model in plain PyTorch, eager, on CPUs: one rank and four, dense and 16 experts.

    python benchmarks/runtime_plain.py                  # both, in turn, in the same processes
    python benchmarks/runtime_plain.py --only plan      # as `PYTHONPATH=OTHER/src` does to compare another commit

The plain side is what one would write: nn.Linear, scaled_dot_product_attention, cross_entropy, a loop over the experts
that have tokens, DistributedDataParallel, clip_grad_norm_, fused AdamW. Of steps in turn: the quickest of each, the
ratio of these, and medians of the ratios of steps that followed each other, of wall time and of the processor time of a
process, which other work on the machine disturbs less. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

from runtime_workers import (
    RECIPE,
    Step,
    batch_of,
    cpu_cluster,
    llama,
    plan_of,
    planned,
    run_workers,
    stage,
)  # fmt: skip
from small_llama import Layer, Llama

from shardwright.plans.plan import Plan, Replica
from shardwright.spec.layer import Moe

WARM_UP = 2
SEQ_LEN, MICRO_BATCH, MICRO_BATCHES, VOCAB = 128, 4, 2, 4096
EXPERTS = Moe(experts=16, top_k=2, expert_width=176, gated=True)
Times = tuple[float, float]
"""Wall and processor seconds of a step."""


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions of the plain model."""

    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 4
    ffn: int = 704
    vocab: int = VOCAB
    seq_len: int = SEQ_LEN


class Mixture(nn.Module):
    """Experts in a loop, as plain code has them: those without tokens are left out."""

    def __init__(self, hidden: int, moe: Moe) -> None:
        super().__init__()
        self.moe = moe
        self.router = nn.Linear(hidden, moe.experts, bias=False)
        self.up = nn.ModuleList(nn.Linear(hidden, 2 * moe.expert_width, bias=False) for _ in range(moe.experts))
        self.down = nn.ModuleList(nn.Linear(moe.expert_width, hidden, bias=False) for _ in range(moe.experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        chosen, expert = self.router(tokens).float().softmax(dim=-1).topk(self.moe.top_k, dim=-1)
        chosen = chosen / chosen.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for number in range(self.moe.experts):
            token, which = torch.where(expert == number)
            gate, up = self.up[number](tokens[token]).chunk(2, dim=-1)
            found = self.down[number](functional.silu(gate) * up)
            out = out.index_add(0, token, found * chosen[token, which, None])
        return out.view_as(x)


class MixtureLayer(Layer):
    """A layer with a mixture in place of the feed-forward block."""

    def __init__(self, size: Size, moe: Moe) -> None:
        super().__init__(size)
        del self.up, self.down
        self.mixture = Mixture(size.hidden, moe)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first_norm(x), cos, sin)
        return x + self.mixture(self.second_norm(x))


class WithLoss(nn.Module):
    """The model as a function of tokens and targets, as DistributedDataParallel wants it."""

    def __init__(self, moe: Moe | None, size: Size) -> None:
        super().__init__()
        self.body = Llama(size, recompute=False)
        if moe is not None:
            self.body.layers = nn.ModuleList(MixtureLayer(size, moe) for _ in range(size.layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.body.loss(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24, help="steps of either kind")
    parser.add_argument("--vocab", type=int, default=VOCAB, help="of the model: the larger, the more the loss counts")
    parser.add_argument("--only", choices=("plan", "plain"), help="leave the other out")
    options = parser.parse_args()
    print(f"{'':24} {'plan':>10} {'plain':>10} {'plan/plain':>11} {'median':>8} {'of processor time':>18}")
    for ranks in (1, 4):
        for name, moe in (("dense", None), ("16 experts", EXPERTS)):
            found = run_workers(ranks, compared, plan(ranks, moe, options.vocab), moe, options.steps, options.only)[0]
            ours, theirs = (min((wall for wall, _ in one), default=float("nan")) for one in found)
            wall, cpu = ratios(*found) if all(found) else (float("nan"), float("nan"))
            times = f"{ours * 1e3:7.1f} ms {theirs * 1e3:7.1f} ms {ours / theirs:11.3f} {wall:8.3f} {cpu:18.3f}"
            print(f"{ranks} ranks, {name:14} {times}", flush=True)


def ratios(ours: Sequence[Times], theirs: Sequence[Times]) -> tuple[float, float]:
    """Return the median ratio of steps that followed each other, of wall and of processor time."""
    pairs = list(zip(ours, theirs, strict=True))
    wall, cpu = (statistics.median(one[which] / other[which] for one, other in pairs) for which in (0, 1))
    return wall, cpu


def plan(ranks: int, moe: Moe | None, vocab: int) -> Plan:
    """Return the plan of so many copies of the model."""
    size = Size(vocab=vocab)
    model = llama(size.hidden, size.layers, size.vocab)
    if moe is not None:
        model = replace(model, layers=tuple(replace(layer, mlp=None, moe=moe) for layer in model.layers))
    copies = Replica(count=ranks, micro_batches=MICRO_BATCHES, stages=(stage("core", (0, size.layers)),))
    return plan_of(model, cpu_cluster(core=ranks), SEQ_LEN, copies, micro_batch=MICRO_BATCH)


def compared(rank: int, chosen: Plan, moe: Moe | None, steps: int, only: str | None) -> tuple[list[Times], list[Times]]:
    """Return the times of steps under the plan and of plain ones, in turn."""
    kinds: dict[str, Callable[[], Step]] = {
        "plan": lambda: planned(chosen, rank),
        "plain": lambda: plain(chosen, moe, rank),
    }
    made = {name: make() for name, make in kinds.items() if only in (None, name)}
    seconds: dict[str, list[Times]] = {"plan": [], "plain": []}
    for number in range(WARM_UP + steps):
        for name in list(made) if number % 2 else reversed(made):
            dist.barrier()
            begin, busy = time.perf_counter(), time.process_time()
            made[name]()
            busy = time.process_time() - busy
            dist.barrier()
            if number >= WARM_UP:
                seconds[name].append((time.perf_counter() - begin, busy))
    return seconds["plan"], seconds["plain"]


def plain(chosen: Plan, moe: Moe | None, rank: int) -> Step:
    """Return a step of plain PyTorch: gradients accumulated, clipped, updated."""
    torch.manual_seed(0)
    body: Any = WithLoss(moe, Size(vocab=chosen.model.vocab))
    model = DistributedDataParallel(body) if dist.get_world_size() > 1 else body
    matrices = [weight for weight in body.parameters() if weight.dim() > 1]
    vectors = [weight for weight in body.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": RECIPE.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RECIPE.learning_rate, betas=RECIPE.betas, fused=True)
    batch = batch_of(chosen, rank * MICRO_BATCH * MICRO_BATCHES)

    def step() -> float:
        total = torch.zeros(())
        for number in range(MICRO_BATCHES):
            held = number < MICRO_BATCHES - 1 and model is not body
            with model.no_sync() if held else contextlib.nullcontext():
                loss = model(batch(number)[0]) / MICRO_BATCHES
                loss.backward()
            total += loss.detach()
        if model is not body:
            dist.all_reduce(total)
        torch.nn.utils.clip_grad_norm_(body.parameters(), RECIPE.clip)
        optimizer.step()
        optimizer.zero_grad()
        return float(total)

    return step


if __name__ == "__main__":
    main()
