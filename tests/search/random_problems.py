"""Random clusters and jobs of all kinds, as users bring them: 1 to 4 GPU types of the catalogue on machines of 1 to 8 of
them, links of 1 to 800 Gbit/s, one site or several, odd batches, both makers, pins, rules, experts, adapters, precisions
that some types lack, every framework.

`SEEDS` are the 500 of the nightly net. How many of them had a plan when they were chosen is a floor (`test_random`)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from shardwright import Cluster, Job, Model, Ranking, load_model, make_job
from shardwright.search.planner import plan
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import parse_pins
from shardwright.spec.adapter import Adapter
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.read.cluster import build_cluster

SEEDS = range(500)
QUICK = (3, 10, 14, 18, 27, 29, 31, 43, 47, 55, 61, 69)  # the dozen of every run: those that are answered soonest
GAP = 0.01

MODELS = (
    *("gpt2", "gpt2-xl", "opt-350m", "opt-1.3b", "pythia-410m", "bert-large", "bloom-560m"),
    *("qwen2.5-0.5b", "llama-3.2-1b", "gemma-2b", "llama-3.2-3b", "phi-2", "chatglm3-6b", "falcon-7b"),
    *("llama-2-7b", "llama-3.1-8b", "gemma-2-9b", "llama-2-13b", "qwen2.5-32b", "llama-2-70b", "qwen2.5-72b"),
    *("qwen1.5-moe-a2.7b", "deepseek-v2-lite", "qwen3-30b-a3b", "mixtral-8x7b", "glm-4.5-air"),
)
# Those of the catalogue when the seeds were chosen: a new row of it must not draw other problems.
GPUS = """
P100-PCIe P100-SXM2 P4 V100-PCIe V100-PCIe-16 V100-SXM2 V100-SXM2-16 TitanRTX RTX6000 RTX2080Ti T4 A10 A10G
A30 A40 RTXA6000 A100-PCIe-40 A100-SXM-40 A100-PCIe-80 A100-SXM-80 A800-SXM-80 L4 L40 L40S RTX3090 RTX4090
RTX6000Ada RTX5090 RTXPRO6000 H20 H100-PCIe H100-NVL H100-SXM H800-SXM H200 GH200-96 B200 B300 MI100 MI210
MI250-GCD MI250X-GCD MI250X MI300X MI308X MI325X MI355X Gaudi2 Gaudi3 B60
""".split()  # noqa: SIM905
COUNTS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 8)
MANY = (12, 18, 32)
PER_NODE = (1, 2, 2, 3, 4, 4, 5, 6, 8, 8, 8)
NETWORKS = (1, 5, 10, 25, 50, 100, 200, 400, 800)
BATCHES = (1, 2, 3, 5, 6, 7, 8, 12, 13, 16, 24, 31, 32, 48, 64, 96, 128, 250, 256, 512, 1021)
LENGTHS = (512, 1000, 1024, 2048, 2048, 4096, 4096, 8192, 16384)
PINS = (
    *("tp=1", "tp=2", "tp=1,2,4", "pp=1", "pp=2", "pp=2,3,4", "dp=2", "dp=1", "micro_batch=1", "micro_batch=2,4"),
    *("recompute=full", "recompute=none", "recompute=selective", "sharding=zero1", "sharding=none", "sharding=zero3"),
    *(
        "rank_order=tp-cp-ep-pp-dp",
        "first_layers=1",
        "last_layers=2",
        "offload=0.5",
        "flash=true",
        "overlap_grad=false",
    ),
    *("sequence_parallel=true", "cp=1", "vpp=1", "ep=1"),
)
RULES = (
    *("$pp > 4", "$tp > 2", "$micro_batch_size > 2", "$num_gpus < 3", "$dp == 1", "$tp * $pp > 8"),
    *('$recompute_granularity == "full"', "$num_micro_batches < $pp", "$use_distributed_optimizer && $dp > 2"),
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A question to the planner: groups of machines and links between sites as a cluster file has them, a model, a job,
    pins and rules as a user writes them."""

    nodes: tuple[Mapping[str, Any], ...]
    site_links: tuple[Mapping[str, Any], ...]
    model: Model
    job: Job
    pins: tuple[str, ...]
    rules: str
    tp_per_type: bool

    @property
    def cluster(self) -> Cluster:
        links = {"site_links": list(self.site_links)} if self.site_links else {}
        return build_cluster({"nodes": list(self.nodes), **links}, "cluster")

    def planned(self, *, top: int = 1) -> Ranking:
        """Return what the planner answers. Raises SpecError where it refuses the question."""
        return plan(
            self.model,
            self.cluster,
            self.job,
            space=replace(parse_pins(self.pins), tp_per_type=self.tp_per_type),
            rules=parse_rules(self.rules, "rules"),
            top=top,
            gap=GAP,
        )


