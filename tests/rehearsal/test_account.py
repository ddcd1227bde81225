"""The account of memory against the rehearsal of a drawn plan, where no stand-in is in it: transformers under FSDP2."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.rehearsal.tiny import require_guard

import shardwright
from shardwright.plans.plan import Plan
from shardwright.rehearsal.document import messages
from shardwright.rehearsal.rehearse import rehearse
from shardwright.search.space.axes import parse_pins

MODELS = ("llama-3-8b", "llama-2-7b", "qwen3-8b", "qwen2.5-7b", "mistral-7b-v0.3")
NEAR = 0.02


def drawn(seed: int) -> Plan:
    """Return a plan of a few layers of a model on 2 to 16 GPUs."""
    random_numbers = random.Random(seed)
    name = random_numbers.choice(MODELS)
    model, gpus = shardwright.load_model(name), random_numbers.choice((2, 4, 8, 16))
    model = replace(model, layers=model.layers[: random_numbers.randint(2, 8)])
    micro_batch, length = random_numbers.choice((1, 1, 2)), random_numbers.choice((1024, 2048, 4096, 8192))
    recompute = random_numbers.choice(("none", "uniform recompute_layers=1"))
    sharding, times = random_numbers.choice(("zero2", "zero3")), random_numbers.choice((1, 2))
    pins = f"tp=1 cp=1 pp=1 sharding={sharding} offload=0 micro_batch={micro_batch} recompute={recompute}"
    pins += f" dp={gpus}"
    job = shardwright.make_job(global_batch=gpus * micro_batch * times, seq_len=length, framework="fsdp")
    cluster = shardwright.load_cluster("2x8xH200-SXM" if gpus == 16 else f"1x{gpus}xH200-SXM")
    return shardwright.plan(model, cluster, job, space=parse_pins(pins.split()), top=1).best


def difference(plan: Plan) -> float:
    (rank,) = rehearse(plan, rank=[0]).ranks
    assert rank.shim_share == 0.0
    for message in messages(rank):
        if message["expected_bytes"] is not None:
            assert message["bytes"] == pytest.approx(message["expected_bytes"], rel=NEAR)
    return rank.difference


def test_the_account_agrees_with_a_rehearsal() -> None:
    """Of sharded gradients in two micro-batches, under ZeRO-2."""
    require_guard()
    pytest.importorskip("transformers")
    assert abs(difference(drawn(3))) < NEAR
