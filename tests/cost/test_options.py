"""What options of the trainer cost: closed forms of their bytes and seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import shardwright
from shardwright.cost.compute.operators import Shard
from shardwright.cost.context import Context, shard_index
from shardwright.cost.frameworks.optimizer import state_width, update_width
from shardwright.cost.layers.table import LayerTable
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.cost.memory.sizes import state_bytes
from shardwright.cost.strategies import ZERO1, strategies
from shardwright.spec.job import Job
from shardwright.spec.options import MODULES, Options

JOB = Job(global_batch=64, seq_len=4096)
DEEPSEEK = shardwright.load_model("deepseek-v3")
DENSE = {"none": 18.0, "zero1": 6.0}  # bytes a parameter that every rank keeps, Megatron-LM's docs: dist_optimizer.md


def with_options(**said: Any) -> Job:
    return replace(JOB, options=Options(**said))


@pytest.mark.parametrize(
    ("said", "every", "sharded"),
    [
        # Rows of Megatron-LM's table: 6 + 12/d and 4 + 16/d bytes, of which 4/d are there in the update alone.
        ({}, 6.0, 12.0),
        ({"grad_reduce": "bf16"}, 4.0, 12.0),
        ({"exp_avg": "bf16", "exp_avg_sq": "bf16"}, 6.0, 2.0 + 2.0 + 2.0),
        ({"main_grads": "bf16", "exp_avg": "bf16", "exp_avg_sq": "bf16"}, 4.0, 2.0 + 2.0 + 2.0),
        ({"main_grads": "fp32"}, 6.0, 2.0 + 4.0 + 4.0),
        ({"main_params": "fp16", "exp_avg": "fp8", "exp_avg_sq": "fp8"}, 6.0, 2.0 + 1.0 + 1.0),
    ],
)
def test_bytes_of_a_parameter(said: dict[str, str], every: float, sharded: float) -> None:
    ranks, one, no = np.array([8.0]), np.ones(1), np.zeros(1)
    found = state_bytes(DEEPSEEK, with_options(**said), one, no, ranks, ranks, np.array([ZERO1]), no, no)
    assert found.weights[0] + found.gradients[0] + found.optimizer[0] == every + sharded / 8.0


def test_master_weights_in_fp8_are_whole_unless_scaling_is_delayed() -> None:
    moments = {"exp_avg": "bf16", "exp_avg_sq": "bf16"}
    for recipe, width in ((None, 2.0), ("delayed", 2.0), ("blockwise", 4.0), ("mxfp8", 4.0)):
        job = replace(with_options(**moments), precision="fp8", fp8_recipe=recipe)
        assert state_width(DEEPSEEK, job) == width + 4.0


def test_bytes_of_an_update() -> None:
    assert update_width(JOB) == 34.0
    # gradient twice, master weight (halves of it are the weight's), moments twice
    assert update_width(with_options(exp_avg="bf16", exp_avg_sq="bf16")) == 2 * 4 + 2 * 4 + 2 * 4
    assert update_width(with_options(main_grads="bf16", exp_avg="fp8", exp_avg_sq="fp8")) == 2 * 2 + 2 * 4 + 2 * 2
    # reduced in bf16, copied to fp32, read twice; else as ever
    assert update_width(with_options(grad_reduce="bf16")) == (2 + 4 + 4 + 4) + (34 - 8)


def _shard(**sizes: int) -> Shard:
    flags = {"sequence_parallel": sizes.get("tp", 1) > 1, "flash": True, "overlap_tp": False}
    numbers = {"tp": 1, "cp": 1, "ep": 1, "etp": 1, "micro_batch": 1} | sizes
    columns = {name: np.array([value]) for name, value in (numbers | flags).items()}
    return Shard(**columns)  # type: ignore[arg-type]


def _freed(*modules: str) -> tuple[float, float]:
    """Bytes that a dense layer and a layer with experts free."""
    found = layer_activation_bytes(DEEPSEEK, _shard(), with_options(recompute_modules=modules))
    assert (found.again[1] == found.core[1]).all()
    return float(found.core[1][0]), float(found.core[2][0])


def test_bytes_that_modules_free() -> None:
    tokens, hidden = 4096, DEEPSEEK.hidden
    dense, moe = DEEPSEEK.kinds[0].mlp, DEEPSEEK.kinds[1].moe
    assert dense is not None and moe is not None
    up = 2.0 * tokens * 128 * (192 + 192 + 128)
    assert _freed("mla_up_proj") == (up, up)
    assert _freed("layernorm") == (2.0 * tokens * hidden, 2 * 2.0 * tokens * hidden)
    assert _freed("moe_act") == (0.0, 2.0 * tokens * moe.top_k * moe.expert_width)
    assert _freed("mlp") == (2.0 * tokens * hidden + 3 * 2.0 * tokens * dense.width, 0.0)
    assert _freed("shared_experts") == (0.0, 3 * 2.0 * tokens * moe.shared_width)
    routed = tokens * moe.top_k * (2.0 * hidden + 3 * 2.0 * moe.expert_width)  # Megatron-Core weighs before the end
    assert _freed("moe") == (0.0, 8.0 * tokens * moe.experts + routed + 3 * 2.0 * tokens * moe.shared_width)
    assert _freed("moe", "moe_act", "shared_experts") == _freed("moe")


def test_what_is_freed_is_part_of_what_is_kept() -> None:
    for shard in (_shard(), _shard(tp=4), _shard(tp=4, ep=8, micro_batch=2)):
        found = layer_activation_bytes(DEEPSEEK, shard, with_options(recompute_modules=MODULES))
        assert all((core < kept).all() for core, kept in zip(found.core, found.kept, strict=True) if core.any())


def _table(*modules: str, tp: int = 1, ep: int = 8) -> LayerTable:
    (pool,) = shardwright.load_cluster("8x8xH100-SXM").pools
    job = with_options(recompute_modules=modules) if modules else JOB
    context = Context(model=DEEPSEEK, pool=pool, job=job, efficiency=default_efficiency())
    row = {"tp": tp, "dp": 64 // tp, "ep": ep, "micro_batch": 1, "sequence_parallel": tp > 1, "flash": True}
    return shard_index(context, strategies([row])).table


def _again(table: LayerTable) -> tuple[float, float]:
    seconds = np.diff(table.core_seconds)[0]
    return float(seconds[1]), float(seconds[-2])


def test_seconds_of_modules_add_up() -> None:
    dense, experts = _again(_table("mlp", "moe", tp=2))
    assert dense == pytest.approx(_again(_table("mlp", tp=2))[0]) and experts == _again(_table("moe", tp=2))[1]
    parts = [_again(_table(name))[1] for name in ("moe_act", "shared_experts", "mla_up_proj", "layernorm")]
    together = _again(_table("moe_act", "shared_experts", "mla_up_proj", "layernorm"))[1]
    assert min(parts) > 0.0 and together == pytest.approx(sum(parts))


def test_modules_repeat_part_of_the_forward_pass_with_its_communication() -> None:
    whole, moe = _table(*MODULES, tp=2), _table("moe", tp=2)
    forward, exchange = np.diff(whole.forward)[0], np.diff(moe.ep_seconds)[0]
    assert all(again < forward[at] for again, at in zip(_again(whole), (1, -2), strict=True))
    assert _again(moe)[1] > exchange[-2] / 2.0 > 0.0  # half of the exchange is backward
    assert _again(_table("core_attn")) == _again(_table())
