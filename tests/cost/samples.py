"""Models, machines and shards for the tests of the cost model and the search."""

from __future__ import annotations

import numpy as np

from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.compute.operators import Shard
from shardwright.cost.context import Context
from shardwright.cost.frameworks.overheads import Overheads
from shardwright.cost.memory.sizes import StateBytes, StateSplit, parameter_bytes
from shardwright.spec.cluster import Gpu, NodePool, Price
from shardwright.spec.job import Job
from shardwright.spec.layer import Attention, Layer, Mlp, Moe
from shardwright.spec.model import Model

# Operators and links alone, as the oracles of closed forms have it.
BARE = Overheads(launch_seconds=0.0, rank_seconds=0.0, pass_seconds=0.0, step_seconds=0.0, straggling=0.0)


def attention(heads: int, head_dim: int, kv_heads: int | None = None, **more) -> Attention:
    return Attention(heads=heads, kv_heads=kv_heads or heads, head_dim=head_dim, value_head_dim=head_dim, **more)


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200, *, causal: bool = True) -> Model:
    """A GPT as in the papers of Megatron-LM: biases, LayerNorm, GeLU of width 4h, dropout, tied embeddings."""
    layer = Layer(
        attention=attention(heads, hidden // heads, causal=causal, qkv_bias=True, out_bias=True),
        mlp=Mlp(width=4 * hidden, gated=False, bias=True),
        moe=None,
    )
    return Model(
        name="gpt",
        family="gpt",
        hidden=hidden,
        vocab=vocab,
        layers=(layer,) * layers,
        norm="layernorm",
        position="learned",
        learned_positions=2048,
        tied_embeddings=True,
        dropout=True,
        activation="gelu",
    )


def llama(layers: int, hidden: int, heads: int, kv_heads: int, width: int, vocab: int, **more) -> Model:
    layer = Layer(attention=attention(heads, hidden // heads, kv_heads), mlp=Mlp(width=width, gated=True), moe=None)
    return Model(name="llama", family="llama", hidden=hidden, vocab=vocab, layers=(layer,) * layers, **more)


def mixtral(
    layers: int, hidden: int, heads: int, kv_heads: int, width: int, vocab: int, experts: int, top_k: int
) -> Model:
    moe = Moe(experts=experts, top_k=top_k, expert_width=width, gated=True)
    layer = Layer(attention=attention(heads, hidden // heads, kv_heads), mlp=None, moe=moe)
    return Model(name="mixtral", family="mixtral", hidden=hidden, vocab=vocab, layers=(layer,) * layers)


def parameter_state(model: Model, job: Job, sharding: int, **split) -> StateBytes:
    """The state of one parameter of a layer, as it is split; columns of one row."""
    of_layers, _ = parameter_bytes(model, job, StateSplit(sharding=np.array([sharding]), **split))
    return of_layers


def gpu(**changes) -> Gpu:
    """An A100, but for `changes`."""
    fields = {
        "name": "A100",
        "vendor": "nvidia",
        "architecture": "Ampere",
        "compute_capability": "8.0",
        "multiprocessors": 108,
        "clock_hertz": 1.41e9,
        "peak_flops": (("bf16", 312e12), ("fp16", 312e12), ("fp32", 19.5e12), ("fp8", 624e12)),
        "memory_bytes": 80e9,
        "memory_bytes_per_second": 2.039e12,
        "l2_bytes": 4e7,
        "link": "NVLink",
        "link_bytes_per_second": 300e9,
        "link_domain": 8,
        "pcie_bytes_per_second": 32e9,
        "tdp_watts": 400.0,
        "source": "",
        "date": "",
    }
    return Gpu(**{**fields, **changes})


def pool(nodes: int = 1, gpus_per_node: int = 8, price: float | None = None, **changes) -> NodePool:
    """Machines of A100s with eight adapters of 200 Gbit/s, but for `changes`."""
    fields = {
        "gpu": gpu(),
        "memory_bytes": 80e9,
        "domain_gpus": gpus_per_node,
        "intra_bytes_per_second": 300e9,
        "intra_latency_seconds": 3e-6,
        "inter_bytes_per_second": 200e9,
        "inter_latency_seconds": 8e-6,
        "host_memory_bytes": 1e12,
        "host_memory_bytes_per_second": 300e9,
        "price": None if price is None else Price(on_demand_per_hour=price, spot_per_hour=None, source="user", date=""),
    }
    return NodePool(nodes=nodes, gpus_per_node=gpus_per_node, **{**fields, **changes})


def context(model: Model, machines: NodePool, job: Job) -> Context:
    return Context(model=model, pool=machines, job=job, efficiency=Analytic(), measured_overheads=BARE)


def shard(rows: int = 1, **columns) -> Shard:
    """`rows` shards without parallelism, micro-batch 1, all switches off, but for `columns` (numbers or arrays)."""
    fields: dict[str, object] = dict.fromkeys(("tp", "cp", "ep", "etp", "micro_batch"), 1)
    fields |= dict.fromkeys(("sequence_parallel", "flash", "overlap_tp"), False)
    return Shard(**{name: np.broadcast_to(value, (rows,)).copy() for name, value in {**fields, **columns}.items()})


def row(where: Context, **columns) -> dict[str, object]:
    """A strategy without parallelism, all switches off, layers shared evenly, but for `columns`."""
    fields: dict[str, object] = dict.fromkeys(("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch"), 1)
    fields |= dict.fromkeys(("rank_order", "recompute", "recompute_layers", "sharding", "offload"), 0)
    fields |= dict.fromkeys(("sequence_parallel", "flash", "overlap_tp", "overlap_pp"), False)
    fields |= dict.fromkeys(("overlap_grad", "overlap_param"), False)
    stages = columns.get("pp", 1) * columns.get("vpp", 1)
    share = where.layer_count // stages
    fields |= {"first_layers": share, "last_layers": where.layer_count - share if stages == 2 else share}
    return {**fields, **columns}
