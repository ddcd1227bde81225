"""CUDA graphs take launches from the host, and tokens may be sent to experts beside other micro-batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest

import shardwright
from shardwright.cost.compute.launches import launches
from shardwright.cost.compute.operators import Shard
from shardwright.cost.frameworks.overheads import GRACE_CALLS, host_seconds, overheads
from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.job import Job
from shardwright.spec.options import CudaGraph

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
