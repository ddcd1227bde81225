"""The relaxed master problem of the mixed search: our own simplex method against HiGHS, on programs of real searches.

.venv/bin/python benchmarks/relaxation.py

Every relaxation that the searches solve is recorded, then solved again by HiGHS: from the last basis where only the
values changed or columns were added, and anew each time. Seconds are of processor time; the optima are compared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import highspy
import numpy as np

from shardwright import load_cluster, load_model, make_job
from shardwright.arrays import Floats
from shardwright.search.mixed.master.relaxation import Relaxation, Relaxed
from shardwright.search.planner import plan

ROW = "{:<12} {:>9} {:>8} {:>6} {:>12} {:>13} {:>12} {:>10}"
CASES = (
    ("two-64", "llama-2-13b", "4x8xA100-SXM-80+4x8xH800-SXM", 512, 4096, 0.005),
    ("three-128", "llama-2-70b", "8x8xA100-SXM-80+4x8xH800-SXM+4x8xH20", 512, 4096, 0.01),
    ("three-1024", "llama-2-70b", "64x8xA100-SXM-80+32x8xH800-SXM+32x8xH20", 1024, 4096, 0.02),
)


@dataclass(slots=True)
class Recorded:
    """The relaxations of a search: columns [N, R], limits [R], values [N] and the optimum; seconds of the method."""

    programs: list[tuple[Floats, Floats, Floats, float]] = field(default_factory=list)
    seconds: float = 0.0


class Highs:
    """HiGHS on one relaxation after the other; a program that continues the last one starts from its basis."""

    def __init__(self, *, warm: bool) -> None:
        self.warm = warm
        self.columns: Floats = np.zeros((0, 0))
        self.limits: Floats = np.zeros(0)

    def optimum(self, columns: Floats, limits: Floats, value: Floats) -> float:
        """Return the optimum of max value x with columns x <= limits."""
        known = len(self.columns) if self.warm and self._continues(columns, limits) else 0
        if not known:
            self.solver = highspy.Highs()
            self.solver.setOptionValue("output_flag", False)
            self.solver.setOptionValue("threads", 1)
            self.solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
            self.solver.addRows(len(limits), np.full(len(limits), -highspy.kHighsInf), limits, 0, [], [], [])
        if len(columns) > known:
            self._add(columns[known:], value[known:])
        if known:
            self.solver.changeColsCost(known, np.arange(known, dtype=np.int32), value[:known])
        self.columns, self.limits = columns, limits
        self.solver.run()
        return float(self.solver.getInfo().objective_function_value)

    def _continues(self, columns: Floats, limits: Floats) -> bool:
        last = self.columns
        same = last.shape[1:] == columns.shape[1:] and np.array_equal(limits, self.limits)
        return (
            same and 0 < len(last) <= len(columns) and (last is columns or np.array_equal(last, columns[: len(last)]))
        )

    def _add(self, columns: Floats, value: Floats) -> None:
        at, row = np.nonzero(columns)
        starts = np.append(0, np.cumsum((columns != 0).sum(axis=1)))[:-1].astype(np.int32)
        none, many = np.zeros(len(columns)), np.full(len(columns), highspy.kHighsInf)
        self.solver.addCols(len(columns), value, none, many, len(at), starts, row.astype(np.int32), columns[at, row])


def main() -> None:
    """Print a row for every case."""
    print(ROW.format("case", "programs", "columns", "rows", "own, ms", "HiGHS warm", "HiGHS cold", "differ by"))
    for name, model, cluster, global_batch, seq_len, gap in CASES:
        job = make_job(global_batch=global_batch, seq_len=seq_len)
        found = recorded(model, cluster, job, gap)
        seconds, worst = [found.seconds], 0.0
        for warm in (True, False):
            other, begin = Highs(warm=warm), time.process_time()
            values = [other.optimum(columns, limits, value) for columns, limits, value, _ in found.programs]
            seconds.append(time.process_time() - begin)
            pairs = zip(values, found.programs, strict=True)
            worst = max(worst, *(abs(value - own) / max(own, 1.0) for value, (*_, own) in pairs))
        widest = max(len(columns) for columns, *_ in found.programs)
        rows = found.programs[0][0].shape[1]
        times = (f"{1e3 * each:.0f}" for each in seconds)
        print(ROW.format(name, len(found.programs), widest, rows, *times, f"{worst:.1e}"), flush=True)


def recorded(model: str, cluster: str, job: object, gap: float) -> Recorded:
    """Return all relaxations that the search of a case solves."""
    found, optimum = Recorded(), Relaxation.optimum

    def noted(self: Relaxation, value: Floats) -> Relaxed:
        begin = time.process_time()
        result = optimum(self, value)
        found.seconds += time.process_time() - begin
        if len(value):
            found.programs.append((self.columns, self.limits, value.copy(), result.value))
        return result

    Relaxation.optimum = noted  # type: ignore[method-assign]
    try:
        plan(load_model(model), load_cluster(cluster), job, gap=gap)  # type: ignore[arg-type]
    finally:
        Relaxation.optimum = optimum  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    main()
