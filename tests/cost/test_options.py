"""What options of the trainer cost: closed forms of their bytes and seconds; CUDA graphs take launches from the host,
and tokens may be sent to experts beside other micro-batches.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from tests.cost.samples import parameter_state

import shardwright
from shardwright import Job, Plan, SpecError
from shardwright.cost.compute.launches import launches
from shardwright.cost.compute.operators import Shard
from shardwright.cost.context import Context, shard_index
from shardwright.cost.frameworks.optimizer import state_width, update_width
from shardwright.cost.frameworks.overheads import GRACE_CALLS, host_seconds, overheads
from shardwright.cost.layers.table import LayerTable
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.cost.strategies import ZERO1, strategies
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.options import MODULES, CudaGraph, Options

JOB = Job(global_batch=64, seq_len=4096)
DEEPSEEK = shardwright.load_model("deepseek-v3")


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
    found = parameter_state(DEEPSEEK, with_options(**said), ZERO1, dense_ranks=8.0)
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


MODEL = "qwen3-30b-a3b"
ONES, NO = np.ones(3, dtype=np.int64), np.zeros(3, dtype=bool)
SHARDS = Shard(
    tp=np.array([1, 2, 1]), cp=ONES, ep=np.array([8, 8, 32]), etp=ONES, micro_batch=ONES,
    sequence_parallel=NO, flash=~NO, overlap_tp=NO,
)  # fmt: skip
PINS = {"tp": 1, "pp": 1, "ep": 8, "mbs": 1, "recompute": "none"}


def planned(*, batch: int = 64, **pins: Any) -> Plan:
    job = shardwright.make_job(global_batch=batch, seq_len=4096)
    (plan,) = shardwright.plan(MODEL, "1x8xB200", job, pins=PINS | pins, framework="megatron", top=1).plans
    return plan


def seconds(plan: Plan, name: str) -> float:
    return float(getattr(plan.predicted.time, name))


def fullest(plan: Plan) -> float:
    return max(stage.activations_bytes for stages in plan.predicted.memory for stage in stages)


def test_the_more_graphs_hold_the_less_the_host_launches() -> None:
    job: Job = shardwright.make_job(global_batch=64, seq_len=4096)
    scopes = [replace(job, options=replace(job.options, cuda_graph=scope)) for scope in get_args(CudaGraph)]
    for name in (MODEL, "llama-3-8b", "deepseek-v3", "nemotron-3-nano-30b-a3b"):
        model = shardwright.load_model(name)
        for kind in (None, *model.kinds):
            calls = [launches(model, kind, SHARDS, of) for of in scopes]
            assert (calls[0] == launches(model, kind, SHARDS, job)).all()
            assert all((more >= less).all() for more, less in pairwise(calls))
            assert not calls[-1].any()


def test_calls_are_those_of_the_kernels_that_a_layer_has() -> None:
    job: Job = shardwright.make_job(global_batch=64, seq_len=4096)
    qwen, hybrid, latent = map(shardwright.load_model, (MODEL, "nemotron-3-nano-30b-a3b", "deepseek-v3"))
    plain, cut, spread = launches(qwen, qwen.kinds[0], SHARDS, job)
    assert cut > plain, "collectives are calls too"
    assert spread < plain, "a GPU that has fewer experts has fewer products"
    dense = launches(latent, next(kind for kind in latent.kinds if kind.mlp), SHARDS, job)[0]
    attention = launches(qwen, replace(qwen.kinds[0], moe=None), SHARDS, job)[0]
    assert dense > attention + 5.0, "latent attention has more products and norms"
    mixer = next(kind for kind in hybrid.kinds if kind.mixer and not kind.mlp and not kind.moe)
    assert launches(hybrid, mixer, SHARDS, job)[0] > attention, "a scan is several kernels"
    learned, rotary = shardwright.load_model("gpt2"), shardwright.load_model("llama-3-8b")
    in_learned, in_rotary, in_unfused = (
        launches(model, model.kinds[0], shards, job)
        for model, shards in ((learned, SHARDS), (rotary, SHARDS), (learned, replace(SHARDS, flash=NO)))
    )
    assert (in_learned < in_rotary).all(), "queries and keys are not rotated"
    assert (in_unfused > in_learned).all(), "products, softmax and dropout are kernels of their own"


def test_the_same_calls_take_longer_on_grace() -> None:
    plain, grace = (overheads("megatron", gpus()[name]) for name in ("B200", "GB200"))
    both = [
        host_seconds(software, shardwright.make_job(global_batch=1, seq_len=2048), 10.0) for software in (plain, grace)
    ]
    assert both[1] == GRACE_CALLS * both[0] > 0.0


def test_a_hidden_exchange_takes_less_time_and_one_micro_batch_more_of_memory() -> None:
    plain, hidden = planned(), planned(exchange_overlap="batches")
    assert 0.0 < seconds(hidden, "expert_parallel_seconds") < seconds(plain, "expert_parallel_seconds")
    assert seconds(hidden, "forward_seconds") == pytest.approx(seconds(plain, "forward_seconds"))
    assert fullest(hidden) == pytest.approx(2.0 * fullest(plain), rel=0.02)  # the embedding keeps another row
    one = planned(batch=8), planned(batch=8, exchange_overlap="batches")
    assert fullest(one[0]) == fullest(one[1])


def test_both_go_out_as_arguments_and_come_back() -> None:
    plan = planned(cuda_graph="attention", exchange_overlap="batches")
    script = shardwright.export(plan, "megatron").files["run.sh"]
    for words in (
        "--cuda-graph-impl transformer_engine",
        "--cuda-graph-modules attn moe_router moe_preprocess",
        "--overlap-moe-expert-parallel-comm",
        "NCCL_GRAPH_REGISTER=0",
        "CUDA_DEVICE_MAX_CONNECTIONS=32",
    ):
        assert words in script, words


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"exchange_overlap": "batches", "dispatcher": "allgather"}, "needs the dispatcher alltoall or flex"),
        ({"exchange_overlap": "batches", "recompute": "selective", "recompute_modules": "moe"}, "has moe"),
    ],
)
def test_what_megatron_refuses_is_refused_by_name(pins: dict[str, str], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planned(**pins)


def test_whole_layers_with_experts_are_in_no_graph() -> None:
    assert "which no graph does" in str(shardwright.support(MODEL, framework="megatron")) or not _exports("full")


def _exports(scope: str) -> bool:
    job = shardwright.make_job(global_batch=64, seq_len=4096)
    ranking = shardwright.plan(MODEL, "1x8xB200", job, pins=PINS | {"cuda_graph": scope}, framework="megatron", top=1)
    try:
        return bool(ranking.plans) and bool(shardwright.export(ranking.plans[0], "megatron"))
    except SpecError:
        return False