def problem(seed: int) -> Problem:
    """Return the random problem of a seed."""
    pick = random.Random(seed)
    nodes, site_links = _machines(pick)
    model = _model(pick, nodes)
    return Problem(
        nodes=nodes,
        site_links=site_links,
        model=model,
        job=_job(pick, model),
        pins=_pins(pick),
        rules=pick.choice(RULES) if pick.random() < 0.15 else "",
        tp_per_type=len(nodes) == 2 and pick.random() < 0.2,
    )


def _machines(pick: random.Random) -> tuple[tuple[Mapping[str, Any], ...], tuple[Mapping[str, Any], ...]]:
    """Return groups of machines, and the links between their sites where these are said."""
    makers = pick.choice(("nvidia", "nvidia", "nvidia", "nvidia", "amd", "any"))
    of_makers = [name for name in GPUS if makers in ("any", gpus()[name].vendor)]
    types = pick.sample(of_makers, min(pick.choice((1, 2, 2, 2, 3, 3, 4)), len(of_makers)))
    if pick.random() < 0.1:  # one type in machines of two kinds
        types.append(types[0])
    nodes: list[dict[str, Any]] = []
    for gpu in types:
        row: dict[str, Any] = {
            "count": pick.choice(COUNTS if pick.random() < 0.95 else MANY),
            "gpu": gpu,
            "gpus": pick.choice(PER_NODE),
        }
        row["inter_node_gbps"] = pick.choice(NETWORKS)
        if pick.random() < 0.2:
            row["memory_gb"] = max(round(gpus()[gpu].memory_bytes / 1024**3 * pick.choice((0.5, 0.75, 1.5))), 4)
        row["price_per_hour"] = pick.choice((1, 2, 4, 8, 20)) * row["gpus"]
        nodes.append(row)
    if len(nodes) == 1 or pick.random() < 0.75:
        return tuple(nodes), ()
    names = ["east", "west", "north"][: pick.choice((2, min(3, len(nodes))))]
    for place, row in enumerate(nodes):
        row["site"] = names[place % len(names)]
    links = [
        {"between": list(pair), "gbps": pick.choice((1, 5, 20, 100)), "latency_ms": pick.choice((0.1, 1, 20))}
        for pair in combinations(names, 2)
    ]
    return tuple(nodes), tuple(links)


def _model(pick: random.Random, nodes: Sequence[Mapping[str, Any]]) -> Model:
    """Return a model that may fit the machines: one of the preset ones, or the first layers of it."""
    memory = sum(row["count"] * row["gpus"] * gpus()[row["gpu"]].memory_bytes for row in nodes)
    room = memory * pick.choice((0.3, 0.7, 0.7, 1.0, 2.0)) / 16.0
    sizes = {name: load_model(name).parameters for name in MODELS}
    whole = load_model(
        pick.choice([name for name in MODELS if sizes[name] <= room] or [min(sizes, key=sizes.__getitem__)])
    )
    if pick.random() < 0.7:
        return whole
    return replace(whole, layers=whole.layers[: pick.randint(2, len(whole.layers))])


def _job(pick: random.Random, model: Model) -> Job:
    lengths = [length for length in LENGTHS if model.position != "learned" or length <= model.learned_positions]
    job = make_job(
        global_batch=pick.choice(BATCHES),
        seq_len=pick.choice(lengths or [512]),
        steps=1000,
        precision=pick.choice(("bf16", "bf16", "fp16", "fp16", "fp16", "fp8", "fp32")),
        optimizer=pick.choice(("adam", "adam", "adam", "adam", "adam8bit", "muon", "sgd")),
        framework=pick.choice(("megatron", "megatron", "train", "train", *framework_names())),
        objective=pick.choice(("time", "time", "time", "time", "time", "time", "time", "cost")),
    )
    return replace(job, adapter=Adapter() if pick.random() < 0.08 else None)


def _pins(pick: random.Random) -> tuple[str, ...]:
    chosen = pick.sample(PINS, pick.choice((0, 0, 0, 0, 0, 1, 1, 2)))
    axes = [setting.partition("=")[0] for setting in chosen]
    return tuple(setting for place, setting in enumerate(chosen) if axes[place] not in axes[:place])
