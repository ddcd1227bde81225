"""Experts one after another, as transformers 4.57 runs them, against PyTorch's own dispatch and what its autograd keeps;
what that costs; and ranks of experts that have more rows than others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost.test_capacity import plan_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import shardwright
from shardwright import Job, Plan, check
from shardwright.cost.compute.launches import LOOP_CALLS, launches
from shardwright.cost.compute.operator_table import GEMM, table
from shardwright.cost.compute.operators import Shard, layer_operators
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.kept import moe_bytes
from shardwright.diagnosis.case import Case, costed
from shardwright.diagnosis.causes import expert_loop
from shardwright.reports.text.first_screen import plan_answers
from shardwright.reports.text.strategy import settings as settings_of
from shardwright.search.space.axes import parse_pins
from shardwright.spec.options import Options
from shardwright.trainers.plan import evaluate

QWEN = "qwen3-30b-a3b"
VIEWS = ("view", "t.", "select", "expand", "squeeze", "unsqueeze", "unbind", "permute", "detach", "transpose")
LOOP, GROUPED = (Options(expert_products=word) for word in ("loop", "grouped"))


@cache
def model_of(name: str) -> Any:
    return shardwright.load_model(name)


class Experts(nn.Module):
    """`Qwen3MoeSparseMoeBlock` of transformers 4.57.3 after its router (models/qwen3_moe/modeling_qwen3_moe.py)."""

    def __init__(self, experts: int, hidden: int, width: int) -> None:
        super().__init__()
        shapes = ((hidden, width), (hidden, width), (width, hidden))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Linear(*shape, bias=False) for shape in shapes) for _ in range(experts)
        )

    def forward(self, states: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        final = torch.zeros_like(states)
        mask = nn.functional.one_hot(chosen, num_classes=len(self.experts)).permute(2, 1, 0)
        for number in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            gate, up, down = self.experts[number]  # type: ignore[misc]
            place, token = torch.where(mask[number].squeeze(0))
            current = states[None, token].reshape(-1, states.shape[-1])
            given = down(nn.functional.silu(gate(current)) * up(current)) * weights[token, place, None]
            final.index_add_(0, token, given.to(states.dtype))
        return final


class Calls(TorchDispatchMode):
    """Counts what PyTorch launches, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(str(function).startswith(f"aten.{view}") for view in VIEWS):
            self.names[str(function)] += 1
        return function(*args, **(kwargs or {}))


