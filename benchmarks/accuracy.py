"""Predicted against measured iterations of published training runs, by source.

    .venv/bin/python benchmarks/accuracy.py RUNS.csv

The file has one run a row, with the columns source, model, layers, hidden, ffn, heads, kv_heads, vocab, seq_len, gpu,
gpus_per_node, n_gpus, precision, framework, tp, pp, vpp, cp, zero_or_fsdp_stage, micro_batch, global_batch, recompute,
seq_parallel, dist_optimizer, and measured_iter_time_s or measured_tokens_per_s_per_gpu. Dense models on machines of one
type; a run that lacks a column it needs is counted as skipped. Unpublished switches are at Megatron-LM's defaults.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.efficiency import Analytic
from shardwright.cost.predict import predict
from shardwright.cost.strategy import Strategies, strategies
from shardwright.errors import SpecError
from shardwright.report.layout import table
from shardwright.search.layouts import even_split
from shardwright.spec.cluster import NodePool
from shardwright.spec.job import Job
from shardwright.spec.load_cluster import build_cluster
from shardwright.spec.load_job import make_job
from shardwright.spec.model import Attention, Layer, Mlp, Model, uniform_layers

Row = dict[str, str]
NEEDED = ("layers", "hidden", "ffn", "heads", "vocab", "seq_len", "n_gpus", "tp", "pp", "micro_batch", "global_batch")
RECOMPUTE = {"": 0, "none": 0, "selective": 1, "full": 2}


def main() -> None:
    """Print one line for each source, GPU, framework and precision."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if path is None or not path.is_file():
        print("skipped: needs a file of published runs (see the head of this script)")
        return
    ratios: dict[tuple[str, ...], list[float]] = defaultdict(list)
    skipped: Counter[str] = Counter()
    seen: set[str] = set()
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            group = row.get("dup_group") or ""
            if row.get("quality", "A") not in "AB" or row.get("kind", "pretrain") != "pretrain" or group in seen:
                skipped["quality, kind or duplicate"] += 1
                continue
            seen |= {group} - {""}
            try:
                found = ratio(row)
            except (SpecError, ValueError) as error:
                skipped[str(error).splitlines()[0][:70]] += 1
            else:
                ratios[row["source"], row["gpu"], row["framework"], row["precision"]].append(found)
    header = ("source", "GPU", "framework", "precision", "runs", "p10", "median", "p90", "error")
    print(table(header, lines(ratios), words=header[:4]))
    for reason, count in skipped.most_common(8):
        print(f"  skipped {count}: {reason}")


def lines(ratios: dict[tuple[str, ...], list[float]]) -> list[list[str]]:
    """Return number, quantiles of measured / predicted, and median absolute error of each group, largest first."""
    rows = []
    for key, found in sorted(ratios.items(), key=lambda item: (-len(item[1]), item[0])):
        values = np.array(found)
        quantiles = [f"{value:.2f}" for value in np.percentile(values, [10, 50, 90])]
        rows.append([*key, str(len(values)), *quantiles, f"{np.median(np.abs(1.0 / values - 1.0)):.0%}"])
    return rows


def number(row: Row, name: str, default: float | None = None) -> int:
    """Return a whole number of a row; raises ValueError where it is missing and has no default."""
    if row.get(name):
        return int(float(row[name]))
    if default is None:
        raise ValueError(f"{name} is not published")
    return int(default)


def ratio(row: Row) -> float:
    """Return measured / predicted seconds of an iteration. Raises ValueError or SpecError for a run that lacks
    something or that the cost model does not cover."""
    if row.get("n_experts") or row.get("hetero") == "yes" or any(not row.get(name) for name in NEEDED):
        raise ValueError("experts, mixed machines, or a missing column")
    model, job = model_of(row), job_of(row)
    gpus, each = number(row, "n_gpus"), min(number(row, "gpus_per_node", 8), number(row, "n_gpus"))
    context = Context(model=model, pool=pool_of(row["gpu"], gpus // each, each), job=job, efficiency=Analytic())
    return measured_seconds(row, job) / predict(context, strategy_of(row, context)).iteration_seconds


def measured_seconds(row: Row, job: Job) -> float:
    if row.get("measured_iter_time_s"):
        return float(row["measured_iter_time_s"])
    return job.tokens_per_iteration / (float(row["measured_tokens_per_s_per_gpu"]) * number(row, "n_gpus"))


def model_of(row: Row) -> Model:
    """Return the transformer of a row; gated where its feed-forward width is not four times the hidden size."""
    hidden, heads, width = number(row, "hidden"), number(row, "heads"), number(row, "ffn")
    gated = width != 4 * hidden
    attention = Attention(
        heads=heads, kv_heads=number(row, "kv_heads", heads), head_dim=hidden // heads, value_head_dim=hidden // heads
    )
    layer = Layer(attention=attention, mlp=Mlp(width=width, gated=gated), moe=None)
    layers = uniform_layers(layer, number(row, "layers"))
    return Model(
        name=row["model"],
        family="published",
        hidden=hidden,
        vocab=number(row, "vocab"),
        layers=layers,
        dropout=not gated,
    )


def job_of(row: Row) -> Job:
    return make_job(
        global_batch=number(row, "global_batch"), seq_len=number(row, "seq_len"), precision=row["precision"]
    )


@lru_cache
def pool_of(gpu: str, nodes: int, gpus: int) -> NodePool:
    name = gpu.removesuffix("GB") if gpu.startswith("A100") else gpu.replace("-80GB", "")
    return build_cluster({"nodes": [{"count": nodes, "gpu": name, "gpus": gpus}]}, "published run").pools[0]


def strategy_of(row: Row, context: Context) -> Strategies:
    """Return the strategy that a row publishes."""
    tp, pp, cp, micro = number(row, "tp"), number(row, "pp"), number(row, "cp", 1), number(row, "micro_batch")
    dp = number(row, "n_gpus") // (tp * pp * cp)
    if dp < 1 or context.job.global_batch % (dp * micro):
        raise ValueError("the batch does not divide")
    vpp = number(row, "vpp", 1)
    vpp = vpp if context.job.global_batch // (dp * micro) % pp == 0 else 1
    if pp * vpp > context.layer_count:
        raise ValueError("more virtual stages than layers")
    stage = row.get("zero_or_fsdp_stage") or ("1" if row.get("dist_optimizer") in ("True", "true") else "0")
    sharding = int(float(stage)) if dp * cp > 1 and stage.replace(".", "").isdigit() else 0
    first, last = even_split(context, pp * vpp)
    recompute = RECOMPUTE.get(row.get("recompute", ""), 0)
    return strategies([{
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": 1, "etp": 1, "vpp": vpp, "micro_batch": micro, "rank_order": 0,
        "sequence_parallel": row.get("seq_parallel") in ("True", "true") and tp > 1, "flash": True,
        "overlap_tp": False, "overlap_pp": vpp > 1, "first_layers": first, "last_layers": last, "recompute": recompute,
        "recompute_layers": int(recompute == 2), "sharding": min(sharding, 3), "offload": 0.0, "overlap_grad": dp > 1,
        "overlap_param": sharding > 0,
    }])  # fmt: skip


if __name__ == "__main__":
    main()
