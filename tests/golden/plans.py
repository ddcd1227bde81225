"""Plans that stand for the kinds of thing an exporter must say, written by hand: no search, no costs."""

from __future__ import annotations

from shardwright import Job, Model, load_model
from shardwright.exporters.megatron.layout import stage_ranges
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Sharding, Stage
from shardwright.spec.cluster import Cluster, Gpu, NodePool, Price
from shardwright.spec.layer import Attention, Layer, Mlp

H100 = Gpu(
    name="H100-SXM",
    vendor="nvidia",
    architecture="Hopper",
    compute_capability="9.0",
    multiprocessors=132,
    clock_hertz=1.83e9,
    peak_flops=(("fp32", 67e12), ("tf32", 494e12), ("fp16", 989e12), ("bf16", 989e12), ("fp8", 1979e12)),
    memory_bytes=80e9,
    memory_bytes_per_second=3.35e12,
    l2_bytes=50e6,
    link="NVLink4",
    link_bytes_per_second=450e9,
    link_domain=8,
    pcie_bytes_per_second=64e9,
    tdp_watts=700.0,
    source="test",
    date="2026-11",
)


def cluster_of(nodes: int, gpu: Gpu = H100) -> Cluster:
    pool = NodePool(
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=8,
        memory_bytes=gpu.memory_bytes,
        domain_gpus=8,
        intra_bytes_per_second=450e9,
        intra_latency_seconds=2e-6,
        inter_bytes_per_second=400e9,
        inter_latency_seconds=5e-6,
        host_memory_bytes=2e12,
        host_memory_bytes_per_second=4e11,
        price=Price(on_demand_per_hour=98.32, spot_per_hour=None, source="test", date="2026-11"),
    )
    return Cluster(pools=(pool,), name="test")


def dense_layer(hidden: int, heads: int, kv_heads: int, width: int, *, gated: bool = True, bias: bool = False) -> Layer:
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        value_head_dim=hidden // heads,
        qkv_bias=bias,
        out_bias=bias,
    )
    return Layer(attention=attention, mlp=Mlp(width=width, gated=gated, bias=bias), moe=None)


LLAMA_2_70B, LLAMA_3_1_8B, MIXTRAL_8X7B, DEEPSEEK_V3 = map(
    load_model, ("llama-2-70b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3")
)
GPT_3_175B = Model(
    name="gpt-3-175b",
    family="gpt2",
    hidden=12288,
    vocab=50257,
    layers=(dense_layer(12288, 96, 96, 49152, gated=False, bias=True),) * 96,
    norm="layernorm",
    position="learned",
    max_position=2048,
    learned_positions=2048,
    tied_embeddings=True,
    dropout=True,
    activation="gelu",
)
_GPT_OSS_ATTENTION = Attention(heads=64, kv_heads=8, head_dim=64, value_head_dim=64, qkv_bias=True)
_NEAR = Attention(heads=64, kv_heads=8, head_dim=64, value_head_dim=64, qkv_bias=True, window=128)
WINDOWED = Model(
    name="alternating windows",
    family="test",
    hidden=4096,
    vocab=151936,
    layers=tuple(
        Layer(attention=attention, mlp=Mlp(width=12288, gated=True), moe=None)
        for _ in range(6)
        for attention in (_NEAR, _GPT_OSS_ATTENTION)
    ),
    max_position=8192,
)