def ran(experts: int, tokens: int = 64, top_k: int = 4, hidden: int = 32, width: int = 12) -> tuple[int, int, int]:
    """Return calls forward and backward of the block, and the bytes that its experts keep."""
    torch.manual_seed(experts)
    block, states = Experts(experts, hidden, width).bfloat16(), torch.randn(tokens, hidden, dtype=torch.bfloat16)
    states.requires_grad_()
    weights = torch.rand(tokens, top_k, dtype=torch.bfloat16, requires_grad=True)
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    for parameter in block.parameters():
        parameter.grad = torch.zeros_like(parameter)
    aside = {tensor.untyped_storage().data_ptr() for tensor in (states, weights, *block.parameters())}
    kept: dict[int, tuple[torch.Tensor, int]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in aside and tensor.dtype == torch.bfloat16:
            kept[storage.data_ptr()] = (tensor, storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), Calls() as forward:
        given = block(states, chosen, weights)
    loss, size = given.sum(), sum(nbytes for _, nbytes in kept.values())
    with Calls() as backward:
        loss.backward()
    return sum(forward.names.values()), sum(backward.names.values()), size


def test_calls_of_an_expert_are_those_that_pytorch_dispatches() -> None:
    few, many = ran(8), ran(16)
    assert (many[0] - few[0]) / 8 == LOOP_CALLS
    assert LOOP_CALLS < (many[1] - few[1]) / 8 < 2.0 * LOOP_CALLS  # of which the account has half as many again


def test_what_is_kept_of_a_row_is_what_autograd_keeps() -> None:
    few, many = (ran(8, tokens=tokens)[2] for tokens in (64, 128))
    found = (many - few) / (64 * 4)
    model = model_of(QWEN)
    (moe,) = {kind.moe for kind in model.kinds}
    small = replace(moe, expert_width=12, experts=8, top_k=4)
    job = Job(global_batch=1, seq_len=64, framework="fsdp", options=LOOP)
    sizes = [moe_bytes(replace(model, hidden=32), small, shard(), replace(job, seq_len=size)) for size in (64, 128)]
    of_router = 32 * 2.0 + 8 * 8.0  # of a token
    account = (float(sizes[1][0] - sizes[0][0]) / 64 - of_router) / 4
    assert account == pytest.approx(found, rel=0.02)


def shard(micro_batch: int = 1, ep: int = 1) -> Shard:
    one, no = np.ones(1, dtype=np.int64), np.zeros(1, dtype=bool)
    return Shard(
        tp=one, cp=one, ep=ep * one, etp=one, micro_batch=micro_batch * one,
        sequence_parallel=no, flash=~no, overlap_tp=no,
    )  # fmt: skip


@pytest.mark.parametrize("name", [QWEN, "mixtral-8x7b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b"])
def test_a_loop_has_the_same_products_one_by_one(name: str) -> None:
    model, jobs = (
        model_of(name),
        [Job(global_batch=1, seq_len=4096, framework="fsdp", options=options) for options in (GROUPED, LOOP)],
    )
    layer = next(kind for kind in model.kinds if kind.moe)
    sums = []
    for job in jobs:
        rows = table([*layer_operators(model, layer, shard(), job)])
        products = np.where(rows.kind == GEMM, rows.flops * rows.times, 0.0)
        sums.append(products.sum())
        if job.options is LOOP:
            assert (rows.groups[rows.kind == GEMM] == 1).all()
            assert rows.times.max() == layer.moe.experts
    assert sums[0] == pytest.approx(sums[1], rel=1e-9)
    calls = [float(launches(model, layer, shard(), job)[0]) for job in jobs]
    assert calls[1] - calls[0] > 11.0 * layer.moe.experts - 10.0 - 0.5 * layer.moe.experts


def seconds(length: int, options: Options, framework: str = "fsdp") -> float:
    job = Job(global_batch=16, seq_len=length, framework=framework, options=options)
    return looped(job).iteration_seconds


def looped(job: Job) -> Plan:
    plan = plan_of(QWEN, job)
    (replica,) = plan.replicas
    (stage,) = replica.stages
    optimizer = replace(plan.optimizer, sharding="zero3")
    plan = replace(plan, optimizer=optimizer, replicas=(replace(replica, stages=(replace(stage, expert_parallel=1),)),))
    return costed(plan, default_efficiency())


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([256, 512, 1024, 2048, 4096, 8192]), st.sampled_from(["fsdp", "deepspeed", "eager"]))
def test_a_loop_takes_longer_and_the_less_so_the_more_rows_an_expert_has(length: int, framework: str) -> None:
    few, many = (seconds(size, LOOP, framework) / seconds(size, GROUPED, framework) for size in (length, 4 * length))
    assert few > many > 1.2
    assert seconds(length, Options(), framework) == seconds(length, GROUPED, framework)


def test_mixtures_under_zero_3_are_told_to_be_many_times_slower_than_with_expert_parallelism() -> None:
    """Qwen3-30B-A3B on 16 A100: 91.2 s under ZeRO-3 where Megatron with ep 8 took 9.6 s (Megatron-SWIFT's table of May
    2025, of batches that it does not say); 0.9 times as long without the loop."""
    job = shardwright.make_job(global_batch=16, seq_len=8192, framework="deepspeed")
    shared = {"recompute": "uniform", "recompute_layers": 1, "micro_batch": 1, "offload": 0, "cp": 1, "pp": 1}
    split = {"tp": 2, "ep": 8, "sharding": "zero1", **shared}
    whole = {"tp": 1, "ep": 1, "sharding": "zero3", **shared}
    machines = "2x8xA100-SXM-80"
    megatron = shardwright.plan(QWEN, machines, replace(job, framework="megatron"), pins=split, top=1).best
    for word, least, most in (("grouped", 0.5, 1.5), ("loop", 3.5, 11.0)):
        zero3 = shardwright.plan(QWEN, machines, job, pins=whole | {"expert_products": word}, top=1).best
        assert least < zero3.iteration_seconds / megatron.iteration_seconds < most


