"""Small random clusters of several types, with a model, a job and one setting."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from shardwright.cost.context import Context
from shardwright.cost.efficiency import Analytic
from shardwright.search.mixed.effort import Effort
from shardwright.search.mixed.model_tables import tables
from shardwright.search.mixed.search import Found, Problem, search
from shardwright.search.mixed.settings import Setting, settings, unit_degrees
from shardwright.search.mixed.tables import Table
from shardwright.search.space import Space
from shardwright.spec.cluster import Cluster
from shardwright.spec.load_cluster import build_cluster
from shardwright.spec.load_job import make_job
from shardwright.spec.load_model import load_model

GPUS = ("A100-SXM-40", "V100-SXM2", "T4", "A10G", "H100-SXM", "L4", "RTX3090", "H20")
EFFICIENCY = Analytic()
EFFORT = Effort(regions=60, patience=60)


@dataclass(frozen=True)
class Small:
    cluster: Cluster
    contexts: tuple[Context, ...]
    space: Space
    settings: tuple[Setting, ...]
    tables: tuple[Table, ...]


def small(seed: int, *, most_gpus: int = 10, most_layers: int = 6, most_batch: int = 8) -> Small:
    """Return a random problem."""
    pick = random.Random(seed)
    nodes = []
    left = most_gpus
    for gpu in pick.sample(GPUS, pick.choice((2, 2, 3))):
        each, count = pick.choice(((1, 1), (2, 1), (1, 2), (2, 2)))
        each, count = (each, count) if each * count <= left else (1, 1)
        left -= each * count
        nodes.append(
            {
                "count": count,
                "gpu": gpu,
                "gpus": each,
                "memory_gb": pick.choice((4, 6, 8, 16)),
                "inter_node_gbps": pick.choice((10, 25, 100, 400)),
            }
        )
    cluster = build_cluster({"nodes": nodes}, "test")
    whole = load_model(pick.choice(("gpt2-medium", "gpt2-large", "gpt2-xl")))
    model = replace(whole, layers=whole.layers[: pick.randint(3, most_layers)])
    job = make_job(
        global_batch=pick.choice([b for b in (3, 4, 6, 8) if b <= most_batch]), seq_len=1024, precision="fp16"
    )
    contexts = tuple(Context(model=model, pool=pool, job=job, efficiency=EFFICIENCY) for pool in cluster.pools)
    degrees = [tp for tp in (1, 1, 2) if any(tp in unit_degrees(context) for context in contexts)]
    sizes = (1, 1, 2) if job.global_batch % 2 == 0 else (1,)
    space = Space(pins={"tp": (pick.choice(degrees),), "micro_batch": (pick.choice(sizes),)})
    chosen = tuple(settings(contexts, space))
    return Small(cluster, contexts, space, chosen, tuple(tables(contexts, chosen)))


def solved(problem: Small, gap: float) -> Found:
    """Return what the mixed search finds."""
    whole = Problem(problem.contexts, problem.cluster, problem.space, gap, problem.settings, problem.tables, {}, EFFORT)
    return search(whole, 1e9, lambda plan: True)
