"""How fast the search is: seconds and candidates a second in a warm process, against costing candidates one by one.

.venv/bin/python benchmarks/search.py
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import dataclass

import numpy as np

from shardwright import load_cluster, load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import evaluate
from shardwright.search.planner import plan
from shardwright.search.space.axes import Space, parse_pins
from shardwright.search.space.expand import arrangements, axes
from shardwright.search.space.layouts import layouts, splits

RUNS = 7
# The switches that Calculon searches: tensor, pipeline and data parallel, interleaving, micro-batch, recomputation,
# sequence parallel, optimizer sharding and offload, overlaps. It has no context parallel, no unequal stages, no FSDP.
CALCULON = ("cp=1", "sharding=none,zero1", "rank_order=tp-cp-ep-dp-pp")


@dataclass(frozen=True, slots=True)
class Case:
    """One search; `limit_seconds` is what it is meant to take at most, 0 for none."""

    name: str
    model: str
    cluster: str
    global_batch: int
    seq_len: int
    limit_seconds: float
    pins: tuple[str, ...] = ()


CASES = (
    Case("Astra's own example", "llama-2-70b", "32x8xA800-SXM-80", 512, 4096, 0.1),
    Case("16,384 GPUs", "llama-3.1-405b", "2048x8xH100-SXM", 2048, 8192, 0.5),
    Case("Calculon's switches", "gpt3-175b", "128x8xA100-SXM-80", 1536, 2048, 0.0, CALCULON),
    Case("experts and MLA", "deepseek-v3", "256x8xH800-SXM", 8192, 4096, 0.0),
)


def main() -> None:
    """Print a table for every case."""
    for case in CASES:
        report(case)
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def report(case: Case) -> None:
    """Run one case and print its figures."""
    model, cluster = load_model(case.model), load_cluster(case.cluster)
    job = make_job(global_batch=case.global_batch, seq_len=case.seq_len)
    space, wall, phases = parse_pins(case.pins), [], []
    for _ in range(RUNS):
        ranking = plan(model, cluster, job, space=space, top=3)
        wall.append(ranking.search.seconds)
        phases.append(dict(ranking.search.phases))
    middle = statistics.median(wall)
    searched = [sum(s for name, s in run.items() if name not in ("baselines", "predict")) for run in phases]
    print(f"{case.name}: {case.model} on {cluster.gpus} × {cluster.pools[0].gpu.name}")
    limit = f" (aim {case.limit_seconds} s)" if case.limit_seconds else ""
    print(f"  search {statistics.median(searched):.3f} s{limit}, with baselines and predictions {middle:.3f} s")
    for name in phases[0]:
        print(f"    {name:<12} {1e3 * statistics.median(run[name] for run in phases):8.1f} ms")
    rate = ranking.search.candidates / statistics.median(searched)
    one_by_one = rows_per_second(Context(model=model, pool=cluster.pools[0], job=job, efficiency=Analytic()), space)
    print(f"  {ranking.search.candidates:,} candidates, {rate:,.0f} a second; {ranking.search.costed} costed")
    print(f"  against costing one by one ({one_by_one:,.0f} a second): × {rate / one_by_one:,.0f}\n")


def rows_per_second(context: Context, space: Space, count: int = 2000) -> float:
    """Return how many strategies a second the cost model simulates, drawn at random from the space."""
    rows = layouts(context, space)
    some = np.sort(np.random.default_rng(0).choice(len(rows), size=min(count // 20, len(rows)), replace=False))
    taken = rows.take(some)
    choices = splits(context, space, taken.pp * taken.vpp)
    every = arrangements(
        context, axes(space, frozenset()), taken, choices, lambda rows, _: np.ones(len(rows), dtype=bool)
    ).strategies
    picked = every.take(np.linspace(0, len(every) - 1, count).astype(int))
    begin = time.perf_counter()
    evaluate(context, picked)
    return len(picked) / (time.perf_counter() - begin)


if __name__ == "__main__":
    main()