def test_a_run_is_evaluated_with_what_no_launch_says_of_it() -> None:
    plan = looped(Job(global_batch=16, seq_len=2048, framework="fsdp"))
    told = evaluate(plan, space=parse_pins(["expert_products=loop"]))
    assert told.plan.job.options.expert_products == "loop"
    assert told.plan.iteration_seconds == seconds(2048, LOOP)
    own = replace(plan, job=replace(plan.job, options=GROUPED))
    assert evaluate(own, space=parse_pins(["expert_products=loop"])).plan.job.options == GROUPED


def test_the_loop_is_a_cause_with_its_remedy() -> None:
    plan = looped(Job(global_batch=16, seq_len=2048, framework="fsdp", options=LOOP))
    (finding,) = expert_loop(Case(plan=plan, efficiency=default_efficiency()))
    assert finding.plan is not None and finding.plan.job.options == GROUPED
    assert finding.seconds == pytest.approx(plan.iteration_seconds - finding.plan.iteration_seconds)
    unsaid = replace(plan, job=replace(plan.job, options=Options()))
    measured = Case(
        plan=costed(unsaid, default_efficiency()),
        efficiency=default_efficiency(),
        step_seconds=plan.iteration_seconds,
    )
    (possible,) = expert_loop(measured)
    assert possible.basis == "possible" and "128 experts" in possible.evidence[0]


def test_a_gpu_that_loops_has_all_experts() -> None:
    plan = looped(Job(global_batch=16, seq_len=2048, framework="fsdp", options=LOOP))
    (replica,) = plan.replicas
    split = replace(plan, replicas=(replace(replica, stages=(replace(replica.stages[0], expert_parallel=8),)),))
    assert any("loops over all experts" in str(problem) for problem in check(split))
    found = shardwright.plan(QWEN, "2x8xH100-SXM", replace(plan.job, options=LOOP), top=3)
    assert {stage.expert_parallel for ranked in found.plans for stage in ranked.stages} == {1}
    elsewhere = replace(plan, job=replace(plan.job, framework="megatron"))
    assert any("not megatron's to choose" in str(problem) for problem in check(elsewhere))


@cache
def table_of(imbalance: float | None, capacity: float | None, padding: Any) -> Plan:
    options = Options(
        dispatcher="alltoall", expert_imbalance=imbalance, expert_capacity=capacity, expert_padding=padding
    )
    return costed(plan_of(QWEN, Job(global_batch=32, seq_len=4096, options=options)), default_efficiency())


@settings(max_examples=25, deadline=None)
@given(st.floats(1.0, 12.0), st.sampled_from([None, 0.5, 1.0, 2.0]), st.sampled_from([None, "capacity"]))
def test_the_fullest_rank_has_its_rows_within_the_capacity(imbalance: float, capacity: Any, padding: Any) -> None:
    """Dropless: mean times imbalance, at most the rows of all ranks; with a capacity the lesser of both; padded exactly
    the capacity."""
    padding = padding if capacity else None
    rows = min(imbalance, 8.0) if capacity is None else capacity if padding else min(imbalance, capacity)
    found, same = table_of(imbalance, capacity, padding), table_of(None if rows <= 1.0 else rows, None, None)
    if rows < 1.0:
        same = table_of(None, rows, None)
    assert found.predicted.iteration_seconds == pytest.approx(same.predicted.iteration_seconds, rel=1e-6)
    assert found.predicted.memory[0][0].total_bytes == pytest.approx(same.predicted.memory[0][0].total_bytes, rel=1e-9)


def test_ranks_with_all_experts_have_the_mean_whatever_the_router_does() -> None:
    plans = [
        looped(Job(global_batch=16, seq_len=2048, framework="torchtitan", options=Options(expert_imbalance=imbalance)))
        for imbalance in (None, 3.0)
    ]
    assert plans[0].predicted.iteration_seconds == plans[1].predicted.iteration_seconds


def test_plans_say_how_experts_are_multiplied_and_what_else_there_is() -> None:
    for options, words in ((LOOP, "expert_products=grouped"), (GROUPED, "expert_products=loop"), (Options(), "loop")):
        plan = looped(Job(global_batch=16, seq_len=2048, framework="fsdp", options=options))
        (said,) = [words for name, words in plan_answers(plan, "") if name == "experts"]
        assert words in said and said in dict(settings_of(plan))["experts"]
    dense = shardwright.plan(
        "llama-3.2-1b", "1x8xH100-SXM", Job(global_batch=16, seq_len=2048, framework="fsdp"), top=1
    )
    assert "experts" not in dict(plan_answers(dense.best, ""))
