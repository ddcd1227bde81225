"""How near to proof the search comes on ordinary mixed clusters: two to four types in machines of 1, 2, 4 or 8 GPUs,
joined at 10 to 100 Gbit/s, with a model that fits.

    python -m benchmarks.ordinary [FIRST END]

Each seed, from the first (0) to the end (200), is a cluster and a job. Seconds are of processor time.
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np

from shardwright import Cluster, Job, Model, load_model, make_job
from shardwright.search.planner import plan
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.read.cluster import build_cluster

GPUS = """
A100-SXM-80 A100-SXM-40 A100-PCIe-80 A10G A40 L4 L40S RTX3090 RTX4090 V100-SXM2 H100-PCIe H100-SXM H800-SXM H20
A800-SXM-80 T4
""".split()  # noqa: SIM905
WITHOUT_BF16 = ("V100-SXM2", "T4")
# By size; those with learned positions come first.
SHORT = ("gpt2-xl", "opt-1.3b")
MODELS = (
    *SHORT,
    *("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-3.1-8b", "llama-2-13b", "qwen2.5-32b", "llama-2-70b"),
)
BYTES, ROOM = 18, 0.6  # of a parameter in training, and the part of all memory that these may take
ROW = "{:>5} {:>5} {:>14} {:>8} {:>9}  {}"


def problem(seed: int) -> tuple[Model, Cluster, Job]:
    """Return the model, the cluster and the job of a seed."""
    pick = random.Random(seed)
    nodes = [
        {
            "count": pick.choice((1, 1, 2, 2, 3, 4)),
            "gpu": gpu,
            "gpus": pick.choice((1, 2, 4, 8)),
            "inter_node_gbps": pick.choice((10, 25, 50, 100)),
        }
        for gpu in pick.sample(GPUS, pick.choice((2, 2, 2, 3, 3, 4)))
    ]
    memory = sum(row["count"] * row["gpus"] * gpus()[row["gpu"]].memory_bytes for row in nodes)
    fitting = [name for name in MODELS if load_model(name).parameters * BYTES <= ROOM * memory] or list(MODELS[:1])
    name = pick.choice(fitting[-4:])
    batch = pick.choice((32, 64, 128, 256))
    length = 1024 if name in SHORT else pick.choice((1024, 2048, 4096))
    precision = "fp16" if any(row["gpu"] in WITHOUT_BF16 for row in nodes) else "bf16"
    job = make_job(global_batch=batch, seq_len=length, precision=precision)
    return load_model(name), build_cluster({"nodes": nodes}, "cluster"), job


def main() -> None:
    """Print a row for every seed that has a plan, and what they come to."""
    first, end = map(int, sys.argv[1:3] if len(sys.argv) > 2 else ("0", "200"))
    print(ROW.format("seed", "GPUs", "model", "gap", "seconds", "cluster"))
    gaps, seconds = [], []
    for seed in range(first, end):
        model, cluster, job = problem(seed)
        begin = time.process_time()
        ranking = plan(model, cluster, job, top=1)
        seconds.append(time.process_time() - begin)
        if not ranking.plans or ranking.search.gap is None:
            continue
        gaps.append(ranking.search.gap)
        words = " + ".join(f"{pool.nodes}x{pool.gpus_per_node} {pool.gpu.name}" for pool in cluster.pools)
        print(ROW.format(seed, cluster.gpus, model.name, f"{gaps[-1]:.2%}", f"{seconds[-1]:.1f}", words), flush=True)
    near = np.array(gaps)
    parts = ", ".join(f"{np.mean(near <= part + 1e-9):.0%} within {part:.0%}" for part in (0.01, 0.02, 0.1))
    print(
        f"{len(gaps)} of {len(seconds)} have a plan: {parts}; worst {near.max():.0%}; median {np.median(seconds):.1f} s"
    )


if __name__ == "__main__":
    main()
