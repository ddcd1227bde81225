"""Small models, clusters and plans for the tests of the runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tests import nightly
from tests.golden.plans import H100, cluster_of

from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Sharding, Stage
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job, Optimizer
from shardwright.spec.layer import Attention, Layer, Mlp, Moe
from shardwright.spec.model import Model

SEQ_LEN = 16
STEPS = 5 if nightly.wanted else 3  # the first moves weights alone, the second state too
NONE = Recompute()


def tiny_model(
    layers: int = 6,
    *,
    family: str = "llama",
    tied: bool = False,
    experts: int = 0,
    shared: bool = False,
    vocab: int = 61,
    hidden: int = 32,
    heads: int = 4,
    kv_heads: int = 2,
    window: int | None = None,
) -> Model:
    """A model of a few thousand parameters; `family` gpt2 has biases, LayerNorm and learned positions."""
    gpt = family == "gpt2"
    attention = Attention(
        heads=heads,
        kv_heads=heads if gpt else kv_heads,
        head_dim=hidden // heads,
        value_head_dim=hidden // heads,
        window=window,
        qkv_bias=gpt or family == "qwen2",
        out_bias=gpt,
        qk_norm=family.startswith("qwen3"),
    )
    moe = Moe(experts=experts, top_k=2, expert_width=24, gated=True, shared_width=16 * shared, shared_gate=shared)
    layer = Layer(
        attention=attention,
        mlp=None if experts else Mlp(width=4 * hidden if gpt else 48, gated=not gpt, bias=gpt),
        moe=moe if experts else None,
    )
    return Model(
        name=f"tiny-{family}",
        family=family,
        hidden=hidden,
        vocab=vocab,
        layers=(layer,) * layers,
        norm="layernorm" if gpt else "rmsnorm",
        position="learned" if gpt else "rope",
        learned_positions=32 if gpt else 0,
        max_position=32,
        tied_embeddings=tied or gpt,
        activation="gelu_new" if gpt else "silu",
    )


def stage(
    *ranges: tuple[int, int],
    tp: int = 1,
    cp: int = 1,
    gpu: str = "H100-SXM",
    recompute: Recompute = NONE,
    ep: int = 1,
    etp: int = 0,
) -> Stage:
    return Stage(
        gpu=gpu,
        tensor_parallel=tp,
        context_parallel=cp,
        expert_parallel=ep,
        expert_tensor_parallel=etp or tp,
        layers=ranges,
        recompute=recompute,
    )


def under(optimizer: Optimizer, plan: Plan) -> Plan:
    return replace(plan, job=replace(plan.job, optimizer=optimizer))


def replica(*stages: Stage, count: int = 1, micro_batches: int) -> Replica:
    return Replica(count=count, micro_batches=micro_batches, stages=stages)


def plan_of(
    model: Model,
    *replicas: Replica,
    micro_batch: int = 1,
    sequence_parallel: bool = False,
    sharding: Sharding = "none",
    offload: float = 0.0,
    virtual_stages: int = 1,
    zero_bubble: bool = False,
    precision: str = "fp32",
    cluster: Cluster | None = None,
) -> Plan:
    samples = micro_batch * sum(item.count * item.micro_batches for item in replicas)
    return Plan(
        model=model,
        job=Job(global_batch=samples, seq_len=SEQ_LEN, precision=precision),
        cluster=cluster or mixed_cluster(),
        micro_batch=micro_batch,
        schedule=Schedule(
            kind="zero-bubble" if zero_bubble else "interleaved" if virtual_stages > 1 else "1f1b",
            virtual_stages=virtual_stages,
        ),
        replicas=replicas,
        optimizer=OptimizerPlan(sharding=sharding, offload=offload),
        overlap=Overlap(grad_reduce=True),
        sequence_parallel=sequence_parallel,
        flash_attention=True,
    )


def mixed_cluster() -> Cluster:
    """Two types of GPUs, a machine of eight each."""
    (pool,) = cluster_of(1).pools
    other = replace(H100, name="other")
    return Cluster(pools=(pool, replace(pool, gpu=other)), name="mixed")


def tokens_of(sample: int, vocab: int, length: int = SEQ_LEN) -> NDArray[np.int64]:
    """Return the tokens of a sample and one more, [length + 1]: a noisy sequence that can be learned."""
    generator = np.random.default_rng(sample)
    return (generator.integers(vocab) + 2 * np.arange(length + 1) + generator.integers(3, size=length + 1)) % vocab
