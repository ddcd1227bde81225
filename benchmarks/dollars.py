"""Plans by dollars on machines of several types: dollars against the cheapest plan on one type, certified gap, seconds.

.venv/bin/python benchmarks/dollars.py [NAME ...]

Dollars are those of an iteration, with what failures and interruptions add; prices are those of the shipped table.
Seconds are of processor time, which a busy machine does not lengthen, beside those of the search by time on the same
machines.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from shardwright import Ranking, load_cluster, load_model, make_job
from shardwright.reports.text.mixed import gpu_words
from shardwright.search.objective import affordable_value
from shardwright.search.planner import plan

ROW = "{:<14} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8}  {}"


@dataclass(frozen=True, slots=True)
class Case:
    """One search for the cheapest plan for so many tokens."""

    name: str
    model: str
    cluster: str
    global_batch: int
    seq_len: int
    tokens: float
    deadline_hours: float | None = None
    gap: float = 0.01


TWO, THREE = "8x8xH100-SXM+16x8xA100-SXM-80", "8x8xA100-SXM-80+4x8xH200-SXM+4x8xH100-SXM"
LARGE = "64x8xA100-SXM-80+32x8xH200-SXM+32x8xB200-SXM"
LARGEST = "256x8xA100-SXM-80+128x8xH100-SXM+64x8xH200-SXM+64x8xB200-SXM"
CASES = (
    Case("two-192", "llama-3.1-70b", TWO, 512, 8192, 1e9),
    Case("two-192-3h", "llama-3.1-70b", TWO, 512, 8192, 1e9, 3.0),
    Case("two-192-4.5h", "llama-3.1-70b", TWO, 512, 8192, 1e9, 4.5),
    Case("three-128", "llama-2-70b", THREE, 512, 4096, 1e9),
    Case("three-128-3h", "llama-2-70b", THREE, 512, 4096, 1e9, 3.0),
    Case("three-1024", "llama-2-70b", LARGE, 1024, 4096, 1e10, gap=0.02),
    Case("three-1024-4h", "llama-2-70b", LARGE, 1024, 4096, 1e10, 4.0, 0.02),
    Case("four-4096-60h", "llama-3.1-405b", LARGEST, 2048, 8192, 1e11, 60.0, 0.02),
)


def main(names: list[str]) -> None:
    """Print a row for every case."""
    print(ROW.format("case", "$ plan", "$ 1 type", "$ bound", "gap", "seconds", "by time", "machines"))
    for case in CASES:
        if names and case.name not in names:
            continue
        seconds, found = solved(case, "cost")
        by_time, _ = solved(case, "time")
        plans = [entry.plan for entry in found.baselines if entry.plan and len(entry.plan.gpus_by_type) == 1]
        singles = [value for each in plans if (value := affordable_value(each)) is not None]
        bound, gap = found.search.lower_bound_dollars, found.search.gap
        print(
            ROW.format(
                case.name,
                f"{affordable_value(found.best):.4f}",
                f"{min(singles):.4f}" if singles else "-",
                f"{bound:.4f}",
                f"{gap:.2%}",
                f"{seconds:.2f}",
                f"{by_time:.2f}",
                gpu_words(found.best),
            ),
            flush=True,
        )


def solved(case: Case, objective: str) -> tuple[float, Ranking]:
    """Return the seconds of a search and what it finds."""
    job = make_job(
        global_batch=case.global_batch,
        seq_len=case.seq_len,
        tokens=case.tokens,
        objective=objective,
        deadline_hours=case.deadline_hours if objective == "cost" else None,
    )
    begin = time.process_time()
    found = plan(load_model(case.model), load_cluster(case.cluster), job, gap=case.gap)
    return time.process_time() - begin, found


if __name__ == "__main__":
    main(sys.argv[1:])