def uniform_plan(
    model: Model,
    *,
    nodes: int,
    job: Job,
    micro_batch: int,
    tp: int,
    counts: tuple[int, ...],
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int = 1,
    recompute: Recompute | None = None,
    sharding: Sharding = "zero1",
    offload: float = 0.0,
    overlap: Overlap | None = None,
    gpu: Gpu = H100,
    pp_inside: bool = False,
) -> Plan:
    """A plan on whole machines; `counts` are the layers of each virtual stage, in order of execution."""
    cluster = cluster_of(nodes, gpu)
    replicas = cluster.gpus // (tp * pp * cp)
    chunks = len(counts) // pp
    stages = tuple(
        Stage(
            gpu=gpu.name,
            tensor_parallel=tp,
            context_parallel=cp,
            expert_parallel=ep,
            expert_tensor_parallel=etp,
            layers=ranges,
            recompute=recompute or Recompute(),
        )
        for ranges in stage_ranges(counts, pp)
    )
    return Plan(
        model=model,
        job=job,
        cluster=cluster,
        micro_batch=micro_batch,
        schedule=Schedule(kind="interleaved" if chunks > 1 else "1f1b", virtual_stages=chunks),
        replicas=(Replica(count=replicas, micro_batches=job.global_batch // replicas // micro_batch, stages=stages),),
        optimizer=OptimizerPlan(sharding=sharding, offload=offload),
        overlap=overlap or Overlap(),
        sequence_parallel=tp > 1,
        flash_attention=True,
        rank_order="tp-cp-ep-pp-dp" if pp_inside else "tp-cp-ep-dp-pp",
    )


GRADS_AND_PARAMS = Overlap(grad_reduce=True, param_gather=True)
PLANS = {
    "llama-2-70b-interleaved": uniform_plan(
        LLAMA_2_70B,
        nodes=32,
        job=Job(global_batch=512, seq_len=4096, tokens=2e12),
        micro_batch=1,
        tp=8,
        pp=4,
        counts=(9, 10, 10, 10, 10, 10, 11, 10),
        recompute=Recompute(granularity="selective"),
        overlap=Overlap(grad_reduce=True, param_gather=True, tensor_parallel=True, pipeline=True),
    ),
    "llama-3.1-8b-context": uniform_plan(
        LLAMA_3_1_8B,
        nodes=4,
        job=Job(global_batch=64, seq_len=32768, precision="fp8"),
        micro_batch=1,
        tp=2,
        cp=4,
        counts=(32,),
        overlap=GRADS_AND_PARAMS,
    ),
    "gpt-3-175b": uniform_plan(
        GPT_3_175B,
        nodes=128,
        job=Job(global_batch=1536, seq_len=2048, tokens=3e11, precision="fp16"),
        micro_batch=1,
        tp=8,
        pp=8,
        counts=(12,) * 8,
        recompute=Recompute(granularity="full", method="uniform", layers=1),
        overlap=Overlap(grad_reduce=True),
        pp_inside=True,
    ),
    "mixtral-8x7b-experts": uniform_plan(
        MIXTRAL_8X7B,
        nodes=8,
        job=Job(global_batch=256, seq_len=4096, tokens=1e12),
        micro_batch=2,
        tp=2,
        pp=4,
        ep=8,
        counts=(8, 8, 8, 8),
        overlap=GRADS_AND_PARAMS,
    ),
    "deepseek-v3": uniform_plan(
        DEEPSEEK_V3,
        nodes=128,
        job=Job(global_batch=4096, seq_len=4096, tokens=14.8e12, precision="fp8", fp8_recipe="blockwise"),
        micro_batch=1,
        tp=2,
        pp=16,
        ep=64,
        counts=(2,) * 30 + (1, 0),
        recompute=Recompute(granularity="full", method="block", layers=1),
        overlap=Overlap(grad_reduce=True, param_gather=True, pipeline=True),
    ),
    "llama-2-70b-fsdp-offload": uniform_plan(
        LLAMA_2_70B,
        nodes=8,
        job=Job(global_batch=256, seq_len=4096, tokens=1e11),
        micro_batch=1,
        tp=1,
        counts=(80,),
        recompute=Recompute(granularity="full", method="block", layers=60),
        sharding="zero3",
        offload=0.5,
        overlap=GRADS_AND_PARAMS,
    ),
    "windows-plain": uniform_plan(
        WINDOWED,
        nodes=1,
        job=Job(global_batch=16, seq_len=8192, optimizer="sgd"),
        micro_batch=2,
        tp=2,
        pp=2,
        counts=(2, 3, 3, 4),
        sharding="none",
        overlap=Overlap(pipeline=True),
    ),
}
