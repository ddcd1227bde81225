"""Small random clusters of several types, with a model, a job and one setting."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tests.cost.draws import some_job, some_model, with_tower

from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.strategies import UNSHARDED, ZERO1
from shardwright.search.mixed.branch_and_bound.fastest import search
from shardwright.search.mixed.branch_and_bound.run import Effort, MixedProblem, MixedResult
from shardwright.search.mixed.restrictions import keeps_pins
from shardwright.search.mixed.tables.columns import Table
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import Setting, settings, unit_degrees
from shardwright.search.space.axes import Space, Value
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Optimizer
from shardwright.spec.layer import Layer
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model
from shardwright.spec.read.model_yaml import model_of_dimensions

GPUS = ("A100-SXM-40", "V100-SXM2", "T4", "A10G", "H100-SXM", "L4", "RTX3090", "H20")
FUSING = ("A100-SXM-40", "A10G", "H100-SXM", "L4", "RTX3090", "H20")
MODELS = ("gpt2-medium", "gpt2-large", "gpt2-xl", "gpt2-xl", "pythia-410m", "pythia-1b")
EFFICIENCY = Analytic()
EFFORT = Effort(regions=60, patience=60, idle=60, near=0.0)


@dataclass(frozen=True)
class Small:
    cluster: Cluster
    contexts: tuple[Context, ...]
    space: Space
    settings: tuple[Setting, ...]
    tables: tuple[Table, ...]


def small(
    seed: int,
    *,
    most_gpus: int = 10,
    most_layers: int = 8,
    most_batch: int = 8,
    sites: bool = False,
    pins: Mapping[str, tuple[Value, ...]] | None = None,
    optimizer: Optimizer = "adam",
) -> Small:
    """Return a random problem; with `sites`, on machines at two sites or three; with `pins` beside those of degrees."""
    pick = random.Random(seed)
    nodes = _nodes(pick, pick.randint(2, most_gpus))
    cluster = build_cluster({"nodes": nodes} | (_at_sites(seed, nodes) if sites else {}), "test")
    whole = load_model(pick.choice(MODELS))
    model = replace(whole, layers=whole.layers[: pick.randint(3, most_layers)])
    batch = pick.choice([size for size in (3, 4, 5, 6, 7, 8) if size <= most_batch])
    job = make_job(global_batch=batch, seq_len=pick.choice((512, 1024)), precision="fp16", optimizer=optimizer)
    contexts = tuple(Context(model=model, pool=pool, job=job, efficiency=EFFICIENCY) for pool in cluster.pools)
    degrees = [tp for tp in (1, 2) if any(tp in unit_degrees(context) for context in contexts)]
    sizes = [size for size in (1, 2, 4) if batch % size == 0]
    degrees_and_sizes = {
        "tp": tuple(sorted(pick.sample(degrees, pick.randint(1, len(degrees))))),
        "micro_batch": tuple(sorted(pick.sample(sizes, min(pick.choice((1, 1, 2)), len(sizes))))),
    }
    space = Space(pins={**degrees_and_sizes, **(pins or {})})
    chosen = tuple(settings(contexts, space))
    return Small(cluster, contexts, space, chosen, tuple(tables(contexts, chosen, cluster.site_links)))


def varied(problem: Small, seed: int) -> Small:
    """Return a problem with another model and job, of all that the account of a stage depends on; every second model
    has a vision tower."""
    pick, batch = random.Random(seed), problem.contexts[0].job.global_batch
    model = some_model(pick, least=3, most=8)
    job = some_job(pick, model, batch=batch, gpus=[context.pool.gpu for context in problem.contexts])
    model, job = with_tower(model, job, seed) if seed % 2 else (model, job)
    contexts = tuple(replace(context, model=model, job=job) for context in problem.contexts)
    sharings: dict[str, tuple[Value, ...]] = {}
    if pick.random() < 0.5:
        sharings["sharding"] = (pick.choice((UNSHARDED, ZERO1)),)
    sharings |= {"offload": (pick.choice((0.25, 1.0)),)} if sharings.get("sharding") == (ZERO1,) else {}
    space = Space(pins={**problem.space.pins, **sharings})
    chosen = tuple(settings(contexts, space))
    links = problem.cluster.site_links
    return Small(problem.cluster, contexts, space, chosen, tuple(tables(contexts, chosen, links)))


def spread(
    seed: int, *, gpus: Sequence[int], layers: tuple[int, int] = (3, 4), first_dense: Sequence[int] = (0, 0, 1)
) -> Small:
    """Return a random problem with so many `gpus` of each of two types, whose context or experts may be spread over
    ranks of a mesh: with its settings in random order. Of `layers` (from, to) some of the first may be dense ones."""
    pick = random.Random(seed)
    nodes: list[dict[str, object]] = []
    for gpu in pick.sample(FUSING, 2):
        number = pick.choice(gpus)
        each = pick.choice([size for size in (1, 2, 4, 8) if number % size == 0])
        links = {"memory_gb": pick.choice((6, 8, 16)), "inter_node_gbps": pick.choice((25, 100, 400))}
        nodes.append({"count": number // each, "gpu": gpu, "gpus": each, **links})
    cluster = build_cluster({"nodes": nodes}, "test")
    experts = {"experts": pick.choice((2, 4, 6, 8)), "top_k": 2, "expert_width": pick.choice((2048, 8192))}
    sparse = {"moe": {**experts, "shared_width": pick.choice((0, 1024)), "first_dense": pick.choice(first_dense)}}
    dimensions = {"hidden": 1024, "layers": pick.randint(*layers), "heads": 16, "vocab": 32000, "ffn": 4096}
    model = model_of_dimensions(dimensions | (sparse if pick.random() < 0.8 else {}), "m")
    job = make_job(global_batch=pick.choice((4, 6, 8)), seq_len=pick.choice((512, 4096)), precision="fp16")
    contexts = tuple(Context(model=model, pool=pool, job=job, efficiency=EFFICIENCY) for pool in cluster.pools)
    pins: dict[str, tuple[Value, ...]] = {
        "cp": pick.choice(((1,), (1, 2), (2,))),
        "micro_batch": (pick.choice((1, 2)),),
    }
    pins |= {"tp": pick.choice(((1,), (1,), (2,), (1, 2)))} | ({"ep": (2,)} if pick.random() < 0.4 else {})
    space = Space(pins=pins)
    found = settings(contexts, space)
    chosen = tuple(pick.sample(found, len(found)))
    return Small(cluster, contexts, space, chosen, tuple(tables(contexts, chosen)))


def unlike(problem: Small, seed: int) -> Small:
    """Return a problem whose layers have feed-forward blocks of several widths."""
    pick = random.Random(seed)
    widths = pick.choice(((1.0, 1.02), (1.0, 1.5), (0.5, 1.0, 4.0)))
    layers = tuple(_widened(layer, pick.choice(widths)) for layer in problem.contexts[0].model.layers)
    model = replace(problem.contexts[0].model, layers=layers)
    contexts = tuple(replace(context, model=model) for context in problem.contexts)
    chosen = tuple(settings(contexts, problem.space))
    links = problem.cluster.site_links
    return Small(problem.cluster, contexts, problem.space, chosen, tuple(tables(contexts, chosen, links)))


def _widened(layer: Layer, times: float) -> Layer:
    assert layer.mlp is not None
    return replace(layer, mlp=replace(layer.mlp, width=8 * round(times * layer.mlp.width / 8)))


def _at_sites(seed: int, nodes: list[dict[str, object]]) -> dict[str, object]:
    """Put every type at a site, and return the links between sites."""
    pick = random.Random(seed)
    names = ["east", "west", "north"][: pick.choice((2, len(nodes)))]
    for place, node in enumerate(nodes):
        node["site"] = names[place % len(names)]
    links = [
        {"between": list(pair), "gbps": pick.choice((1, 5, 20, 100)), "latency_ms": pick.choice((0.1, 1, 5))}
        for pair in combinations(names, 2)
    ]
    return {"nodes": nodes, "site_links": links}


def _nodes(pick: random.Random, gpus: int) -> list[dict[str, object]]:
    """Return machines of two or three types, `gpus` GPUs together."""
    types = pick.sample(GPUS, 2 if gpus == 2 else pick.choice((2, 3)))
    cuts = sorted(pick.sample(range(1, gpus), len(types) - 1))
    nodes: list[dict[str, object]] = []
    for gpu, begin, end in zip(types, [0, *cuts], [*cuts, gpus], strict=True):
        each = pick.choice([size for size in (1, 2, 4) if (end - begin) % size == 0])
        nodes.append(
            {
                "count": (end - begin) // each,
                "gpu": gpu,
                "gpus": each,
                "memory_gb": pick.choice((4, 6, 8, 16)),
                "inter_node_gbps": pick.choice((5, 10, 25, 100, 400)),
            }
        )
    return nodes


def crowded(seed: int) -> Small:
    """Return a random problem on machines of several GPUs with slow networks between them, so that it matters which
    stages and which copies of them share a machine."""
    pick = random.Random(seed)
    nodes: list[dict[str, object]] = [
        {
            "count": pick.randint(1, 3),
            "gpu": gpu,
            "gpus": pick.choice((2, 2, 3, 4, 6, 8)),
            "inter_node_gbps": pick.choice((2, 5, 10, 25)),
        }
        for gpu in pick.sample(GPUS, 2)
    ]
    cluster, whole = build_cluster({"nodes": nodes}, "test"), load_model("gpt2-xl")
    model = replace(whole, layers=whole.layers[: pick.randint(6, 12)])
    job = make_job(global_batch=pick.choice((8, 12, 24)), seq_len=pick.choice((128, 512)), precision="fp16")
    contexts = tuple(Context(model=model, pool=pool, job=job, efficiency=EFFICIENCY) for pool in cluster.pools)
    space = Space(pins={"tp": (1,), "micro_batch": (1,)})
    chosen = tuple(settings(contexts, space))
    return Small(cluster, contexts, space, chosen, tuple(tables(contexts, chosen, cluster.site_links)))


def stated(problem: Small, gap: float) -> MixedProblem:
    """Return a problem as the mixed search takes it."""
    return MixedProblem(
        problem.contexts, problem.cluster, problem.space, gap, problem.settings, problem.tables, {}, EFFORT
    )


def solved(problem: Small, gap: float) -> MixedResult:
    """Return what the mixed search finds."""
    return search(stated(problem, gap), 1e9, lambda plan: keeps_pins(plan, problem.space))
