"""The mixed search: seconds, memory, certified gap, and how much faster its plans are than the obvious ones.

.venv/bin/python benchmarks/mixed.py [--markdown FILE] [NAME ...]

Every case runs in a process of its own, so that its peak memory is its own; seconds are of the second of two calls, of
processor time, which a busy machine does not lengthen.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from shardwright import Ranking, load_cluster, load_model, make_job
from shardwright.search.mixed.heuristics.megatron import RULE
from shardwright.search.planner import plan

ROW = "{:<12} {:<15} {:>8} {:>5} {:>5} {:>7} {:>8} {:>9} {:>10}"


@dataclass(frozen=True, slots=True)
class Case:
    """One search; `limit_seconds` is what it is meant to take at most, 0 for none."""

    name: str
    model: str
    cluster: str
    global_batch: int
    seq_len: int
    precision: str
    limit_seconds: float = 0.0
    gap: float = 0.01


A40, V16 = "A100-SXM-40", "V100-SXM2-16"
CASES = (
    Case("sailor-128", "opt-350m", f"4x8x{A40}+12x8x{V16}", 1024, 2048, "fp16", 0.3),
    Case("sailor-512", "opt-350m", f"16x8x{A40}+48x8x{V16}", 1024, 2048, "fp16", 1.0),
    Case("large-512", "opt-6.7b", f"16x8x{A40}+48x8x{V16}", 2048, 2048, "fp16", 1.0),
    Case("two-64", "llama-2-13b", "4x8xA100-SXM-80+4x8xH800-SXM", 512, 4096, "bf16", 0.0, 0.005),
    Case("three-64", "llama-2-13b", "4x8xA100-SXM-80+2x8xH800-SXM+2x8xH20", 512, 4096, "bf16", 0.0, 0.005),
    Case("three-128", "llama-2-70b", "8x8xA100-SXM-80+4x8xH800-SXM+4x8xH20", 512, 4096, "bf16", 1.0),
    Case("three-1024", "llama-2-70b", "64x8xA100-SXM-80+32x8xH800-SXM+32x8xH20", 1024, 4096, "bf16", 3.0, 0.02),
    Case(
        "four-4096",
        "llama-3.1-405b",
        "256x8xA100-SXM-80+128x8xH800-SXM+64x8xH20+64x8xH100-SXM",
        2048,
        8192,
        "bf16",
        10.0,
        0.02,
    ),
    # Clusters and models like those of AutoHet's tables: A100, H800 and H20 together, three models.
    Case("autohet-gpt", "gpt3-175b", "8x8xA100-SXM-80+4x8xH800-SXM+8x8xH20", 512, 2048, "bf16"),
    Case("autohet-7b", "llama-2-7b", "2x8xA100-SXM-80+2x8xH800-SXM+2x8xH20", 256, 4096, "bf16"),
    Case("autohet-13b", "llama-2-13b", "2x8xA100-SXM-80+2x8xH800-SXM+2x8xH20", 256, 4096, "bf16"),
    Case("autohet-70b", "llama-2-70b", "4x8xA100-SXM-80+2x8xH800-SXM+4x8xH20", 256, 4096, "bf16"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one case gave."""

    seconds: float
    peak_mib: float
    gap: float
    step_seconds: float
    uniform_seconds: float | None
    single_seconds: float | None


PAGE = """# What the search over clusters of several types finds

Written by `benchmarks/mixed.py --markdown`, on two cores: processor seconds of the search, the most memory it takes,
how near to the best plan of its space the plan is by its certificate, and how many times as fast as Megatron-LM's
uniform plan over all machines and as the best plan on the machines of one type alone, all by the cost model. The first
three are clusters of Sailor's figures, the last four ones like AutoHet's.

| model | cluster | global batch | search | memory | within | step | × uniform | × one type |
|---|---|--:|--:|--:|--:|--:|--:|--:|
"""


def main(names: list[str], markdown: str | None) -> None:
    """Print a row for every case, each run in a process of its own; write them as a page if asked for."""
    print(ROW.format("case", "model", "seconds", "aim", "MiB", "gap", "step s", "x uniform", "x one type"))
    rows = []
    for case in CASES:
        if names and case.name not in names:
            continue
        found = in_a_process(case)
        rows.append(line_of(case, found))
        aim = f"{case.limit_seconds:g}" if case.limit_seconds else "-"
        step = found.step_seconds
        print(
            ROW.format(
                case.name,
                case.model,
                f"{found.seconds:.2f}",
                aim,
                f"{found.peak_mib:.0f}",
                f"{found.gap:.2%}",
                f"{step:.3f}",
                times(found.uniform_seconds, step),
                times(found.single_seconds, step),
            ),
            flush=True,
        )
    if markdown is not None:
        Path(markdown).write_text(PAGE + "".join(rows))


def line_of(case: Case, found: Figures) -> str:
    """Return a case as a row of the page."""
    step = found.step_seconds
    cells = (
        case.model,
        case.cluster.replace("x", " × ").replace("+", ", "),
        f"{case.global_batch} × {case.seq_len}",
        f"{found.seconds:.2f} s",
        f"{found.peak_mib:.0f} MiB",
        f"{found.gap:.2%}",
        f"{step:.3f} s",
        times(found.uniform_seconds, step),
        times(found.single_seconds, step),
    )
    return "| " + " | ".join(cells) + " |\n"


def times(seconds: float | None, step_seconds: float) -> str:
    """Return how many times faster a step is, or a dash where there is nothing to compare with."""
    return "-" if seconds is None else f"{seconds / step_seconds:.2f}"


def in_a_process(case: Case) -> Figures:
    """Run one case in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--case", case.name], capture_output=True, text=True, check=True)
    return Figures(**json.loads(done.stdout))


def search_of(case: Case) -> Callable[[], Ranking]:
    """Return what searches for the plans of a case."""
    model, cluster = load_model(case.model), load_cluster(case.cluster)
    job = make_job(global_batch=case.global_batch, seq_len=case.seq_len, precision=case.precision)
    return partial(plan, model, cluster, job, gap=case.gap)


def run(case: Case) -> Figures:
    """Return the figures of one case, of the second of two calls."""
    search = search_of(case)
    for _ in range(2):
        begin = time.process_time()
        ranking = search()
        seconds = time.process_time() - begin
    best = ranking.best.prediction
    assert best is not None
    single = [found for rule, found in baselines(ranking) if rule != RULE]
    return Figures(
        seconds=seconds,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        gap=ranking.search.gap or 0.0,
        step_seconds=best.iteration_seconds,
        uniform_seconds=dict(baselines(ranking)).get(RULE),
        single_seconds=min(single, default=None),
    )


def baselines(ranking: Ranking) -> list[tuple[str, float]]:
    """Return the rule and the seconds of every baseline that fits."""
    plans = [(entry.rule, entry.plan.prediction) for entry in ranking.baselines if entry.plan is not None]
    return [(rule, found.iteration_seconds) for rule, found in plans if found is not None]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(asdict(run(next(case for case in CASES if case.name == sys.argv[2])))))
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("names", nargs="*", metavar="NAME", help="cases to run (all)")
        parser.add_argument("--markdown", metavar="FILE", help="write the figures as a page")
        asked = parser.parse_args()
        main(asked.names, asked.markdown)
