"""A new plan after machines were lost or gained: milliseconds, and how its step compares with that of a full search.

.venv/bin/python benchmarks/replan.py [NAME ...]

`kept` is filled by one call for the cluster as it was; every timed call begins with a copy of that, so that no call
profits from one for the same cluster. Milliseconds are of processor time, the median of several calls; a full search
runs in the same process, priced as `train` runs it too.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass

from shardwright import Cluster, Job, Model, Plan, load_cluster, load_model, make_job
from shardwright.search.planner import plan
from shardwright.search.replan import Kept, replan

RUNS = 7
ROW = "{:<10} {:<12} {:<14} {:>5} {:>7} {:>8} {:>9} {:>8} {:>7}"
CHANGES = (-1, -4, 1, 4)  # machines


@dataclass(frozen=True, slots=True)
class Case:
    """A model on machines of several types: (number, machine) of each."""

    name: str
    model: str
    machines: tuple[tuple[int, str], ...]
    global_batch: int
    seq_len: int
    precision: str
    gap: float = 0.01


A40, V16 = "8xA100-SXM-40", "8xV100-SXM2-16"
CASES = (
    Case("small-512", "opt-350m", ((16, A40), (48, V16)), 1024, 2048, "fp16"),
    Case("large-512", "opt-6.7b", ((16, A40), (48, V16)), 2048, 2048, "fp16"),
    Case(
        "three-512",
        "llama-2-70b",
        ((32, "8xA100-SXM-80"), (16, "8xH800-SXM"), (16, "8xH20")),
        1024,
        4096,
        "bf16",
        0.02,
    ),
)


def main(names: list[str]) -> None:
    """Print a row for every change of every case."""
    print(ROW.format("case", "model", "machines", "GPUs", "ms", "full ms", "full / ms", "step s", "slower"))
    for case in CASES:
        if not names or case.name in names:
            report(case)


def report(case: Case) -> None:
    """Print the rows of one case: machines of the first and of the last type lost and gained."""
    model = load_model(case.model)
    job = make_job(global_batch=case.global_batch, seq_len=case.seq_len, precision=case.precision, framework="train")
    whole = load_cluster(_text(case, 0, 0))
    before, _ = _searched(model, whole, job, case.gap)
    kept: Kept = {}
    replan(before, whole, kept=kept)
    for change in CHANGES:
        for kind in (0, len(case.machines) - 1):
            cluster = load_cluster(_text(case, kind, change))
            seconds, found = _replanned(before, cluster, kept)
            best, full_seconds = _searched(model, cluster, job, case.gap)
            step = found.iteration_seconds
            print(
                ROW.format(
                    case.name,
                    case.model,
                    f"{change:+d} {case.machines[kind][1].split('-')[0]}",
                    cluster.gpus,
                    f"{1e3 * seconds:.1f}",
                    f"{1e3 * full_seconds:.0f}",
                    f"{full_seconds / seconds:.0f}",
                    f"{step:.3f}",
                    f"{step / best.iteration_seconds - 1.0:+.2%}",
                ),
                flush=True,
            )


def _text(case: Case, kind: int, change: int) -> str:
    """Return the cluster of a case with `change` more machines of one type."""
    numbers = [number + change * (place == kind) for place, (number, _) in enumerate(case.machines)]
    return "+".join(f"{number}x{machine}" for number, (_, machine) in zip(numbers, case.machines, strict=True))


def _replanned(before: Plan, cluster: Cluster, kept: Kept) -> tuple[float, Plan]:
    """Return the seconds of a call, the median of several, and its plan."""
    seconds = []
    for _ in range(RUNS):
        own = dict(kept)
        begin = time.process_time()
        found = replan(before, cluster, kept=own)
        seconds.append(time.process_time() - begin)
        assert found is not None, "hundreds of GPUs are left"
    return statistics.median(seconds), found


def _searched(model: Model, cluster: Cluster, job: Job, gap: float) -> tuple[Plan, float]:
    """Return the plan of a full search and its seconds, those of the second of two calls."""
    for _ in range(2):
        begin = time.process_time()
        ranking = plan(model, cluster, job, gap=gap)
        seconds = time.process_time() - begin
    return ranking.best, seconds


if __name__ == "__main__":
    main(sys.argv[1:])
